// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making graphs, the edges in them, and the objects that they hold: conditional values, the
//! client's objects.
#![deny(unsafe_code)]

use crate::abi::{Error, Handle, In, Out, R};
use crate::capture::edge::EdgeData;
use crate::export::export;
use crate::graph::add::{added, edges};
use crate::graph::conditional::{ConditionalValue, VALUES};
use crate::graph::model::{Body, GRAPHS, Graph, NODES};
use crate::graph::user_object::{OBJECTS, release};
use crate::state;
use crate::work::StreamWork;

/// Runs `each` on `count` edges.
fn each_edge(
    from: In<Handle>,
    to: In<Handle>,
    data: In<EdgeData>,
    count: usize,
    mut each: impl FnMut(Handle, Handle, Option<EdgeData>) -> R,
) -> R {
    for at in 0..count {
        let data = if data.is_null() { None } else { Some(data.at(at).get()?) };
        each(from.at(at).get()?, to.at(at).get()?, data)?;
    }
    Ok(())
}

fn connect(graph: Handle, from: In<Handle>, to: In<Handle>, data: In<EdgeData>, count: usize) -> R {
    let graph = GRAPHS.get(graph)?;
    each_edge(from, to, data, count, |from, to, data| {
        graph.connect(from, to, data.unwrap_or_default())
    })
}

fn disconnect(graph: Handle, from: In<Handle>, to: In<Handle>, data: In<EdgeData>, count: usize) -> R {
    let graph = GRAPHS.get(graph)?;
    each_edge(from, to, data, count, |from, to, data| graph.disconnect(from, to, data))
}

/// `CU_GRAPH_USER_OBJECT_MOVE`: the caller's references become the graph's.
const MOVE: u32 = 1;
/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: u32 = 1;

export! {
    fn cuGraphCreate(graph: Out<Handle>, flags: u32) {
        state::driver()?;
        if flags != 0 || graph.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        graph.set(Graph::create().handle)
    }

    fn cuGraphDestroy(graph: Handle) {
        GRAPHS.get(graph)?.destroy()
    }

    fn cuGraphClone(clone: Out<Handle>, graph: Handle) {
        if clone.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        clone.set(GRAPHS.get(graph)?.clone_graph()?.handle)
    }

    fn cuGraphNodeFindInClone(node: Out<Handle>, original: Handle, clone: Handle) {
        let clone = GRAPHS.get(clone)?;
        let nodes = clone.nodes();
        let found = nodes.iter().find(|copy| copy.origin == original && original != 0);
        node.set(found.ok_or(Error::INVALID_VALUE)?.handle)
    }

    fn cuGraphDestroyNode(node: Handle) {
        let node = NODES.get(node)?;
        // A node of a child graph's copy is not the client's to take away; the copy is refused like
        // any other mistake.
        GRAPHS.get(node.graph)?.remove(&node)
    }

    fn cuGraphAddEmptyNode(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize) {
        added(node, graph, &edges(after, In::null(), count)?, || Ok(Body::Work(StreamWork::Empty)))
    }

    fn cuGraphAddDependencies(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) {
        connect(graph, from, to, In::null(), count)
    }

    fn cuGraphAddDependencies_v2(graph: Handle, from: In<Handle>, to: In<Handle>, data: In<EdgeData>, count: usize) {
        connect(graph, from, to, data, count)
    }

    fn cuGraphRemoveDependencies(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) {
        disconnect(graph, from, to, In::null(), count)
    }

    fn cuGraphRemoveDependencies_v2(graph: Handle, from: In<Handle>, to: In<Handle>, data: In<EdgeData>, count: usize) {
        disconnect(graph, from, to, data, count)
    }

    fn cuGraphConditionalHandleCreate(value: Out<u64>, graph: Handle, context: Handle, default: u32, flags: u32) {
        let _ = context;
        state::driver()?;
        GRAPHS.get(graph)?;
        if flags & !ASSIGN_DEFAULT != 0 || value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let at_launch = if flags & ASSIGN_DEFAULT != 0 { default } else { 0 };
        value.set(VALUES.add(ConditionalValue { at_launch }) as u64)
    }

    fn cuGraphRetainUserObject(graph: Handle, object: Handle, count: u32, flags: u32) {
        let graph = GRAPHS.get(graph)?;
        OBJECTS.get(object)?;
        if flags & !MOVE != 0 || count == 0 {
            return Err(Error::INVALID_VALUE);
        }
        graph.users(|users| users.add(object, count, flags & MOVE != 0))
    }

    fn cuGraphReleaseUserObject(graph: Handle, object: Handle, count: u32) {
        let graph = GRAPHS.get(graph)?;
        graph.users(|users| users.remove(object, count))?;
        // The destructor may call the driver: not under the graph's lock.
        release(object, count)
    }
}
