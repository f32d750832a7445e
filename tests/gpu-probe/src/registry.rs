//! The probes, in the order in which they run (most valuable first), and the roles of peers.
#![forbid(unsafe_code)]

use anyhow::{Result, bail};

use crate::peer::Role;
use crate::probe::{Group, Probe};
use crate::{calibration, memory, selftest};

/// All probes.
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

/// What a peer does whose role is `name`.
pub fn role(name: &str) -> Result<Box<dyn Role>> {
    match name {
        "idle" => Ok(Box::new(calibration::context::Idle::default())),
        "stamps" => Ok(Box::new(calibration::switch::Stamps::default())),
        "swapper" => Ok(Box::new(memory::swap::Swapper::default())),
        _ => bail!("no role {name}"),
    }
}
