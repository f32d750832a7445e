// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resident managed memory compared with a plain allocation: one kernel that reads and writes.

use anyhow::Result;

use crate::bench::{ProbeBench, rate};
use crate::driver::{Memory, MemoryLocation};
use crate::probe::{Group, Probe};
use crate::report::Clock;

/// The probe.
pub const PROBE: Probe = Probe {
    name: "managed",
    group: Group::Calibration,
    about: "a kernel on resident managed memory against the same on a plain allocation",
    seconds: 20,
    run,
};

/// Far beyond any cache of a device.
const LARGE_BYTES: usize = 256 << 20;
/// Least memory for a measurement.
const MIN_BYTES: usize = 8 << 20;
/// Threads of a block.
const BLOCK_THREADS: usize = 256;
/// Bytes that a thread reads and writes.
const BYTES_A_THREAD: usize = 16;
/// Rounds.
const ROUNDS: usize = 20;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` and
/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
const MULTIPROCESSORS: i32 = 16;
const THREADS: i32 = 39;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (empty, sweep, stream, pair) = (
        gpu.kernel("gpu_probe_empty")?,
        gpu.kernel("gpu_probe_sweep")?,
        gpu.stream()?,
        bench.pair()?,
    );
    let managed = gpu.managed(LARGE_BYTES, MIN_BYTES)?;
    let plain = gpu.plain(managed.bytes(), MIN_BYTES)?;
    let bytes = plain.bytes().min(managed.bytes());
    let blocks = (bytes / BYTES_A_THREAD / BLOCK_THREADS).max(1);
    let threads = blocks * BLOCK_THREADS;
    let swept = |memory: &Memory<'_>| {
        pair.around(stream, || {
            let words = (threads * BYTES_A_THREAD / 4) as u64;
            Ok(gpu.launch(
                sweep,
                blocks as u32,
                BLOCK_THREADS as u32,
                &[memory.address(), words],
                stream,
            )?)
        })
    };
    gpu.fill(&plain, 0, bytes, stream)?;
    managed.populate(1);
    gpu.prefetch(managed.whole(), MemoryLocation::DEVICE, stream)?;
    gpu.wait(stream)?;
    swept(&plain)?;
    swept(&managed)?;

    // In turns, so that a disturbance hits both.
    let (mut on_plain, mut on_managed) = (Vec::new(), Vec::new());
    let ratio = bench.repeat(ROUNDS, |_| {
        let (a, b) = (swept(&plain)?, swept(&managed)?);
        on_plain.push(a);
        on_managed.push(b);
        Ok(b / a)
    })?;
    for (name, times) in [("plain", on_plain), ("managed", on_managed)] {
        let rates = crate::report::Samples::new(times.iter().map(|ns| rate(2 * bytes, *ns)));
        report
            .samples(&format!("{name}_bandwidth"), "bytes/us", Clock::Device, &rates)
            .and("bytes", 2 * bytes)
            .and("note", "read and written bytes together")
            .print();
    }
    report
        .samples("managed_over_plain", "ratio", Clock::Device, &ratio)
        .print();

    let shortest = bench.repeat(50, |_| {
        pair.around(stream, || Ok(gpu.launch(empty, 1, 32, &[], stream)?))
    })?;
    let at_once = gpu
        .attribute(MULTIPROCESSORS)?
        .saturating_mul(gpu.attribute(THREADS)?)
        .max(1);
    let waves = threads as f64 / f64::from(at_once);
    let wave = bench.repeat(ROUNDS, |_| Ok((swept(&plain)? - shortest.median()) / waves))?;
    report
        .samples("plain_wave", "ns", Clock::Device, &wave)
        .and(
            "note",
            "per full wave of threads of 16 bytes read and written each, beyond the time of an empty kernel",
        )
        .print();
    Ok(())
}
