// SPDX-License-Identifier: MIT OR Apache-2.0
//! The probes, in the order in which they run (most valuable first), and the roles of peers.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};

use crate::peer::Role;
use crate::probe::{Group, Probe};
use crate::{calibration, memory, movable, selftest};

/// All probes.
pub const PROBES: &[Probe] = &[
    // The benefit of weft depends most on this.
    calibration::switch::PROBE,
    calibration::context::PROBE,
    calibration::launch::PROBE,
    calibration::spacing::PROBE,
    calibration::event::PROBE,
    calibration::copy::PROBE,
    calibration::stream_write::PROBE,
    calibration::memset::PROBE,
    calibration::cupti::PROBE,
    calibration::switch::MPS_PROBE,
    // On managed memory, which may disturb a driver: after all the others.
    calibration::alloc::PROBE,
    calibration::prefetch::PROBE,
    calibration::fault::PROBE,
    calibration::managed::PROBE,
    memory::signatures::PROBE,
    memory::page_table::PROBE,
    memory::swap::PROBE,
    memory::discard::PROBE,
    memory::read_mostly::PROBE,
    movable::PROBE,
    selftest::GOOD,
    selftest::FAILS,
    selftest::CRASHES,
    selftest::HANGS,
];

/// The probes of a command, or the requested ones, in the order in which they are named.
pub fn chosen(group: Group, only: &[String]) -> Result<Vec<&'static Probe>> {
    let all: Vec<&Probe> = PROBES.iter().filter(|probe| probe.group == group).collect();
    if only.is_empty() {
        return Ok(all);
    }
    let mut named: Vec<&Probe> = Vec::new();
    for name in only {
        let probe = all.iter().find(|probe| probe.name == name).with_context(|| {
            let names: Vec<_> = all.iter().map(|probe| probe.name).collect();
            format!("no probe {name}; there are {}", names.join(", "))
        })?;
        if !named.iter().any(|before| before.name == probe.name) {
            named.push(probe);
        }
    }
    Ok(named)
}

/// The behaviour of a peer whose role is `name`.
pub fn role(name: &str) -> Result<Box<dyn Role>> {
    match name {
        "idle" => Ok(Box::new(calibration::context::Idle::default())),
        "stamps" => Ok(Box::new(calibration::switch::Stamps::default())),
        "swapper" => Ok(Box::new(memory::swap::Swapper::default())),
        _ => bail!("no role {name}"),
    }
}
