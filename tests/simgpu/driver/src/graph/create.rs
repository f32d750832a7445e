//! Making graphs, and the edges in them.
#![deny(unsafe_code)]

use crate::abi::{Error, Handle, In, Out, R};
use crate::export::export;
use crate::graph::body::Body;
use crate::graph::model::{EdgeData, GRAPHS, Graph, NODES};
use crate::graph::{added, edges};
use crate::state;
use crate::work::Work;

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
        added(node, graph, &edges(after, In::null(), count)?, || Ok(Body::Work(Work::Empty)))
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
}
