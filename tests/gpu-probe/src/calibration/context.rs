// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts of the device, and the memory of a context.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::bench::ProbeBench;
use crate::driver::Gpu;
use crate::peer::{Mps, Peer, Role};
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "context",
    group: Group::Calibration,
    about: "memory, threads at once, and what another process's context takes",
    seconds: 30,
    run,
};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` and
/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
const MULTIPROCESSORS: i32 = 16;
const THREADS: i32 = 39;
/// Longest wait for the memory of a process that has ended.
const COMES_BACK: Duration = Duration::from_secs(3);
/// Longest wait for another process's context.
const BOUND: Duration = Duration::from_secs(20);

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    report
        .value("device_memory", "bytes", Clock::None, gpu.total_memory()?)
        .print();
    let threads = gpu.attribute(MULTIPROCESSORS)?.saturating_mul(gpu.attribute(THREADS)?);
    report.value("threads_at_once", "threads", Clock::None, threads).print();

    let taken = bench.repeat(3, |_| {
        let before = gpu.free_memory()?;
        let mut peer = Peer::start("idle", Mps::Without)?;
        peer.ask("open", BOUND)?;
        let now = gpu.free_memory()?;
        drop(peer);
        // Its memory comes back a moment after its end, unless another process took it.
        let ended = Instant::now();
        while gpu.free_memory()? < before && ended.elapsed() < COMES_BACK {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(before.saturating_sub(now) as f64)
    })?;
    let open = bench.repeat(3, |_| {
        let mut peer = Peer::start("idle", Mps::Without)?;
        peer.ask("open", BOUND)?.parse().map_err(Into::into)
    })?;
    context_lines(bench, &taken, &open);
    Ok(())
}

fn context_lines(bench: &ProbeBench, taken: &Samples, open: &Samples) {
    let report = &bench.report;
    report
        .samples("context_memory", "bytes", Clock::None, taken)
        .and(
            "note",
            "free memory before and after another process loaded the probe's kernels",
        )
        .print();
    report.samples("context_open", "ns", Clock::Host, open).print();
}

/// A peer with nothing but a context.
#[derive(Default)]
pub struct Idle(Option<Gpu>);

impl Role for Idle {
    fn answer(&mut self, _line: &str) -> Result<String> {
        let begin = Instant::now();
        self.0 = Some(Gpu::open()?);
        Ok(begin.elapsed().as_nanos().to_string())
    }
}
