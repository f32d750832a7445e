// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft-gpu-probe`: measures a GPU through its driver, to calibrate the simulated GPU.
//!
//! | file | what |
//! |---|---|
//! | `registry.rs` | the probes in their order, and the roles of their further processes |
//! | `run.rs`, `peer.rs`, `process.rs` | each probe in a process of its own, within its time; its peers |
//! | `calibration/`, `memory/`, `movable.rs` | the probes; `probe.rs`: what one is |
//! | `driver/` | the driver's functions, the device, allocations, the kernels |
//! | `bench.rs`, `report.rs`, `host.rs` | measuring, JSON lines, the host's side |
//!
//! Invariants: no device setting is changed, memory is bounded by the free memory
//! (`driver/memory.rs`), every wait has a bound.

mod bench;
mod calibration;
mod cli;
mod driver;
mod host;
mod memory;
mod movable;
mod peer;
mod probe;
mod process;
mod registry;
mod report;
mod run;
mod selftest;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
