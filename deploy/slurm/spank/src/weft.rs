// SPDX-License-Identifier: MIT OR Apache-2.0
//! weft's own parsers of priorities, amounts and slowdowns, included by file.
//!
//! Their package depends on some forty others, too many for a plugin that every Slurm command
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
