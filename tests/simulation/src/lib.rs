// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deterministic simulation: the broker's real scheduler among processes that come, die, stall,
//! lie, fork and change priority at any event, with clocks that jump.
//!
//! A run is a seed. The scheduler is the daemon's own (`weft_daemon::test_driver`), on real shared
//! memory: the core, the reading of lanes, the carrying out of decisions, the waiting. Only its
//! clock and its thread belong to the world. Clients follow the interposer's steps, and use its own
//! code for decisions: `weft_gate` and the credit word. `check` holds the invariants.
//!
//! | module | content |
//! |---|---|
//! | `scenario` | the scenario of a seed, and the reduction of a failing one |
//! | `world` | virtual time, troubles, the broker's turns |
//! | `process`, `thread`, `device` | clients and their kernels |
//! | `lies` | the writes of a lying client |
//! | `check` | the invariants |
//! | `campaign` | many seeds |
//!
//! Not covered are orders of single memory accesses (`tests/memory-model` covers them), and the
//! rest of the interposer (its tests and `tests/clients` cover it). Nor is it judged whether a
//! schedule is *good* (the lab does that).
#![forbid(unsafe_code)]

pub mod campaign;
mod chance;
mod check;
mod clock;
mod device;
mod lies;
mod process;
#[cfg(test)]
mod sabotage;
mod scenario;
mod thread;
mod world;

pub use check::Broken;
pub use scenario::{FaultScenario, SHORT_OF_ROOM};
pub use world::{Manner, RunOutcome, run};
