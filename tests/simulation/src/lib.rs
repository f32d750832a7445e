//! Deterministic simulation: the broker's real scheduler among processes that come, die, stall,
//! lie, fork and change priority at any event, with clocks that jump.
//!
//! A run is a seed. The scheduler is the daemon's own (`weft_daemon::test_driver`), on real shared
//! memory: the core, the reading of lanes, the carrying out of decisions, the waiting. Only its
//! clock and its thread are the world's. Clients follow the interposer's steps, with its own code
//! where it decides: `weft_gate` and the credit word. `check` says what must hold.
//!
//! | module | holds |
//! |---|---|
//! | `scenario` | what a seed means, and how a failing one is made smaller |
//! | `world` | virtual time, troubles, the broker's turns |
//! | `process`, `thread`, `device` | clients and their kernels |
//! | `lies` | what a lying client writes |
//! | `check` | the invariants |
//! | `campaign` | many seeds |
//!
//! What it cannot see: orders of single memory accesses (`tests/memory-model` does), the rest of
//! the interposer (its tests and `tests/clients` do), and whether a schedule is *good* (the lab
//! does).
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
