// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies: rates of large ones, cost of small ones, and both directions at once.

use anyhow::Result;

use crate::bench::{ProbeBench, rate};
use crate::driver::Memory;
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "copy",
    group: Group::Calibration,
    about: "copies to, from and within the device, pinned and pageable, small and large, both ways at once",
    seconds: 40,
    run,
};

/// A large copy: the rate of one this long is that of any longer one.
const LARGE_BYTES: usize = 64 << 20;
/// The smallest size to measure if there is little memory.
const MIN_BYTES: usize = 4 << 20;
/// A small one.
const SMALL: usize = 4;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (stream, other, pair) = (gpu.stream()?, gpu.stream()?, bench.pair()?);
    let (device, second) = (gpu.plain(LARGE_BYTES, MIN_BYTES)?, gpu.plain(LARGE_BYTES, MIN_BYTES)?);
    let (pinned, second_pinned) = (gpu.pinned(LARGE_BYTES, MIN_BYTES)?, gpu.pinned(LARGE_BYTES, MIN_BYTES)?);
    let bytes = [&device, &second, &pinned, &second_pinned]
        .map(Memory::bytes)
        .into_iter()
        .min()
        .unwrap_or(0);
    let timed = |to: &Memory<'_>, from: &Memory<'_>, bytes: usize, rounds: usize| -> Result<Samples> {
        gpu.copy(to, from, bytes, stream)?;
        gpu.wait(stream)?;
        bench.repeat(rounds, |_| {
            pair.around(stream, || Ok(gpu.copy(to, from, bytes, stream)?))
        })
    };
    let nothing = bench.repeat(50, |_| pair.around(stream, || Ok(())))?.median();

    let ways: [(&str, &Memory<'_>, &Memory<'_>); 3] = [
        ("to_device", &device, &pinned),
        ("to_host", &pinned, &device),
        ("within_device", &second, &device),
    ];
    for (name, to, from) in ways {
        let small = timed(to, from, SMALL, 100)?;
        report
            .samples(
                &format!("{name}_latency"),
                "ns",
                Clock::Device,
                &small.map(|ns| (ns - nothing).max(0.0)),
            )
            .and("bytes", SMALL)
            .print();
        // The latency of a small copy is not part of the rate.
        let large = timed(to, from, bytes, 20)?;
        report
            .samples(
                name,
                "bytes/us",
                Clock::Device,
                &large.map(|ns| rate(bytes, ns - small.median())),
            )
            .and("bytes", bytes)
            .print();
        let called = bench.repeat_calls(100, |_| {
            gpu.copy(to, from, SMALL, stream)?;
            Ok(gpu.wait(stream)?)
        })?;
        report
            .samples(&format!("{name}_call_and_wait"), "ns", Clock::Host, &called)
            .and("bytes", SMALL)
            .print();
    }

    // Both directions at once: from before the first to after the last, on a stream that waits for
    // the other.
    let (begun, ended) = (gpu.event()?, gpu.event()?);
    let both = bench.repeat(20, |_| {
        pair.around(stream, || {
            gpu.record(begun, stream)?;
            gpu.order(other, begun)?;
            gpu.copy(&device, &pinned, bytes, stream)?;
            gpu.copy(&second_pinned, &second, bytes, other)?;
            gpu.record(ended, other)?;
            Ok(gpu.order(stream, ended)?)
        })
    })?;
    report
        .samples(
            "both_ways",
            "bytes/us",
            Clock::Device,
            &both.map(|ns| rate(2 * bytes, ns - nothing)),
        )
        .and("bytes", 2 * bytes)
        .print();
    drop((second, second_pinned, pinned));

    let pageable = gpu.pageable(bytes, MIN_BYTES)?;
    let bytes = bytes.min(pageable.bytes());
    for (name, to, from) in [
        ("pageable_to_device", &device, &pageable),
        ("pageable_to_host", &pageable, &device),
    ] {
        // The driver copies through buffers of its own, partly before the device begins: only the
        // host's time covers all of it.
        let whole = bench.repeat_calls(10, |_| {
            gpu.copy(to, from, bytes, stream)?;
            Ok(gpu.wait(stream)?)
        })?;
        report
            .samples(name, "bytes/us", Clock::Host, &whole.map(|ns| rate(bytes, ns)))
            .and("bytes", bytes)
            .print();
    }
    Ok(())
}
