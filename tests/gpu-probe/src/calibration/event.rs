// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cost of events, with and without times, and the time that a pair around a kernel reads.

use anyhow::Result;

use crate::bench::ProbeBench;
use crate::driver::Event;
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "event",
    group: Group::Calibration,
    about: "host and device time of a timed and an untimed record, a query, and what event pairs read",
    seconds: 20,
    run,
};

/// Kernels of a train.
const TRAIN: usize = 200;
/// As in the spacing probe, for twice as many calls.
const HOLD_NS: u64 = 8_000_000;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let empty = gpu.kernel("gpu_probe_empty")?;
    let (stream, pair) = (gpu.stream()?, bench.pair()?);
    let (event, untimed) = (gpu.event()?, gpu.untimed_event()?);
    gpu.record(event, stream)?;
    gpu.wait(stream)?;

    let query = bench.repeat_calls(500, |_| gpu.is_reached(event).map(drop).map_err(Into::into))?;
    report.samples("query_call", "ns", Clock::Host, &query).print();
    for (name, event) in [("record_call", event), ("record_untimed_call", untimed)] {
        let record = bench.repeat_calls(500, |_| Ok(gpu.record(event, stream)?))?;
        report.samples(name, "ns", Clock::Host, &record).print();
        gpu.wait(stream)?;
    }

    let nothing = bench.repeat(200, |_| pair.around(stream, || Ok(())))?;
    report
        .samples("pair_around_nothing", "ns", Clock::Device, &nothing)
        .print();
    let kernel = bench.repeat(200, |_| {
        pair.around(stream, || Ok(gpu.launch(empty, 1, 32, &[], stream)?))
    })?;
    report
        .samples("pair_around_kernel", "ns", Clock::Device, &kernel)
        .print();

    // One train of kernels with and without an event after each.
    let train = |event: Option<Event>| {
        pair.behind(HOLD_NS, stream, || {
            for _ in 0..TRAIN {
                gpu.launch(empty, 1, 32, &[], stream)?;
                if let Some(event) = event {
                    gpu.record(event, stream)?;
                }
            }
            Ok(())
        })
    };
    train(Some(event))?;
    let mut of_untimed = Vec::new();
    let of_timed = bench.repeat(20, |_| {
        let bare = train(None)?;
        of_untimed.push((train(Some(untimed))? - bare) / TRAIN as f64);
        Ok((train(Some(event))? - bare) / TRAIN as f64)
    })?;
    for (name, added) in [
        ("record_device", of_timed),
        ("record_untimed_device", Samples::new(of_untimed)),
    ] {
        report
            .samples(name, "ns", Clock::Device, &added.map(|ns| ns.max(0.0)))
            .print();
    }
    gpu.end_event(untimed)?;
    gpu.end_event(event)?;
    Ok(())
}
