// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instantiated graphs: the state of a graph when it was instantiated, flattened, changed in place
//! and launched.
//!
//! The nodes of a child graph take its node's place, and so do those of the bodies that a
//! conditional node chooses. The result is a list in which every item comes after all that it
//! depends on. Changes address an item by the handle of the node that it came from.
#![deny(unsafe_code)]

mod api;
pub(crate) mod launch;
mod update;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use simgpu_device::Seq;
use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, R};
use crate::capture::edge::Edge;
use crate::graph::exec::launch::Plan;
use crate::graph::model::{Body, Graph, NODES, Node};
use crate::graph::user_object::References;
use crate::registry::{HandleKind, Registry};
use crate::stream::Stream;
use crate::work::StreamWork;

/// Every instantiated graph of the process.
pub(crate) static EXECS: Registry<Exec> = Registry::new(HandleKind::Exec);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// One instantiated graph.
pub(crate) struct Exec {
    pub(crate) id: u64,
    pub(crate) flags: u64,
    inner: Mutex<ExecState>,
    _users: References,
}

struct ExecState {
    items: Vec<Item>,
    plan: Plan,
    /// The last operation of the last launch: the next launch comes after it, on whichever stream
    /// it is.
    last: Seq,
    /// Hidden streams for work parallel to the launching stream, by context.
    branches: HashMap<u64, Vec<Arc<Stream>>>,
}

/// One node of a flattened graph.
#[derive(Clone)]
pub(crate) struct Item {
    /// The node it came from.
    pub(crate) node: Handle,
    /// The child and conditional nodes around that, outermost first.
    pub(crate) parents: Vec<Handle>,
    /// Its action; never a graph.
    pub(crate) body: Body,
    /// Items before this one that it comes after.
    pub(crate) after: Vec<usize>,
    /// `cuGraphNodeSetEnabled`.
    pub(crate) enabled: bool,
}

/// Makes the list of a graph.
pub(crate) fn flatten(graph: &Graph) -> R<Vec<Item>> {
    let mut items = Vec::new();
    let mut parents = Vec::new();
    inline(graph, &mut items, &mut parents, &[])?;
    Ok(items)
}

/// Puts a graph's nodes behind the items `before`, and answers the items that nothing in the graph
/// comes after.
fn inline(graph: &Graph, items: &mut Vec<Item>, parents: &mut Vec<Handle>, before: &[usize]) -> R<Vec<usize>> {
    let nodes = graph.sorted()?;
    // For each node the items that stand for "it has ended".
    let mut ends: HashMap<Handle, Vec<usize>> = HashMap::with_capacity(nodes.len());
    let mut has_follower: HashMap<Handle, bool> = HashMap::with_capacity(nodes.len());
    for node in &nodes {
        let edges = node.after();
        let mut after: Vec<usize> = Vec::new();
        for edge in &edges {
            has_follower.insert(edge.from, true);
            for end in ends.get(&edge.from).into_iter().flatten() {
                if !after.contains(end) {
                    after.push(*end);
                }
            }
        }
        if edges.is_empty() {
            after.extend_from_slice(before);
        }
        let end = inline_node(node, items, parents, after)?;
        ends.insert(node.handle, end);
        has_follower.entry(node.handle).or_insert(false);
    }
    let last = nodes.iter().filter(|node| !has_follower[&node.handle]);
    Ok(last.flat_map(|node| ends[&node.handle].iter().copied()).collect())
}

fn inline_node(node: &Node, items: &mut Vec<Item>, parents: &mut Vec<Handle>, after: Vec<usize>) -> R<Vec<usize>> {
    let body = node.body();
    let mut add = |body: Body, after: Vec<usize>, parents: &[Handle]| {
        items.push(Item {
            node: node.handle,
            parents: parents.to_vec(),
            body,
            after,
            enabled: true,
        });
        items.len() - 1
    };
    let runs = match &body {
        Body::Child(graph) => Some((graph.clone(), 1)),
        Body::Conditional(conditional) => conditional.chosen().map(|(graph, times)| (graph.clone(), times)),
        _ => return Ok(vec![add(body, after, parents)]),
    };
    // An item of its own that the graph inside comes after, so that an empty one still keeps its
    // place in the order.
    let mut ends = vec![add(Body::Work(StreamWork::Empty), after, parents)];
    if let Some((graph, times)) = runs {
        parents.push(node.handle);
        for _ in 0..times {
            let inner = inline(&graph, items, parents, &ends)?;
            if !inner.is_empty() {
                ends = inner;
            }
        }
        parents.pop();
    }
    Ok(ends)
}

impl Exec {
    /// Instantiates a graph.
    pub(crate) fn instantiate(graph: &Graph, flags: u64) -> R<Handle> {
        let items = flatten(graph)?;
        let plan = Plan::new(&items);
        let inner = Mutex::new(ExecState {
            items,
            plan,
            last: Seq::NONE,
            branches: HashMap::new(),
        });
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(EXECS.add(Exec {
            id,
            flags,
            inner,
            _users: graph.users(|users| users.clone()),
        }))
    }

    /// Changes what the item of a node does: `change` gets the body as it is.
    pub(crate) fn change(&self, node: Handle, kind: u32, change: impl FnOnce(&Body) -> R<Body>) -> R {
        let mut inner = lock(&self.inner);
        let item = inner
            .items
            .iter()
            .position(|item| item.node == node)
            .ok_or(Error::INVALID_VALUE)?;
        let new = change(&inner.items[item].body)?;
        if new.kind() != kind || inner.items[item].body.kind() != kind {
            return Err(Error::INVALID_VALUE);
        }
        // A loop's body stands in the list several times.
        for other in inner.items[item..].iter_mut().filter(|item| item.node == node) {
            other.body = new.clone();
        }
        Ok(())
    }

    /// Reads or sets whether a node runs.
    fn enabled(&self, node: Handle, set: Option<bool>) -> R<bool> {
        use crate::graph::model::kind::{KERNEL, MEMCPY, MEMSET};
        let mut inner = lock(&self.inner);
        let mut items = inner.items.iter_mut().filter(|item| item.node == node).peekable();
        let first = items.peek().ok_or(Error::INVALID_VALUE)?;
        if !matches!(first.body.kind(), KERNEL | MEMSET | MEMCPY) {
            return Err(Error::INVALID_VALUE);
        }
        let before = first.enabled;
        for item in items {
            item.enabled = set.unwrap_or(before);
        }
        Ok(before)
    }

    /// A graph of the same items, for a launch into a capture.
    pub(crate) fn as_graph(&self) -> R<Arc<Graph>> {
        let graph = Graph::create();
        let mut made: Vec<Handle> = Vec::new();
        for item in &lock(&self.inner).items {
            let after: Vec<Edge> = item.after.iter().map(|at| Edge::after(made[*at])).collect();
            made.push(graph.add(item.body.clone(), &after)?.handle);
        }
        Ok(graph)
    }
}

/// The instantiated graph and node that a change speaks of.
pub(crate) fn target(exec: Handle, node: Handle) -> R<(Arc<Exec>, Arc<Node>)> {
    Ok((EXECS.get(exec)?, NODES.get(node)?))
}
