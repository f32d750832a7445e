//! weft's own parsers of priorities, amounts and slowdowns: the files themselves.
//!
//! Their package depends on some forty others. That is too many for code that every command of
//! Slurm loads.
#![allow(dead_code)]

/// Number of priorities.
pub const PRIORITIES: usize = 10;

#[path = "../../../../broker/protocol/src/amount.rs"]
pub mod amount;
#[path = "../../../../broker/protocol/src/priority.rs"]
pub mod priority;
#[path = "../../../../broker/protocol/src/slowdown.rs"]
pub mod slowdown;
