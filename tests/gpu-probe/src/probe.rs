// SPDX-License-Identifier: MIT OR Apache-2.0
//! A probe: one measurement.
#![forbid(unsafe_code)]

use anyhow::Result;

use crate::bench::ProbeBench;

/// The command that runs a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// `weft-gpu-probe calibration`
    Calibration,
    /// `weft-gpu-probe memory`
    Memory,
    /// `weft-gpu-probe movable`
    Movable,
    /// `weft-gpu-probe selftest`
    Selftest,
}

/// One measurement. It runs in a process of its own: its effects on the driver reach no other
/// probe.
pub struct Probe {
    /// Its name, also the value of `probe` in its lines.
    pub name: &'static str,
    /// The command that runs it.
    pub group: Group,
    /// The measured quantities.
    pub about: &'static str,
    /// The most seconds it may take. After that its process is ended.
    pub seconds: u64,
    /// The measurement.
    pub run: fn(&ProbeBench) -> Result<()>,
}
