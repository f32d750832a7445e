//! Cost of events, and the time that a pair around a kernel reads.

use anyhow::Result;

use crate::bench::ProbeBench;
use crate::probe::{Group, Probe};
use crate::report::Clock;

/// The probe.
pub const PROBE: Probe = Probe {
    name: "event",
    group: Group::Calibration,
    about: "host and device time of an event record, a query, and what event pairs read",
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
    let (stream, pair, event) = (gpu.stream()?, bench.pair()?, gpu.event()?);
    gpu.record(event, stream)?;
    gpu.wait(stream)?;

    let query = bench.repeat_calls(500, |_| gpu.is_reached(event).map(drop).map_err(Into::into))?;
    report.samples("query_call", "ns", Clock::Host, &query).print();
    let record = bench.repeat_calls(500, |_| Ok(gpu.record(event, stream)?))?;
    report.samples("record_call", "ns", Clock::Host, &record).print();
    gpu.wait(stream)?;

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

    // One train of kernels with and without an event between each two.
    let train = |events: bool| {
        pair.behind(HOLD_NS, stream, || {
            for _ in 0..TRAIN {
                gpu.launch(empty, 1, 32, &[], stream)?;
                if events {
                    gpu.record(event, stream)?;
                }
            }
            Ok(())
        })
    };
    train(true)?;
    let added = bench.repeat(20, |_| Ok((train(true)? - train(false)?) / TRAIN as f64))?;
    report
        .samples("record_device", "ns", Clock::Device, &added.map(|ns| ns.max(0.0)))
        .print();
    gpu.end_event(event)?;
    Ok(())
}
