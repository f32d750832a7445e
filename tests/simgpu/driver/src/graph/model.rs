// SPDX-License-Identifier: MIT OR Apache-2.0
//! A graph as a value: nodes, the action of each, and their order.
//!
//! Nodes and graphs have handles of their own registries, so a stale handle is refused. An edge is
//! kept with its later node. A clone has new handles and remembers the original of each of its
//! nodes.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, R};
use crate::capture::edge::{Edge, EdgeData};
use crate::event::Event;
use crate::graph::allocation::NodeMemory;
use crate::graph::conditional::{self, Choice, VALUES};
use crate::graph::user_object;
use crate::launch::Launch;
use crate::registry::{HandleKind, Registry};
use crate::stream::memop::MemOp;
use crate::work::StreamWork;

/// Every graph of the process, those inside child and conditional nodes included.
pub(crate) static GRAPHS: Registry<Graph> = Registry::new(HandleKind::Graph);
/// Every node of every graph.
pub(crate) static NODES: Registry<Node> = Registry::new(HandleKind::Node);
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// The action of one node.
#[derive(Clone)]
pub(crate) enum Body {
    /// Anything that a stream can do.
    Work(StreamWork),
    /// Records an event.
    Record(Arc<Event>),
    /// Waits for an event that was recorded outside.
    Wait(Arc<Event>),
    /// A graph inside this one.
    Child(Arc<Graph>),
    /// Makes memory usable.
    Alloc(Arc<NodeMemory>),
    /// Gives memory back.
    Free(u64),
    /// Stream writes and waits, with the parameters they were made from.
    Batch(Arc<[[u64; 6]]>, Arc<[MemOp]>),
    /// Graphs that run or not by a value on the device.
    Conditional(Arc<Conditional>),
}

/// `CUgraphNodeType`.
pub(crate) mod kind {
    pub(crate) const KERNEL: u32 = 0;
    pub(crate) const MEMCPY: u32 = 1;
    pub(crate) const MEMSET: u32 = 2;
    pub(crate) const HOST: u32 = 3;
    pub(crate) const GRAPH: u32 = 4;
    pub(crate) const EMPTY: u32 = 5;
    pub(crate) const WAIT_EVENT: u32 = 6;
    pub(crate) const EVENT_RECORD: u32 = 7;
    pub(crate) const MEM_ALLOC: u32 = 10;
    pub(crate) const MEM_FREE: u32 = 11;
    pub(crate) const BATCH_MEM_OP: u32 = 12;
    pub(crate) const CONDITIONAL: u32 = 13;
}

impl Body {
    /// `CUgraphNodeType`.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Body::Work(StreamWork::Kernel(_)) => kind::KERNEL,
            Body::Work(StreamWork::Copy(_)) => kind::MEMCPY,
            Body::Work(StreamWork::Set(_)) => kind::MEMSET,
            Body::Work(StreamWork::Host(_)) => kind::HOST,
            Body::Work(StreamWork::MemOps(_)) | Body::Batch(..) => kind::BATCH_MEM_OP,
            Body::Work(StreamWork::Empty) => kind::EMPTY,
            Body::Record(_) => kind::EVENT_RECORD,
            Body::Wait(_) => kind::WAIT_EVENT,
            Body::Child(_) => kind::GRAPH,
            Body::Alloc(_) => kind::MEM_ALLOC,
            Body::Free(_) => kind::MEM_FREE,
            Body::Conditional(_) => kind::CONDITIONAL,
        }
    }

    /// The graphs inside.
    pub(crate) fn graphs(&self) -> Vec<Arc<Graph>> {
        match self {
            Body::Child(graph) => vec![graph.clone()],
            Body::Conditional(conditional) => conditional.bodies.clone(),
            _ => Vec::new(),
        }
    }

    /// A copy with copies of the graphs inside.
    pub(crate) fn copied(&self) -> R<Body> {
        Ok(match self {
            Body::Child(graph) => Body::Child(graph.clone_graph()?),
            Body::Conditional(_) => return Err(Error::NOT_SUPPORTED),
            other => other.clone(),
        })
    }
}

/// The value, the choice and the bodies of one conditional node.
pub(crate) struct Conditional {
    pub(crate) value: Handle,
    pub(crate) choice: Choice,
    pub(crate) bodies: Vec<Arc<Graph>>,
    /// The bodies' handles, which the client looks at for as long as the node lives.
    pub(crate) handles: Box<[Handle]>,
}

