//! A probe: one measurement.
#![forbid(unsafe_code)]

use anyhow::Result;

use crate::bench::ProbeBench;

/// Which command runs a probe.
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

/// One measurement. It runs in a process of its own: what it does to the driver reaches no other.
pub struct Probe {
    /// Its name, also what its lines say under `probe`.
    pub name: &'static str,
    /// Which command runs it.
    pub group: Group,
    /// What it measures.
    pub about: &'static str,
    /// The most seconds it may take. Its process is ended then.
    pub seconds: u64,
    /// The measurement.
    pub run: fn(&ProbeBench) -> Result<()>,
}
