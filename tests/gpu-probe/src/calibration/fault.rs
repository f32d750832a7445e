// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page faults: cost of touching managed memory that is elsewhere, or nowhere.
//!
//! One thread touches one word after another and waits for each, so a fault's whole cost shows. The
//! driver's density prefetch is part of it.

use anyhow::Result;

use crate::bench::{ProbeBench, nanoseconds, rate};
use crate::driver::Memory;
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "fault",
    group: Group::Calibration,
    about: "first touches of managed memory by a kernel, per 4 KiB, 64 KiB and 2 MiB, and by the host",
    seconds: 40,
    run,
};

/// Memory that is touched.
const LARGE_BYTES: usize = 64 << 20;
/// Least memory for a measurement.
const MIN_BYTES: usize = 8 << 20;
/// Most touches in a kernel.
// At 100 us each that is a tenth of a second.
const MAX_TOUCHES: usize = 1024;
/// Rounds.
const ROUNDS: usize = 5;
/// Threads of a block of the sweeping kernel.
const BLOCK_THREADS: usize = 256;

/// Strides and their names.
const STRIDES: [(&str, usize); 3] = [("4k", 4 << 10), ("64k", 64 << 10), ("2m", 2 << 20)];

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (touch, sweep, stream, pair) = (
        gpu.kernel("gpu_probe_touch")?,
        gpu.kernel("gpu_probe_sweep")?,
        gpu.stream()?,
        bench.pair()?,
    );
    let touches = |memory: &Memory<'_>, stride: usize| (memory.bytes() / stride).clamp(1, MAX_TOUCHES);
    let touched = |memory: &Memory<'_>, stride: usize| -> Result<f64> {
        let count = touches(memory, stride);
        let time = pair.around(stream, || {
            Ok(gpu.launch(touch, 1, 1, &[memory.address(), stride as u64, count as u64], stream)?)
        })?;
        Ok(time / count as f64)
    };
    let note = |line: crate::report::ReportLine| match gpu.is_simulated() {
        true => line.and(
            "note",
            "the simulated device has no page ledger: managed memory is resident everywhere",
        ),
        false => line,
    };

    for (name, stride) in STRIDES {
        let memory = gpu.managed(LARGE_BYTES, MIN_BYTES)?;
        let count = touches(&memory, stride);
        let migrated = bench.repeat(ROUNDS, |_| {
            memory.populate(1);
            touched(&memory, stride)
        })?;
        let line = report.samples(&format!("migrate_{name}"), "ns", Clock::Device, &migrated);
        note(line.and("touches", count)).print();
        let resident = bench.repeat(ROUNDS, |_| touched(&memory, stride))?;
        let line = report.samples(&format!("resident_{name}"), "ns", Clock::Device, &resident);
        line.and("touches", count).print();
        drop(memory);
        let first = bench.repeat(ROUNDS, |_| {
            let memory = gpu.managed(LARGE_BYTES, MIN_BYTES)?;
            touched(&memory, stride)
        })?;
        let line = report.samples(&format!("first_touch_{name}"), "ns", Clock::Device, &first);
        note(line.and("touches", count)).print();
    }

    let memory = gpu.managed(LARGE_BYTES, MIN_BYTES)?;
    let words = memory.bytes() / 4;
    let blocks = (words / 4 / BLOCK_THREADS).max(1) as u32;
    let pulled = bench.repeat(ROUNDS, |_| {
        memory.populate(1);
        pair.around(stream, || {
            Ok(gpu.launch(
                sweep,
                blocks,
                BLOCK_THREADS as u32,
                &[memory.address(), words as u64],
                stream,
            )?)
        })
    })?;
    let line = report.samples(
        "bandwidth",
        "bytes/us",
        Clock::Device,
        &pulled.map(|ns| rate(memory.bytes(), ns)),
    );
    note(line.and("bytes", memory.bytes())).print();

    // The reverse: the host touches pages that a kernel wrote.
    let mut back = Vec::new();
    bench.repeat(ROUNDS, |_| {
        gpu.launch(
            sweep,
            blocks,
            BLOCK_THREADS as u32,
            &[memory.address(), words as u64],
            stream,
        )?;
        gpu.wait(stream)?;
        let begin = std::time::Instant::now();
        memory.populate(2);
        back.push(rate(memory.bytes(), nanoseconds(begin.elapsed())));
        Ok(0.0)
    })?;
    let line = report.samples("host_bandwidth", "bytes/us", Clock::Host, &Samples::new(back));
    note(line.and("bytes", memory.bytes())).print();
    Ok(())
}
