// SPDX-License-Identifier: MIT OR Apache-2.0
//! Edges: the nodes that a node of a graph comes after.
#![forbid(unsafe_code)]

use crate::abi::Handle;

/// `CUgraphEdgeData`: kept and handed back; all edges order alike here, since kernels have one
/// moment of completion.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EdgeData {
    pub(crate) from_port: u8,
    pub(crate) to_port: u8,
    pub(crate) kind: u8,
    pub(crate) reserved: [u8; 5],
}

/// The earlier end of an edge, as its later node keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) from: Handle,
    pub(crate) data: EdgeData,
}

impl Edge {
    /// An ordinary edge.
    pub(crate) fn after(from: Handle) -> Edge {
        Edge {
            from,
            data: EdgeData::default(),
        }
    }
}

/// Adds edges that are not there yet.
pub(crate) fn join(edges: &mut Vec<Edge>, more: &[Edge]) {
    for edge in more {
        if !edges.contains(edge) {
            edges.push(*edge);
        }
    }
}
