// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host cost of allocations.

use anyhow::Result;

use crate::bench::{ProbeBench, nanoseconds};
use crate::driver::BLOCK_BYTES;
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "alloc",
    group: Group::Calibration,
    about: "host time of plain and managed allocations and of freeing them",
    seconds: 15,
    run,
};

/// Rounds.
const ROUNDS: usize = 30;
/// Sizes and their names.
const SIZES: [(&str, usize); 2] = [("2m", BLOCK_BYTES), ("64m", 64 << 20)];

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    for (name, bytes) in SIZES {
        let (mut plain_free, mut managed_free) = (Vec::new(), Vec::new());
        // The room is checked before the clock starts: the probe's own caution is no part of the
        // cost.
        let plain = bench.repeat(ROUNDS, |_| {
            let (memory, taken) = gpu.timed_plain(bytes, bytes)?;
            let begin = std::time::Instant::now();
            drop(memory);
            plain_free.push(nanoseconds(begin.elapsed()));
            Ok(nanoseconds(taken))
        })?;
        let managed = bench.repeat(ROUNDS, |_| {
            let (memory, taken) = gpu.timed_managed(bytes, bytes)?;
            let begin = std::time::Instant::now();
            drop(memory);
            managed_free.push(nanoseconds(begin.elapsed()));
            Ok(nanoseconds(taken))
        })?;
        for (kind, times) in [
            ("plain", plain),
            ("managed", managed),
            ("plain_free", Samples::new(plain_free)),
            ("managed_free", Samples::new(managed_free)),
        ] {
            let line = report.samples(&format!("{kind}_{name}"), "ns", Clock::Host, &times);
            line.and("bytes", bytes).print();
        }
    }
    Ok(())
}
