// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cost of measuring kernel times: event pairs around each launch, and CUPTI's activity records,
//! compared with bare launches.

use std::time::Instant;

use anyhow::Result;

use crate::bench::{ProbeBench, nanoseconds};
use crate::driver::{Cupti, Event, Kernel, Stream};
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "cupti",
    group: Group::Calibration,
    about: "a launch bare, with an event pair around it, and while CUPTI records kernels",
    seconds: 30,
    run,
};

/// Launches between two waits.
const BURST: usize = 200;
/// Bursts.
const ROUNDS: usize = 30;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (empty, stream) = (gpu.kernel("gpu_probe_empty")?, gpu.stream()?);
    let events = (0..2 * BURST).map(|_| gpu.event()).collect::<Result<Vec<_>, _>>()?;
    bursts(bench, empty, stream, &events)?;

    let bare = bursts(bench, empty, stream, &[])?;
    bare.print(report, "bare");
    bursts(bench, empty, stream, &events)?.print(report, "paired");

    if gpu.is_simulated() && bench.options.cupti.is_none() {
        report.skipped_part("traced", "CUPTI traces no simulated device");
        return Ok(());
    }
    let cupti = match Cupti::open(bench.options.cupti.as_deref()) {
        Ok(cupti) => cupti,
        Err(why) => {
            report.skipped_part("traced", &format!("{why:#}"));
            return Ok(());
        }
    };
    let tracing = cupti.trace_kernels()?;
    bursts(bench, empty, stream, &[])?;
    let before = tracing.records()?;
    let traced = bursts(bench, empty, stream, &[])?;
    let records = tracing.records()?.saturating_sub(before);
    traced.print(report, "traced");
    report
        .fact("traced_records", records)
        .and("launches", traced.launches)
        .and("library", cupti.path())
        .print();
    tracing.end()?;
    bursts(bench, empty, stream, &[])?.print(report, "bare_after");
    Ok(())
}

/// Cost of some bursts.
struct Cost {
    calls: Samples,
    periods: Samples,
    launches: usize,
}

impl Cost {
    fn print(&self, report: &crate::report::Report, how: &str) {
        report
            .samples(&format!("call_{how}"), "ns", Clock::Host, &self.calls)
            .print();
        report
            .samples(&format!("period_{how}"), "ns", Clock::Host, &self.periods)
            .and("note", "a burst of empty kernels and a wait for the last, per launch")
            .print();
    }
}

/// Bursts of launches, each with an event before and after it if there are events.
fn bursts(bench: &ProbeBench, kernel: Kernel, stream: Stream, events: &[Event]) -> Result<Cost> {
    let gpu = &bench.gpu;
    let mut calls = Vec::new();
    let periods = bench.repeat(ROUNDS, |_| {
        let begin = Instant::now();
        for at in 0..BURST {
            let begin = Instant::now();
            if let Some(before) = events.get(2 * at) {
                gpu.record(*before, stream)?;
            }
            gpu.launch(kernel, 1, 32, &[], stream)?;
            if let Some(after) = events.get(2 * at + 1) {
                gpu.record(*after, stream)?;
            }
            calls.push(nanoseconds(begin.elapsed()));
        }
        gpu.wait(stream)?;
        Ok(nanoseconds(begin.elapsed()) / BURST as f64)
    })?;
    Ok(Cost {
        launches: calls.len(),
        calls: Samples::new(calls),
        periods,
    })
}
