// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time until the host sees a stream's progress: by a word that the stream writes, and by polling
//! an event.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::bench::{ProbeBench, nanoseconds};
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "stream-write",
    group: Group::Calibration,
    about: "from cuStreamWriteValue32 to the host seeing the word, against asking an event",
    seconds: 15,
    run,
};

/// Longest wait for one word.
const BOUND: Duration = Duration::from_secs(10);
/// Rounds.
const ROUNDS: usize = 500;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (stream, word, event) = (gpu.stream()?, gpu.pinned(4096, 4096)?, gpu.event()?);
    let mut calls = Vec::new();
    let seen = bench.repeat(ROUNDS, |round| {
        let value = round as u32 + 1;
        let begin = Instant::now();
        gpu.write_word(&word, value, stream)?;
        calls.push(nanoseconds(begin.elapsed()));
        while word.word() != value {
            if begin.elapsed() > BOUND {
                bail!("a stream's write was not seen within {BOUND:?}");
            }
            std::hint::spin_loop();
        }
        Ok(nanoseconds(begin.elapsed()))
    })?;
    gpu.wait(stream)?;
    report.samples("call", "ns", Clock::Host, &Samples::new(calls)).print();
    report.samples("seen", "ns", Clock::Host, &seen).print();

    let asked = bench.repeat(ROUNDS, |_| {
        let begin = Instant::now();
        gpu.record(event, stream)?;
        while !gpu.is_reached(event)? {
            if begin.elapsed() > BOUND {
                bail!("an event was not reached within {BOUND:?}");
            }
        }
        Ok(nanoseconds(begin.elapsed()))
    })?;
    report
        .samples("event_seen", "ns", Clock::Host, &asked)
        .and("note", "record an event on the idle stream and ask until it is reached")
        .print();
    gpu.end_event(event)?;
    Ok(())
}