impl Conditional {
    /// A node with empty bodies, for the client to fill.
    pub(crate) fn new(value: Handle, choice: u32, size: u32) -> R<Conditional> {
        let choice = Choice::new(choice)?;
        VALUES.get(value)?;
        let most = match choice {
            Choice::If => 2,
            Choice::While => 1,
            Choice::Switch => u32::MAX,
        };
        if size == 0 || size > most {
            return Err(Error::INVALID_VALUE);
        }
        let bodies: Vec<_> = (0..size).map(|_| Graph::create()).collect();
        Ok(Conditional {
            value,
            choice,
            handles: bodies.iter().map(|body| body.handle).collect(),
            bodies,
        })
    }

    /// The body that the launch value chooses, and how often it runs.
    pub(crate) fn chosen(&self) -> Option<(&Arc<Graph>, u32)> {
        let value = VALUES.find(self.value).map_or(0, |value| value.at_launch);
        let (body, times) = self.choice.runs(value, self.bodies.len(), conditional::trips())?;
        Some((&self.bodies[body], times))
    }
}

/// One node.
pub(crate) struct Node {
    pub(crate) handle: Handle,
    pub(crate) graph: Handle,
    /// Counts up inside its graph; the same in every clone.
    pub(crate) number: u32,
    /// The node this one was cloned from; 0 for an original.
    pub(crate) origin: Handle,
    state: Mutex<State>,
}

struct State {
    body: Body,
    after: Vec<Edge>,
    /// Addresses that a question about the parameters answered: the client may follow them until
    /// the node changes.
    shown: Option<(Arc<Launch>, Vec<usize>)>,
}

impl Node {
    /// Its action, as of now.
    pub(crate) fn body(&self) -> Body {
        lock(&self.state).body.clone()
    }

    /// Changes its action.
    pub(crate) fn set_body(&self, body: Body) {
        let mut state = lock(&self.state);
        // The old one may hold a graph's memory, whose release takes other locks: not under this
        // one.
        let old = std::mem::replace(&mut state.body, body);
        let shown = state.shown.take();
        drop(state);
        drop((old, shown));
    }

    /// Keeps the addresses of a launch's parameters, and returns the address of that list.
    pub(crate) fn show(&self, launch: &Arc<Launch>, addresses: Vec<usize>) -> usize {
        let mut state = lock(&self.state);
        let known = state.shown.take().filter(|(of, _)| Arc::ptr_eq(of, launch));
        let shown = state.shown.insert(known.unwrap_or_else(|| (launch.clone(), addresses)));
        shown.1.as_ptr().expose_provenance()
    }

    /// The edges from the nodes before it.
    pub(crate) fn after(&self) -> Vec<Edge> {
        lock(&self.state).after.clone()
    }
}

/// One graph.
pub(crate) struct Graph {
    pub(crate) handle: Handle,
    pub(crate) id: u32,
    inner: Mutex<GraphState>,
}

#[derive(Default)]
struct GraphState {
    nodes: Vec<Arc<Node>>,
    numbers: u32,
    users: user_object::References,
}

