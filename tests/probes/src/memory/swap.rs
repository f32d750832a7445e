//! Two jobs on managed memory, one evicted while the other runs: a switch by faults against a switch by prefetches.
//!
//! Nothing is oversubscribed: each job has at most an eighth of what is free, and is evicted by a prefetch to the host. What a switch costs is the same pages on
//! the same link, without the risk.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::NO_LEDGER;
use crate::bench::{Bench, nanoseconds};
use crate::driver::{Gpu, Place};
use crate::peer::{Mps, Peer, Role};
use crate::probes::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "swap",
    group: Group::Memory,
    about: "two processes on managed memory: a switch by faults against a prefetched one",
    seconds: 60,
    run,
};

/// Each job's memory.
const LARGE: usize = 256 << 20;
/// What is still measured where there is little memory.
const LEAST: usize = 8 << 20;
/// Rounds.
const ROUNDS: usize = 5;
/// Longest wait for one answer.
const BOUND: Duration = Duration::from_secs(20);

fn run(bench: &Bench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    // A quarter of what is free may be had at once; two jobs share that.
    let each = LARGE
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
    let mut one_after_another = Vec::new();
    let mut at_once = Vec::new();
    bench.repeat(ROUNDS, |_| {
        a.ask("in", BOUND)?;
        b.ask("out", BOUND)?;
        // To B by faults: its kernel pulls everything.
        by_faults.push(time(b, "run")?);
        resident.push(time(b, "run")?);
        // To B by a prefetch, then the same kernel.
        b.ask("out", BOUND)?;
        by_prefetch.push(time(b, "in and run")?);
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
    Ok(())
}

fn time(job: &mut Peer, what: &str) -> Result<f64> {
    let times = job.ask_numbers(what, BOUND)?;
    times.first().copied().context("an answer without a time")
}

/// A job with managed memory that it moves and sweeps as it is told. Answers with device nanoseconds.
#[derive(Default)]
pub struct Swapper(Option<Job>);

struct Job {
    gpu: &'static Gpu,
    memory: crate::driver::Memory<'static>,
}

impl Role for Swapper {
    fn answer(&mut self, line: &str) -> Result<String> {
        if let Some(bytes) = line.strip_prefix("open ") {
            // Lives as long as the process, as the memory does.
            let gpu: &'static Gpu = Box::leak(Box::new(Gpu::open()?));
            let memory = gpu.managed(bytes.parse().context("a number of bytes")?, LEAST)?;
            memory.populate(1);
            let got = memory.bytes();
            self.0 = Some(Job { gpu, memory });
            return Ok(got.to_string());
        }
        let job = self.0.as_ref().context("not open")?;
        let time = match line {
            "in" => job.timed(Some(Place::DEVICE), false),
            "out" => job.timed(Some(Place::HOST), false),
            "run" => job.timed(None, true),
            "in and run" => job.timed(Some(Place::DEVICE), true),
            _ => bail!("no such thing to do: {line}"),
        }?;
        Ok(time.to_string())
    }
}

impl Job {
    /// Device time of a prefetch, of a kernel that reads and writes everything, or of both.
    fn timed(&self, place: Option<Place>, run: bool) -> Result<f64> {
        let gpu = self.gpu;
        let (sweep, stream) = (gpu.kernel("weft_probe_sweep")?, gpu.stream()?);
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
