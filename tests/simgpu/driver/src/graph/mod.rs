// SPDX-License-Identifier: MIT OR Apache-2.0
//! Graphs: recorded from streams (capture), built node by node, instantiated, changed and launched.
//!
//! | where | what |
//! |---|---|
//! | `model.rs` | a graph as a value: nodes, edges, what each node does |
//! | `add.rs` | a client's new nodes |
//! | `capture/` | recording streams |
//! | `exec/` | instantiated graphs: flattening, launching, changing |
//! | `create.rs`, `query.rs`, `dot.rs` | making graphs, asking them, printing them |
//! | `nodes/` | the entry points of each kind of node |
//! | `allocation.rs`, `memory.rs` | the memory of allocation nodes; their entry points |
//! | `conditional.rs` | which body a conditional node chooses |
//! | `user_object.rs` | the client's own objects |
//!
//! Only `api/` uses this module: work on a capturing stream goes to `capture` and `memory`.
//!
//! Invariants: a graph's nodes are copies of the client's arguments (parameters included), so the
//! client may reuse its memory at once. A launched graph is a set of ordinary operations on the
//! launching stream and on hidden ones, between the stream's earlier work and its later work.
#![deny(unsafe_code)]

mod add;
mod allocation;
pub(crate) mod capture;
mod conditional;
mod create;
mod dot;
mod exec;
pub(crate) mod memory;
mod model;
mod nodes;
mod query;
mod user_object;
