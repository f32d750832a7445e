// SPDX-License-Identifier: MIT OR Apache-2.0
//! Distance between kernels of one stream on the device, and the length of the smallest kernel.

use anyhow::Result;

use crate::bench::ProbeBench;
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "spacing",
    group: Group::Calibration,
    about: "period of empty kernels back to back, gap between two kernels, the smallest kernel",
    seconds: 20,
    run,
};

/// Kernels of a train.
const TRAIN: usize = 200;
/// Time for which the train is held, so that all of it is queued before its first kernel runs:
/// twice the time of its launches at 10 us each.
const HOLD_NS: u64 = 4_000_000;
/// Time of each stamping kernel: long enough that its successor is ready at its end.
const STAMP_NS: u64 = 20_000;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (empty, spin, stamp) = (
        gpu.kernel("gpu_probe_empty")?,
        gpu.kernel("gpu_probe_spin")?,
        gpu.kernel("gpu_probe_stamp")?,
    );
    let (stream, pair) = (gpu.stream()?, bench.pair()?);
    let train = |count: usize| {
        pair.behind(HOLD_NS, stream, || {
            for _ in 0..count {
                gpu.launch(empty, 1, 32, &[], stream)?;
            }
            Ok(())
        })
    };
    train(TRAIN)?;
    let period = bench.repeat(20, |_| Ok(train(TRAIN)? / TRAIN as f64))?;
    report
        .samples("empty_kernel_period", "ns", Clock::Device, &period)
        .print();
    let nothing = bench.repeat(50, |_| train(0))?;
    let one = bench.repeat(50, |_| train(1))?;
    let smallest = one.map(|ns| ns - nothing.median());
    report
        .samples("smallest_kernel", "ns", Clock::Device, &smallest)
        .and(
            "note",
            "an event pair around one empty kernel less the pair around nothing",
        )
        .print();

    let out = gpu.pinned(TRAIN * 32, TRAIN * 32)?;
    let mut gaps = Vec::new();
    bench.repeat(10, |_| {
        gpu.launch(spin, 1, 1, &[HOLD_NS], stream)?;
        for at in 0..TRAIN as u64 {
            gpu.launch(stamp, 1, 1, &[out.address() + at * 32, STAMP_NS], stream)?;
        }
        gpu.wait(stream)?;
        let words = out.words_64(TRAIN * 4);
        let stamps = words.as_chunks::<4>().0;
        gaps.extend(
            stamps
                .windows(2)
                .filter_map(|pair| Some(pair.get(1)?.first()?.saturating_sub(*pair.first()?.get(1)?) as f64)),
        );
        Ok(0.0)
    })?;
    report
        .samples("gap", "ns", Clock::Device, &Samples::new(gaps))
        .and("note", "by the device's timer, whose step may be as coarse as 1 us")
        .print();
    Ok(())
}
