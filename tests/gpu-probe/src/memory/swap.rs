// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two jobs on managed memory, one evicted while the other runs: a switch by faults compared with a
//! switch by prefetches.
//!
//! Nothing is oversubscribed: each job has at most an eighth of the free memory, both together 256
//! MiB, and a prefetch to the host evicts it. That moves the pages of a real switch over the link,
//! without the risk.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::NO_LEDGER;
use crate::bench::{ProbeBench, nanoseconds};
use crate::driver::{Gpu, MemoryLocation};
use crate::peer::{Mps, Peer, Role, numbers};
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "swap",
    group: Group::Memory,
    about: "two processes on managed memory: a switch by faults against a prefetched one",
    seconds: 60,
    run,
};

/// Memory of each job: both together have as much as one other probe.
const LARGE_BYTES: usize = 128 << 20;
/// Least memory for a measurement.
const MIN_BYTES: usize = 8 << 20;
/// Rounds.
const ROUNDS: usize = 5;
/// Size of a prefetch's piece. A kernel runs over each piece as soon as it has arrived.
const PIECE_BYTES: usize = 16 << 20;
/// Consecutive kernels that run while the other job moves its memory.
const RUNS: usize = 100;
/// Longest wait for one answer.
const BOUND: Duration = Duration::from_secs(20);

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    // A quarter of the free memory may be used at once; two jobs share it.
    let each = LARGE_BYTES
        .min(gpu.free_memory()? / 8)
        .min(crate::host::available_memory()? / 8);
    let mut jobs = [
        Peer::start("swapper", Mps::Without)?,
        Peer::start("swapper", Mps::Without)?,
    ];
    let mut bytes = usize::MAX;
    for job in &mut jobs {
        let got: usize = job
            .ask(&format!("open {each}"), BOUND)?
            .parse()
            .context("a number of bytes")?;
        bytes = bytes.min(got);
    }
    let [a, b] = &mut jobs;

    let mut resident = Vec::new();
    let mut by_faults = Vec::new();
    let mut by_prefetch = Vec::new();
    let mut by_pieces = Vec::new();
    let mut one_after_another = Vec::new();
    let mut at_once = Vec::new();
    bench.repeat(ROUNDS, |_| {
        a.ask("in", BOUND)?;
        b.ask("out", BOUND)?;
        // To B by faults: its kernel pulls all of it.
        by_faults.push(time(b, "run")?);
        resident.push(time(b, "run")?);
        // To B by a prefetch, then the same kernel.
        b.ask("out", BOUND)?;
        by_prefetch.push(time(b, "in and run")?);
        // By prefetches in pieces; a kernel runs over each as soon as it has arrived.
        b.ask("out", BOUND)?;
        by_pieces.push(time(b, "in and run by pieces")?);
        // The whole exchange, from B back to A: one after the other, and both at once.
        a.ask("out", BOUND)?;
        let begin = Instant::now();
        b.ask("out", BOUND)?;
        a.ask("in", BOUND)?;
        one_after_another.push(nanoseconds(begin.elapsed()));
        let begin = Instant::now();
        a.tell("out")?;
        b.tell("in")?;
        a.hear(BOUND)?;
        b.hear(BOUND)?;
        at_once.push(nanoseconds(begin.elapsed()));
        Ok(0.0)
    })?;
    for (name, clock, times) in [
        ("run_resident", Clock::Device, resident),
        ("run_by_faults", Clock::Device, by_faults),
        ("prefetch_and_run", Clock::Device, by_prefetch),
        ("prefetch_and_run_by_pieces", Clock::Device, by_pieces),
        ("exchange_serial", Clock::Host, one_after_another),
        ("exchange_at_once", Clock::Host, at_once),
    ] {
        let mut line = report
            .samples(name, "ns", clock, &Samples::new(times))
            .and("bytes", bytes);
        if gpu.is_simulated() {
            line = line.and("note", NO_LEDGER);
        }
        line.print();
    }
    beside(bench, a, b, bytes)
}

/// Loss of both sides while one job moves its memory out and in and the other one's kernels run.
fn beside(bench: &ProbeBench, a: &mut Peer, b: &mut Peer, bytes: usize) -> Result<()> {
    a.ask("in", BOUND)?;
    let alone = a.ask_numbers("runs", BOUND)?;
    a.tell("runs")?;
    let mut moves = Vec::new();
    // The runs last about as long as these moves; later moves would have no runs next to them.
    let begin = Instant::now();
    let beside = loop {
        for way in ["out", "in"] {
            moves.push(time(b, way)?);
        }
        if let Some(line) = a.listen(Duration::from_millis(1))? {
            break numbers(&line)?;
        }
        ensure!(begin.elapsed() < BOUND, "the running job did not end within {BOUND:?}");
    };
    let report = &bench.report;
    for (name, times, unit) in [
        ("runs_alone", alone, "ns"),
        ("runs_beside_moves", beside, "ns"),
        ("moves_beside_runs", moves, "ns"),
    ] {
        let line = report.samples(name, unit, Clock::Device, &Samples::new(times));
        line.and("bytes", bytes).print();
    }
    Ok(())
}

