// SPDX-License-Identifier: MIT OR Apache-2.0
//! Read-mostly memory, which keeps its copy on the host: whether it leaves the device without a
//! copy, and by which calls.
//!
//! Prefetches of such memory are documented to create copies, so one to the host should free
//! nothing on the device. Ending the advice is documented to collapse the copies into the one at
//! the preferred location. Two independent measurements judge each way: free device memory before
//! and after, and whether a prefetch to the device has to copy again.

use std::time::Instant;

use anyhow::Result;

use super::{NO_LEDGER, Tools};
use crate::bench::ProbeBench;
use crate::driver::MemoryLocation;
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "read-mostly",
    group: Group::Memory,
    about: "memory advised as mostly read: coming, leaving, coming again, and what a write costs then",
    seconds: 30,
    run,
};

/// Memory that moves.
const LARGE_BYTES: usize = 128 << 20;
/// Least memory for a measurement.
const MIN_BYTES: usize = 8 << 20;
/// Rounds.
const ROUNDS: usize = 6;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let tools = Tools::new(bench)?;
    for (advised, name) in [(false, "plain"), (true, "read_mostly")] {
        let memory = gpu.managed(LARGE_BYTES, MIN_BYTES)?;
        memory.populate(1);
        if advised {
            gpu.read_mostly(memory.whole(), true)?;
        }
        let (mut first, mut leaving, mut again, mut writing) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        bench.repeat(ROUNDS, |_| {
            first.push(tools.prefetch(memory.whole(), MemoryLocation::DEVICE)?);
            leaving.push(tools.prefetch(memory.whole(), MemoryLocation::HOST)?);
            again.push(tools.prefetch(memory.whole(), MemoryLocation::DEVICE)?);
            // A write ends the duplication: the pages are now only on the device.
            writing.push(tools.sweep(memory.whole())?);
            tools.prefetch(memory.whole(), MemoryLocation::HOST)?;
            memory.populate(2);
            Ok(0.0)
        })?;
        for (what, times) in [
            ("coming", first),
            ("leaving", leaving),
            ("again", again),
            ("writing", writing),
        ] {
            let times = Samples::new(times);
            let mut line = report.samples(&format!("{name}_{what}"), "ns", Clock::Device, &times);
            line = line.and("bytes", memory.bytes());
            if gpu.is_simulated() {
                line = line.and("note", NO_LEDGER);
            }
            line.print();
        }
    }
    ways_out(bench, &tools)
}

/// Ways for memory that is on both the device and the host to leave the device.
#[derive(Clone, Copy)]
enum ChangeWay {
    /// It stays: the measurements of memory that does not leave.
    Stay,
    /// A prefetch to the host.
    Prefetch,
    /// Ends the advice while the device is the preferred location.
    CollapseToDevice,
    /// Ends the advice while the host is preferred, then prefetches to the host, as weft does.
    CollapseToHost,
}

fn ways_out(bench: &ProbeBench, tools: &Tools<'_>) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let ways = [
        ("stay", ChangeWay::Stay, false),
        ("prefetch_to_host", ChangeWay::Prefetch, false),
        ("collapse_to_device", ChangeWay::CollapseToDevice, false),
        ("collapse_to_host", ChangeWay::CollapseToHost, false),
        // Only on the device, because it was written there: leaving the first time takes a copy.
        ("collapse_to_host_written", ChangeWay::CollapseToHost, true),
    ];
    for (name, way, written) in ways {
        let memory = gpu.managed(LARGE_BYTES, MIN_BYTES)?;
        let all = memory.whole();
        let place = match way {
            ChangeWay::CollapseToHost => MemoryLocation::HOST,
            _ => MemoryLocation::DEVICE,
        };
        let (mut freed, mut advice, mut leaving, mut again) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        bench.repeat(ROUNDS, |_| {
            memory.populate(1);
            if written {
                tools.dirty(&memory)?;
            }
            gpu.read_mostly(all, true)?;
            gpu.prefer(all, place)?;
            if !written {
                tools.prefetch(all, MemoryLocation::DEVICE)?;
            }
            let before = gpu.free_memory()?;
            let begun = Instant::now();
            if matches!(way, ChangeWay::CollapseToDevice | ChangeWay::CollapseToHost) {
                gpu.read_mostly(all, false)?;
            }
            advice.push(begun.elapsed().as_nanos() as f64);
            if matches!(way, ChangeWay::Prefetch | ChangeWay::CollapseToHost) {
                leaving.push(tools.prefetch(all, MemoryLocation::HOST)?);
            }
            gpu.wait(tools.stream)?;
            let after = gpu.free_memory()?;
            freed.push(after.saturating_sub(before) as f64 / memory.bytes() as f64);
            gpu.read_mostly(all, true)?;
            again.push(tools.prefetch(all, MemoryLocation::DEVICE)?);
            // For the next round it is only on the host.
            gpu.read_mostly(all, false)?;
            tools.prefetch(all, MemoryLocation::HOST)?;
            Ok(0.0)
        })?;
        for (what, unit, clock, values) in [
            ("freed", "share", Clock::None, freed),
            ("advice", "ns", Clock::Host, advice),
            ("leaving", "ns", Clock::Device, leaving),
            ("again", "ns", Clock::Device, again),
        ] {
            if values.is_empty() {
                continue;
            }
            let line = report.samples(&format!("{name}_{what}"), unit, clock, &Samples::new(values));
            line.and("bytes", memory.bytes()).print();
        }
    }
    Ok(())
}
