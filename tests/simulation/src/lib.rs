//! Deterministic simulation: the broker's real scheduler among processes that come, die, stall,
//! lie, fork and change priority at any event, with clocks that jump.
//!
//! A run is a seed. The scheduler is the daemon's own (`weft_daemon::test_driver`): its core,
//! its way of reading lanes as allegations, its way of carrying out decisions and of waiting, on
//! real shared memory; only its clock and its thread are the world's. Clients are written after the
//! interposer, on the same memory and with the same code at the credit word. `check` says what must
//! hold, and when it is looked at.
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
//! What it cannot see: orders of single memory accesses (`tests/memory-model` does, exhaustively,
//! on the same files), the real interposer's own code beyond the credit word (its tests and
//! `tests/clients` do), and whether a schedule is *good* (the lab does).
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