fn time(job: &mut Peer, what: &str) -> Result<f64> {
    let times = job.ask_numbers(what, BOUND)?;
    times.first().copied().context("an answer without a time")
}

/// A peer with managed memory that it moves and sweeps on request. Answers with device ns.
#[derive(Default)]
pub struct Swapper(Option<SwapJob>);

struct SwapJob {
    gpu: &'static Gpu,
    memory: crate::driver::Memory<'static>,
}

impl Role for Swapper {
    fn answer(&mut self, line: &str) -> Result<String> {
        if let Some(bytes) = line.strip_prefix("open ") {
            // Lives as long as the process, as the memory does.
            let gpu: &'static Gpu = Box::leak(Box::new(Gpu::open()?));
            let memory = gpu.managed(bytes.parse().context("a number of bytes")?, MIN_BYTES)?;
            memory.populate(1);
            let got = memory.bytes();
            self.0 = Some(SwapJob { gpu, memory });
            return Ok(got.to_string());
        }
        let job = self.0.as_ref().context("not open")?;
        let time = match line {
            "in" => job.timed(Some(MemoryLocation::DEVICE), false),
            "out" => job.timed(Some(MemoryLocation::HOST), false),
            "run" => job.timed(None, true),
            "in and run" => job.timed(Some(MemoryLocation::DEVICE), true),
            "in and run by pieces" => job.by_pieces(),
            "runs" => return job.runs(),
            _ => bail!("no such thing to do: {line}"),
        }?;
        Ok(time.to_string())
    }
}

impl SwapJob {
    /// Device times of kernels one after another.
    fn runs(&self) -> Result<String> {
        let times = (0..RUNS).map(|_| Ok(self.timed(None, true)?.to_string()));
        Ok(times.collect::<Result<Vec<_>>>()?.join(" "))
    }

    /// Device time of a prefetch in pieces on one stream; a kernel on another stream runs over each
    /// as soon as it has arrived.
    fn by_pieces(&self) -> Result<f64> {
        let gpu = self.gpu;
        let (sweep, stream, moving) = (gpu.kernel("gpu_probe_sweep")?, gpu.stream()?, gpu.stream()?);
        let (from, to) = (gpu.event()?, gpu.event()?);
        let mut there = Vec::new();
        gpu.record(from, stream)?;
        gpu.order(moving, from)?;
        for at in (0..self.memory.bytes()).step_by(PIECE_BYTES) {
            let (part, event) = (self.memory.part(at, PIECE_BYTES), gpu.event()?);
            gpu.prefetch(part, MemoryLocation::DEVICE, moving)?;
            gpu.record(event, moving)?;
            gpu.order(stream, event)?;
            let words = part.bytes() as u64 / 4;
            let blocks = u32::try_from(words / 4 / 256).unwrap_or(u32::MAX).max(1);
            gpu.launch(sweep, blocks, 256, &[part.address(), words], stream)?;
            there.push(event);
        }
        gpu.record(to, stream)?;
        gpu.wait_for_event(to)?;
        let time = gpu.between(from, to)?;
        for event in there.into_iter().chain([from, to]) {
            gpu.end_event(event)?;
        }
        gpu.end_stream(moving)?;
        gpu.end_stream(stream)?;
        Ok(time)
    }

    /// Device time of a prefetch, of a kernel that reads and writes everything, or of both.
    fn timed(&self, place: Option<MemoryLocation>, run: bool) -> Result<f64> {
        let gpu = self.gpu;
        let (sweep, stream) = (gpu.kernel("gpu_probe_sweep")?, gpu.stream()?);
        let (from, to) = (gpu.event()?, gpu.event()?);
        let words = self.memory.bytes() as u64 / 4;
        let blocks = u32::try_from(words / 4 / 256).unwrap_or(u32::MAX).max(1);
        gpu.record(from, stream)?;
        if let Some(place) = place {
            gpu.prefetch(self.memory.whole(), place, stream)?;
        }
        if run {
            gpu.launch(sweep, blocks, 256, &[self.memory.address(), words], stream)?;
        }
        gpu.record(to, stream)?;
        gpu.wait_for_event(to)?;
        let time = gpu.between(from, to)?;
        gpu.end_event(from)?;
        gpu.end_event(to)?;
        gpu.end_stream(stream)?;
        Ok(time)
    }
}