impl Graph {
    /// An empty graph.
    pub(crate) fn create() -> Arc<Graph> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        GRAPHS
            .add_with(|handle| Graph {
                handle,
                id,
                inner: Mutex::default(),
            })
            .1
    }

    /// Takes a graph off the registry, its nodes and the graphs inside them with it.
    pub(crate) fn destroy(&self) -> R {
        GRAPHS.take(self.handle).ok_or(Error::INVALID_HANDLE)?;
        let inner = std::mem::take(&mut *lock(&self.inner));
        for node in inner.nodes {
            let _ = NODES.take(node.handle);
            for graph in node.body().graphs() {
                let _ = graph.destroy();
            }
        }
        Ok(())
    }

    /// Adds a node after those of `after`, which must be of this graph.
    pub(crate) fn add(&self, body: Body, after: &[Edge]) -> R<Arc<Node>> {
        let mut inner = lock(&self.inner);
        let mut edges = Vec::with_capacity(after.len());
        for edge in after {
            self.check(edge.from)?;
            if edges.iter().any(|known: &Edge| known.from == edge.from) {
                return Err(Error::INVALID_VALUE);
            }
            edges.push(*edge);
        }
        Ok(self.insert(&mut inner, body, edges, 0, None))
    }

    fn insert(
        &self,
        inner: &mut GraphState,
        body: Body,
        after: Vec<Edge>,
        origin: Handle,
        number: Option<u32>,
    ) -> Arc<Node> {
        let number = number.unwrap_or(inner.numbers);
        inner.numbers = inner.numbers.max(number + 1);
        let state = Mutex::new(State {
            body,
            after,
            shown: None,
        });
        let (_, node) = NODES.add_with(|handle| Node {
            handle,
            graph: self.handle,
            number,
            origin,
            state,
        });
        inner.nodes.push(node.clone());
        node
    }

    /// Is the node of this graph?
    fn check(&self, node: Handle) -> R {
        if NODES.get(node)?.graph == self.handle {
            Ok(())
        } else {
            Err(Error::INVALID_VALUE)
        }
    }

    /// The nodes in the order in which they were added.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.inner).nodes.clone()
    }

    /// Takes a node and its edges away.
    pub(crate) fn remove(&self, node: &Node) -> R {
        let mut inner = lock(&self.inner);
        inner.nodes.retain(|other| other.handle != node.handle);
        for other in &inner.nodes {
            lock(&other.state).after.retain(|edge| edge.from != node.handle);
        }
        for graph in node.body().graphs() {
            let _ = graph.destroy();
        }
        NODES.take(node.handle).map(drop).ok_or(Error::INVALID_HANDLE)
    }

    /// Puts `to` after `from`.
    pub(crate) fn connect(&self, from: Handle, to: Handle, data: EdgeData) -> R {
        let _inner = lock(&self.inner);
        self.check(from)?;
        self.check(to)?;
        if from == to {
            return Err(Error::INVALID_VALUE);
        }
        let node = NODES.get(to)?;
        let mut state = lock(&node.state);
        let edge = Edge { from, data };
        if state.after.contains(&edge) {
            return Err(Error::INVALID_VALUE);
        }
        state.after.push(edge);
        Ok(())
    }

    /// Takes the edge from `from` to `to` away.
    pub(crate) fn disconnect(&self, from: Handle, to: Handle, data: Option<EdgeData>) -> R {
        let _inner = lock(&self.inner);
        self.check(from)?;
        self.check(to)?;
        let node = NODES.get(to)?;
        let mut state = lock(&node.state);
        let at = state
            .after
            .iter()
            .position(|edge| edge.from == from && data.is_none_or(|data| edge.data == data));
        state.after.remove(at.ok_or(Error::INVALID_VALUE)?);
        Ok(())
    }

    /// The nodes with each one after all it depends on, and otherwise as they were added. A cycle
    /// is an error.
    pub(crate) fn sorted(&self) -> R<Vec<Arc<Node>>> {
        let nodes = self.nodes();
        let places: HashMap<Handle, usize> = nodes.iter().enumerate().map(|(at, node)| (node.handle, at)).collect();
        let mut missing = vec![0usize; nodes.len()];
        let mut followers = vec![Vec::new(); nodes.len()];
        for (at, node) in nodes.iter().enumerate() {
            for edge in node.after() {
                if let Some(from) = places.get(&edge.from) {
                    missing[at] += 1;
                    followers[*from].push(at);
                }
            }
        }
        let mut ready: std::collections::BTreeSet<usize> = (0..nodes.len()).filter(|at| missing[*at] == 0).collect();
        let mut sorted = Vec::with_capacity(nodes.len());
        while let Some(at) = ready.pop_first() {
            sorted.push(nodes[at].clone());
            for follower in &followers[at] {
                missing[*follower] -= 1;
                if missing[*follower] == 0 {
                    ready.insert(*follower);
                }
            }
        }
        if sorted.len() == nodes.len() {
            Ok(sorted)
        } else {
            Err(Error::INVALID_VALUE)
        }
    }

    /// A copy, the graphs inside its nodes included. Refused, as by the real driver, if there is a
    /// conditional node.
    pub(crate) fn clone_graph(&self) -> R<Arc<Graph>> {
        let sorted = self.sorted()?;
        if sorted.iter().any(|node| matches!(node.body(), Body::Conditional(_))) {
            return Err(Error::NOT_SUPPORTED);
        }
        let copy = Graph::create();
        let mut handles = HashMap::new();
        let mut inner = lock(&copy.inner);
        // In topological order, so that the earlier end of every edge has its new handle already.
        for node in sorted {
            let moved = |edge: &Edge| {
                Some(Edge {
                    from: *handles.get(&edge.from)?,
                    ..*edge
                })
            };
            let after = node.after().iter().filter_map(moved).collect();
            let body = node.body().copied()?;
            let made = copy.insert(&mut inner, body, after, node.handle, Some(node.number));
            handles.insert(node.handle, made.handle);
        }
        inner.nodes.sort_by_key(|node| node.number);
        inner.users = lock(&self.inner).users.clone();
        drop(inner);
        Ok(copy)
    }

    /// Keeps references to a user object for as long as the graph lives.
    pub(crate) fn users<T>(&self, with: impl FnOnce(&mut user_object::References) -> T) -> T {
        with(&mut lock(&self.inner).users)
    }
}
