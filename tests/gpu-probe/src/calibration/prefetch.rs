// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prefetches of managed memory: host cost of a call, rates in each direction, and whether both
//! directions at once run at full rate.

use anyhow::Result;

use crate::bench::{ProbeBench, nanoseconds, rate};
use crate::driver::{BLOCK_BYTES, Memory, MemoryLocation};
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "prefetch",
    group: Group::Calibration,
    about: "prefetches of managed memory: calls, rate each way, both ways at once, batches",
    seconds: 40,
    run,
};

/// Memory that is moved.
const LARGE_BYTES: usize = 256 << 20;
/// Least memory for a measurement.
const MIN_BYTES: usize = 8 << 20;
/// Time for which a stream is held so that calls find work before them: longer than 32 calls take.
const HOLD_NS: u64 = 20_000_000;
/// Time for which both streams are held until two threads have begun. On a busy machine that
/// usually took more than 5 ms.
const BOTH_NS: u64 = 40_000_000;
/// Rounds of a large move.
const ROUNDS: usize = 8;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (stream, pair) = (gpu.stream()?, bench.pair()?);
    let memory = gpu.managed(LARGE_BYTES, MIN_BYTES)?;
    let bytes = memory.bytes();
    let mut device = Vec::new();
    let mut host = Vec::new();
    let mut whole = |memory: &Memory<'_>, place| {
        let begin = std::time::Instant::now();
        let time = pair.around(stream, || Ok(gpu.prefetch(memory.whole(), place, stream)?))?;
        host.push(nanoseconds(begin.elapsed()));
        anyhow::Ok(time)
    };
    let mut to_device = Vec::new();
    bench.repeat(ROUNDS, |_| {
        memory.populate(1);
        to_device.push(whole(&memory, MemoryLocation::DEVICE)?);
        device.push(whole(&memory, MemoryLocation::HOST)?);
        Ok(0.0)
    })?;
    let to_device = Samples::new(to_device).map(|ns| rate(bytes, ns));
    let to_host = Samples::new(device).map(|ns| rate(bytes, ns));
    let line = report.samples("to_device", "bytes/us", Clock::Device, &to_device);
    line.and("bytes", bytes).print();
    let line = report.samples("to_host", "bytes/us", Clock::Device, &to_host);
    line.and("bytes", bytes).print();
    let host = Samples::new(host).map(|ns| rate(bytes, ns));
    let line = report.samples("either_way_by_host_clock", "bytes/us", Clock::Host, &host);
    line.and("bytes", bytes).print();

    calls(bench, &memory)?;
    drop(memory);
    both_ways(bench, (to_device.median() + to_host.median()) / 2.0)
}

/// Calls of one block each, and one call of many.
fn calls(bench: &ProbeBench, memory: &Memory<'_>) -> Result<()> {
    let (gpu, report, stream) = (&bench.gpu, &bench.report, bench.gpu.stream()?);
    let blocks: Vec<_> = (0..(memory.bytes() / BLOCK_BYTES).min(32))
        .map(|block| memory.part(block * BLOCK_BYTES, BLOCK_BYTES))
        .collect();
    let each = |place| -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for block in &blocks {
            let begin = std::time::Instant::now();
            gpu.prefetch(*block, place, stream)?;
            times.push(nanoseconds(begin.elapsed()));
        }
        gpu.wait(stream)?;
        Ok(times)
    };
    let (mut moving, mut resident, mut back) = (Vec::new(), Vec::new(), Vec::new());
    let mut batch = Vec::new();
    bench.repeat(ROUNDS, |_| {
        memory.populate(2);
        moving.extend(each(MemoryLocation::DEVICE)?);
        resident.extend(each(MemoryLocation::DEVICE)?);
        back.extend(each(MemoryLocation::HOST)?);
        Ok(0.0)
    })?;
    // If there is work before them in the stream, the driver may hand them to a thread of its own.
    let spin = gpu.kernel("gpu_probe_spin")?;
    let mut behind = Vec::new();
    bench.repeat(ROUNDS, |_| {
        memory.populate(2);
        gpu.launch(spin, 1, 1, &[HOLD_NS], stream)?;
        behind.extend(each(MemoryLocation::DEVICE)?);
        each(MemoryLocation::HOST)?;
        Ok(0.0)
    })?;
    for (name, times) in [
        ("call", moving),
        ("call_resident", resident),
        ("call_to_host", back),
        ("call_behind_work", behind),
    ] {
        report
            .samples(name, "ns", Clock::Host, &Samples::new(times))
            .and("bytes", BLOCK_BYTES)
            .print();
    }
    for _ in 0..3 {
        memory.populate(3);
        let begin = std::time::Instant::now();
        match gpu.prefetch_batch(&blocks, MemoryLocation::DEVICE, stream) {
            Err(error) if error.is_lack() => {
                report.fact("batch", false).and("reason", error.to_string()).print();
                return Ok(());
            }
            done => done?,
        }
        batch.push(nanoseconds(begin.elapsed()));
        gpu.wait(stream)?;
    }
    report
        .samples("batch_call", "ns", Clock::Host, &Samples::new(batch))
        .and("parts", blocks.len())
        .and("bytes", blocks.len() * BLOCK_BYTES)
        .print();
    Ok(())
}

/// One allocation leaves while another arrives, each from its own thread and on its own stream,
/// because a call may block its thread.
fn both_ways(bench: &ProbeBench, one_way: f64) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (stream, other, pair) = (gpu.stream()?, gpu.stream()?, bench.pair()?);
    let (first, second) = (
        gpu.managed(LARGE_BYTES / 2, MIN_BYTES)?,
        gpu.managed(LARGE_BYTES / 2, MIN_BYTES)?,
    );
    let bytes = first.bytes() + second.bytes();
    first.populate(4);
    second.populate(4);
    gpu.prefetch(first.whole(), MemoryLocation::DEVICE, stream)?;
    gpu.wait(stream)?;
    let (begun, ended) = (gpu.event()?, gpu.event()?);
    let mut turn = false;
    let both = bench.repeat(ROUNDS, |_| {
        turn = !turn;
        let (going, coming) = if turn { (&first, &second) } else { (&second, &first) };
        // Held until both threads have called: both become ready at once.
        let time = pair.behind(BOTH_NS, stream, || {
            gpu.record(begun, stream)?;
            gpu.order(other, begun)?;
            std::thread::scope(|scope| {
                let goes = scope.spawn(|| {
                    gpu.enter()?;
                    gpu.prefetch(going.whole(), MemoryLocation::HOST, stream)
                });
                let comes = scope.spawn(|| {
                    gpu.enter()?;
                    gpu.prefetch(coming.whole(), MemoryLocation::DEVICE, other)
                });
                for thread in [goes, comes] {
                    thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
                }
                anyhow::Ok(())
            })?;
            gpu.record(ended, other)?;
            Ok(gpu.order(stream, ended)?)
        })?;
        Ok(rate(bytes, time))
    })?;
    let line = report.samples("both_ways", "bytes/us", Clock::Device, &both);
    line.and("bytes", bytes).print();
    let ratio = both.map(|rate| rate / one_way);
    report
        .samples("duplex", "ratio", Clock::Device, &ratio)
        .and(
            "note",
            "both ways at once over the mean of one way alone: 1 is one shared link, 2 full duplex",
        )
        .print();
    Ok(())
}
