// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memsets: the rate of large ones, the cost of small ones.

use anyhow::Result;

use crate::bench::{ProbeBench, rate};
use crate::probe::{Group, Probe};
use crate::report::Clock;

/// The probe.
pub const PROBE: Probe = Probe {
    name: "memset",
    group: Group::Calibration,
    about: "memsets, small and large",
    seconds: 15,
    run,
};

/// Size of a large one: far beyond any cache of a device.
const LARGE_BYTES: usize = 256 << 20;
/// Least memory for a measurement.
const MIN_BYTES: usize = 4 << 20;
/// Size of a small one.
const SMALL: usize = 4;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (stream, pair) = (gpu.stream()?, bench.pair()?);
    let device = gpu.plain(LARGE_BYTES, MIN_BYTES)?;
    gpu.fill(&device, 1, device.bytes(), stream)?;
    gpu.wait(stream)?;
    let nothing = bench.repeat(50, |_| pair.around(stream, || Ok(())))?.median();
    let timed = |bytes: usize, rounds: usize| {
        bench.repeat(rounds, |_| {
            pair.around(stream, || Ok(gpu.fill(&device, 2, bytes, stream)?))
        })
    };
    let small = timed(SMALL, 100)?;
    report
        .samples("latency", "ns", Clock::Device, &small.map(|ns| (ns - nothing).max(0.0)))
        .and("bytes", SMALL)
        .print();
    let large = timed(device.bytes(), 10)?;
    report
        .samples(
            "bandwidth",
            "bytes/us",
            Clock::Device,
            &large.map(|ns| rate(device.bytes(), ns - small.median())),
        )
        .and("bytes", device.bytes())
        .print();
    Ok(())
}
