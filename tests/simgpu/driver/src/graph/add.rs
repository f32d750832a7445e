// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds nodes to graphs for the client.
#![deny(unsafe_code)]

use crate::abi::{Error, Handle, In, Out, R};
use crate::capture::edge::{Edge, EdgeData};
use crate::graph::model::{Body, GRAPHS};

/// The client's list of earlier nodes.
pub(crate) fn edges(nodes: In<Handle>, data: In<EdgeData>, count: usize) -> R<Vec<Edge>> {
    let edge = |at: usize| {
        let data = if data.is_null() {
            EdgeData::default()
        } else {
            data.at(at).get()?
        };
        Ok(Edge {
            from: nodes.at(at).get()?,
            data,
        })
    };
    (0..count).map(edge).collect()
}

/// Adds the node that `body` makes and answers its handle.
pub(crate) fn added(node: Out<Handle>, graph: Handle, after: &[Edge], body: impl FnOnce() -> R<Body>) -> R {
    let graph = GRAPHS.get(graph)?;
    if node.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    node.set(graph.add(body()?, after)?.handle)
}
