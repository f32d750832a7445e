// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory beyond the device in virtual time: jobs that together exceed it, under the stock driver,
//! weft, weft without each of its ideas, and others.
//!
//! | file | what |
//! |---|---|
//! | `workload.rs` | jobs and what their kernels touch |
//! | `contender.rs` | what is compared |
//! | `machine.rs` | turns, kernels, the page ledger of the simulated GPU, the broker's own planner |
//! | `machine/service.rs` | the same with a service that somebody waits for, beside a batch job |
//! | `priority.rs` | which runs are made of that, and what is to be reached |
//! | `study.rs` | which runs are made, and how long turns are |
//! | `aims.rs` | what is to be reached |
//! | `bound.rs` | what no planner exceeds |
//! | `whole_jobs/` | whole jobs in turns of seconds, by eviction |
//! | `report.rs` | tables |
//! | `command.rs` | `weft-lab memory` |
//! | `operands.rs` | what a framework says of its operations: it makes guesses of the simulated GPU exact |
//! | `prediction.rs` | `weft-lab memory prediction`: how good templates are on recorded launches |
//!
//! Invariants: all contenders get the same jobs; the planner is the broker's, never a copy.
#![forbid(unsafe_code)]

pub mod aims;
pub mod bound;
pub mod command;
pub mod contender;
pub mod machine;
pub mod operands;
pub mod prediction;
pub mod priority;
pub mod report;
pub mod study;
#[cfg(test)]
mod tests;
pub mod whole_jobs;
pub mod workload;
