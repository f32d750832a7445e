// SPDX-License-Identifier: MIT OR Apache-2.0
//! Discards: whether memory with discarded contents leaves the device without a copy.

use anyhow::Result;

use super::{NO_LEDGER, Tools};
use crate::bench::ProbeBench;
use crate::driver::{BLOCK_BYTES, CudaError, Memory, MemoryLocation, Part};
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "discard",
    group: Group::Memory,
    about: "leaving the device: copied, discarded first, discarded and prefetched in one call",
    seconds: 30,
    run,
};

/// Memory that leaves.
const LARGE_BYTES: usize = 128 << 20;
/// Least memory for a measurement.
const MIN_BYTES: usize = 8 << 20;
/// Rounds.
const ROUNDS: usize = 6;

/// One way of leaving, for the given parts.
type Way<'a> = Box<dyn Fn(&[Part]) -> Result<(), CudaError> + 'a>;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let tools = Tools::new(bench)?;
    let stream = tools.stream;
    let memory = gpu.managed(LARGE_BYTES, MIN_BYTES)?;
    memory.populate(1);
    let parts = blocks(&memory);

    let out = |parts: &[Part]| {
        parts
            .iter()
            .try_for_each(|part| gpu.prefetch(*part, MemoryLocation::HOST, stream))
    };
    let ways: [(&str, Way<'_>); 4] = [
        ("out_copied", Box::new(out)),
        ("discard", Box::new(|parts| gpu.discard(parts, stream))),
        (
            "out_discarded",
            Box::new(move |parts| {
                gpu.discard(parts, stream)?;
                out(parts)
            }),
        ),
        (
            "out_discard_and_prefetch",
            Box::new(|parts| gpu.discard_and_prefetch(parts, MemoryLocation::HOST, stream)),
        ),
    ];
    for (name, way) in ways {
        let mut times = Vec::new();
        let done = bench.repeat(ROUNDS, |_| {
            tools.dirty(&memory)?;
            times.push(tools.timed(|| Ok(way(&parts)?))?);
            Ok(0.0)
        });
        match done {
            Err(error) if error.downcast_ref::<CudaError>().is_some_and(CudaError::is_lack) => {
                report.fact(name, false).and("reason", format!("{error:#}")).print();
                continue;
            }
            done => done?,
        };
        let mut line = report.samples(name, "ns", Clock::Device, &Samples::new(times));
        line = line.and("bytes", memory.bytes()).and("parts", parts.len());
        if gpu.is_simulated() {
            line = line.and("note", NO_LEDGER);
        }
        line.print();
    }
    Ok(())
}

fn blocks(memory: &Memory<'_>) -> Vec<Part> {
    (0..memory.bytes() / BLOCK_BYTES)
        .map(|block| memory.part(block * BLOCK_BYTES, BLOCK_BYTES))
        .collect()
}
