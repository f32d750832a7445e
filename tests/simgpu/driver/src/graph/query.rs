// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asking graphs what is in them.
//!
//! Lists follow one rule. With a null array, only the count is answered. With an array, up to the
//! given count is written, the rest of the array is set to null, and the count becomes the number
//! of entries that were written.
#![deny(unsafe_code)]

use crate::abi::{Error, Handle, In, Out, R};
use crate::capture::edge::{Edge, EdgeData};
use crate::export::export;
use crate::graph::dot;
use crate::graph::model::{GRAPHS, Graph, NODES};

/// Answers a list of handles.
fn list(out: Out<Handle>, count: Out<usize>, handles: &[Handle]) -> R {
    if out.is_null() {
        return count.set(handles.len());
    }
    let room = count.get()?;
    for at in 0..room {
        out.set_at(at, handles.get(at).copied().unwrap_or(0))?;
    }
    count.set(handles.len().min(room))
}

/// Answers edges as two lists of handles, with their data if there is room for it.
fn edge_lists(
    firsts: Out<Handle>,
    seconds: Out<Handle>,
    data: Out<EdgeData>,
    count: Out<usize>,
    edges: &[(Handle, Handle, EdgeData)],
) -> R {
    if firsts.is_null() && seconds.is_null() {
        return count.set(edges.len());
    }
    let room = count.get()?;
    for at in 0..room {
        let (first, second, edge) = edges.get(at).copied().unwrap_or_default();
        if !firsts.is_null() {
            firsts.set_at(at, first)?;
        }
        if !seconds.is_null() {
            seconds.set_at(at, second)?;
        }
        if !data.is_null() {
            data.set_at(at, edge)?;
        }
    }
    count.set(edges.len().min(room))
}

/// Every edge of a graph as (from, to, data).
pub(crate) fn all_edges(graph: &Graph) -> Vec<(Handle, Handle, EdgeData)> {
    let nodes = graph.nodes();
    nodes
        .iter()
        .flat_map(|node| node.after().into_iter().map(|edge| (edge.from, node.handle, edge.data)))
        .collect()
}

fn dependencies(node: Handle, out: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) -> R {
    let edges = NODES.get(node)?.after();
    let edges: Vec<_> = edges.iter().map(|Edge { from, data }| (*from, node, *data)).collect();
    edge_lists(out, Out::null(), data, count, &edges)
}

fn dependents(node: Handle, out: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) -> R {
    let graph = GRAPHS.get(NODES.get(node)?.graph)?;
    let mut edges = all_edges(&graph);
    edges.retain(|(from, ..)| *from == node);
    edge_lists(Out::null(), out, data, count, &edges)
}

export! {
    fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let all: Vec<Handle> = GRAPHS.get(graph)?.nodes().iter().map(|node| node.handle).collect();
        list(nodes, count, &all)
    }

    fn cuGraphGetRootNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) {
        let all = GRAPHS.get(graph)?.nodes();
        let roots: Vec<Handle> = all.iter().filter(|node| node.after().is_empty()).map(|node| node.handle).collect();
        list(nodes, count, &roots)
    }

    fn cuGraphGetEdges(graph: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>) {
        edge_lists(from, to, Out::null(), count, &all_edges(&*GRAPHS.get(graph)?))
    }

    fn cuGraphGetEdges_v2(graph: Handle, from: Out<Handle>, to: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) {
        edge_lists(from, to, data, count, &all_edges(&*GRAPHS.get(graph)?))
    }

    fn cuGraphNodeGetDependencies(node: Handle, nodes: Out<Handle>, count: Out<usize>) {
        dependencies(node, nodes, Out::null(), count)
    }

    fn cuGraphNodeGetDependencies_v2(node: Handle, nodes: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) {
        dependencies(node, nodes, data, count)
    }

    fn cuGraphNodeGetDependentNodes(node: Handle, nodes: Out<Handle>, count: Out<usize>) {
        dependents(node, nodes, Out::null(), count)
    }

    fn cuGraphNodeGetDependentNodes_v2(node: Handle, nodes: Out<Handle>, data: Out<EdgeData>, count: Out<usize>) {
        dependents(node, nodes, data, count)
    }

    fn cuGraphNodeGetType(node: Handle, kind: Out<u32>) {
        kind.set(NODES.get(node)?.body().kind())
    }

    fn cuGraphNodeGetContainingGraph(node: Handle, graph: Out<Handle>) {
        graph.set(NODES.get(node)?.graph)
    }

    fn cuGraphNodeGetLocalId(node: Handle, id: Out<u32>) {
        id.set(NODES.get(node)?.number)
    }

    fn cuGraphGetId(graph: Handle, id: Out<u32>) {
        id.set(GRAPHS.get(graph)?.id)
    }

    fn cuGraphDebugDotPrint(graph: Handle, path: In<u8>, flags: u32) {
        let _ = flags;
        let text = dot::text(&*GRAPHS.get(graph)?);
        std::fs::write(path.text()?, text).map_err(|_| Error::OPERATING_SYSTEM)
    }
}
