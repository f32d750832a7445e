//! Graphs: recorded from streams (capture), built node by node, instantiated, changed and launched.
//!
//! | where | what |
//! |---|---|
//! | `model.rs`, `body.rs` | a graph as a value: nodes, edges, what each node does |
//! | `capture/` | recording streams; what is forbidden meanwhile |
//! | `exec/` | instantiated graphs: flattening, launching, changing |
//! | `create.rs`, `query.rs`, `dot.rs` | making graphs, asking them, printing them |
//! | `nodes/` | the entry points of each kind of node |
//! | `memory.rs`, `conditional.rs`, `user_object.rs` | allocation nodes, conditional nodes, the client's own objects |
//!
//! The rest of the driver meets this module in few places:
//!
//! | when | call |
//! |---|---|
//! | an operation, event record or wait on a stream that [`crate::stream::Stream::is_capturing`] | `capture_work`, `capture_record`, `capture_wait` |
//! | stream-ordered allocation there | `capture_alloc`, `capture_free` |
//! | any free | `ends`: a graph's memory stays the graph's |
//! | the client waits for, or queries, a stream or a context | `may_synchronize`, `may_synchronize_context` |
//! | anything else that may synchronise by itself | `may_query` |
//! | the legacy default stream is used | `may_use_legacy` |
//!
//! Each of the `may_` calls answers what CUDA answers while a capture is going on, and spoils that
//! capture as CUDA does; with no capture anywhere in the process they are one atomic load.
//!
//! What holds: a graph's nodes are copies of what was asked (parameters included), so the client
//! may reuse its memory at once. A launched graph is a set of ordinary operations on the launching
//! stream and on hidden ones, between the stream's earlier work and its later work.
#![deny(unsafe_code)]

mod body;
mod capture;
mod conditional;
mod create;
mod dot;
mod exec;
mod memory;
mod model;
mod nodes;
mod query;
mod user_object;

use crate::abi::{Error, Handle, In, Out, R};
use body::Body;
use model::{Edge, EdgeData, GRAPHS};

pub(crate) use capture::rules::{may_query, may_synchronize, may_synchronize_context, may_use_legacy};
pub(crate) use capture::{CaptureSlot, CapturedEvent, capture_record, capture_wait, capture_work, stream_destroyed};
pub(crate) use memory::{capture_alloc, capture_free, ends};

/// The client's list of earlier nodes.
fn edges(nodes: In<Handle>, data: In<EdgeData>, count: usize) -> R<Vec<Edge>> {
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
fn added(node: Out<Handle>, graph: Handle, after: &[Edge], body: impl FnOnce() -> R<Body>) -> R {
    let graph = GRAPHS.get(graph)?;
    if node.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    node.set(graph.add(body()?, after)?.handle)
}
