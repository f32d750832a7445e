//! weft's own readers of priorities, amounts and slowdowns: the files themselves.
//!
//! The package that they are in brings some forty others, too many for what every command of Slurm
//! loads.
#![allow(dead_code)]

/// Number of priorities.
pub const PRIORITIES: usize = 10;

#[path = "../../../../broker/protocol/src/amount.rs"]
pub mod amount;
#[path = "../../../../broker/protocol/src/priority.rs"]
pub mod priority;
#[path = "../../../../broker/protocol/src/slowdown.rs"]
pub mod slowdown;
