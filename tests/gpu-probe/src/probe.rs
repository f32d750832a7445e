//! The list of probes, in the order in which they run: most valuable first.
#![forbid(unsafe_code)]

use anyhow::Result;

use crate::bench::Bench;
use crate::{calibration, memory, selftest};

/// Which command runs a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// `weft-gpu-probe calibration`
    Calibration,
    /// `weft-gpu-probe memory`
    Memory,
    /// `weft-gpu-probe selftest`
    Selftest,
}

/// One probe: runs in a process of its own, so that nothing it does to the driver reaches another
/// one.
pub struct Probe {
    /// How it is called, and what its lines say under `probe`.
    pub name: &'static str,
    /// Which command runs it.
    pub group: Group,
    /// What it measures.
    pub about: &'static str,
    /// The most seconds it may take; its process is ended then.
    pub seconds: u64,
    /// What it does.
    pub run: fn(&Bench) -> Result<()>,
}

/// All of them.
pub const PROBES: &[Probe] = &[
    calibration::context::PROBE,
    calibration::launch::PROBE,
    calibration::spacing::PROBE,
    calibration::event::PROBE,
    calibration::copy::PROBE,
    calibration::switch::PROBE,
    calibration::stream_write::PROBE,
    calibration::memset::PROBE,
    calibration::cupti::PROBE,
    calibration::switch::MPS_PROBE,
    // On managed memory, which a driver may take amiss: after all the others.
    calibration::alloc::PROBE,
    calibration::prefetch::PROBE,
    calibration::fault::PROBE,
    calibration::managed::PROBE,
    memory::signatures::PROBE,
    memory::page_table::PROBE,
    memory::swap::PROBE,
    memory::discard::PROBE,
    memory::read_mostly::PROBE,
    selftest::GOOD,
    selftest::FAILS,
    selftest::CRASHES,
    selftest::HANGS,
];

/// The probes of a command, or those that are asked for.
pub fn chosen(group: Group, only: &[String]) -> Result<Vec<&'static Probe>> {
    let all: Vec<&Probe> = PROBES.iter().filter(|probe| probe.group == group).collect();
    for name in only {
        anyhow::ensure!(
            all.iter().any(|probe| probe.name == name),
            "no probe {name}; there are {}",
            all.iter().map(|probe| probe.name).collect::<Vec<_>>().join(", ")
        );
    }
    Ok(all
        .into_iter()
        .filter(|probe| only.is_empty() || only.iter().any(|name| name == probe.name))
        .collect())
}
