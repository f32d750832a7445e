// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host cost of a launch, time until the device begins it, and time from its end to the host's
//! return.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::bench::{ProbeBench, nanoseconds};
use crate::driver::{CudaError, Memory};
use crate::probe::{Group, Probe};
use crate::report::{Clock, Samples};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "launch",
    group: Group::Calibration,
    about: "host time of a launch, of a launch and a wait, until a store is seen, from the end to a wait's return",
    seconds: 20,
    run,
};

/// Launches between two waits: fewer than any driver's queue holds, so none waits for room.
const BURST: usize = 200;
/// Launches whose store a thread waits to see.
const STORES: usize = 500;
/// Longest wait for one store.
const BOUND: Duration = Duration::from_secs(10);
/// Time for which a spinning kernel delays the store: the host reaches its wait, and a thread looks
/// at the word.
const WORK_NS: u64 = 300_000;
/// Most time between two looks at the word: the error of the measured times, which are
/// microseconds.
const BETWEEN_LOOKS: Duration = Duration::from_micros(1);
/// Measurements of each kind of wait.
const WAITS: usize = 200;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (empty, store, stream) = (
        gpu.kernel("gpu_probe_empty")?,
        gpu.kernel("gpu_probe_store")?,
        gpu.stream()?,
    );
    let launch = || gpu.launch(empty, 1, 32, &[], stream);
    // First launches load code and set up queues.
    for _ in 0..BURST {
        launch()?;
    }
    gpu.wait(stream)?;

    let mut calls = Vec::new();
    bench.repeat(30, |_| {
        let begin = Instant::now();
        for _ in 0..BURST {
            let begin = Instant::now();
            launch()?;
            calls.push(nanoseconds(begin.elapsed()));
        }
        let all = nanoseconds(begin.elapsed());
        gpu.wait(stream)?;
        Ok(all)
    })?;
    let calls = Samples::new(calls);
    report.samples("call", "ns", Clock::Host, &calls).print();

    let alone = bench.repeat_calls(500, |_| {
        launch()?;
        Ok(gpu.wait(stream)?)
    })?;
    report.samples("call_and_wait", "ns", Clock::Host, &alone).print();

    let word = gpu.pinned(4096, 4096)?;
    let seen = bench.repeat(STORES, |round| {
        let value = round as u32 + 1;
        let begin = Instant::now();
        gpu.launch(store, 1, 1, &[word.address(), value.into()], stream)?;
        while word.word() != value {
            if begin.elapsed() > BOUND {
                bail!("a kernel's store was not seen within {BOUND:?}");
            }
            std::hint::spin_loop();
        }
        let seen = nanoseconds(begin.elapsed());
        gpu.wait(stream)?;
        Ok(seen)
    })?;
    let line = report.samples("launch_to_store", "ns", Clock::Host, &seen);
    line.and(
        "note",
        "from before the call until the host sees the word: the call, the start, and the store's way back",
    )
    .print();
    wait_return(bench, &word)
}

/// Measures the time from the moment at which another thread sees the store of the last kernel to
/// the return of the wait for it.
fn wait_return(bench: &ProbeBench, word: &Memory<'_>) -> Result<()> {
    /// Waits for the stream or the event.
    type Wait<'a> = &'a dyn Fn() -> Result<(), CudaError>;
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (spin, store) = (gpu.kernel("gpu_probe_spin")?, gpu.kernel("gpu_probe_store")?);
    let (stream, event) = (gpu.stream()?, gpu.untimed_event()?);
    let query = || {
        while !gpu.is_reached(event)? {
            std::hint::spin_loop();
        }
        Ok(())
    };
    let waits: [(&str, bool, Wait<'_>); 3] = [
        ("wait_return", false, &|| gpu.wait(stream)),
        ("wait_return_event", true, &|| gpu.wait_for_event(event)),
        ("wait_return_query", true, &query),
    ];
    for (name, records, wait) in waits {
        let (mut early, mut missed) = (0, 0);
        let returned = bench.repeat(WAITS, |round| {
            // The word has another value, by the stores before or by the round before.
            let value = (STORES + 1 + round) as u32;
            let ns = seen_to_return(word, value, || {
                gpu.launch(spin, 1, 1, &[WORK_NS], stream)?;
                gpu.launch(store, 1, 1, &[word.address(), value.into()], stream)?;
                if records {
                    gpu.record(event, stream)?;
                }
                wait()
            })?;
            missed += usize::from(ns.is_none());
            early += usize::from(ns.is_some_and(|ns| ns < 0.0));
            Ok(ns.map_or(f64::NAN, |ns| ns.max(0.0)))
        })?;
        if returned.is_empty() {
            report.skipped_part(name, "the thread that looks for the word has no core of its own");
            continue;
        }
        report
            .samples(name, "ns", Clock::Host, &returned)
            .and("early", early)
            .and("missed", missed)
            .and(
                "note",
                "from another thread's sight of the last kernel's store to the return of the wait: \
                 with that kernel's end and the event's record, without the store's way to the host; \
                 early: the wait returned before that, counted as 0; \
                 missed: the thread did not look often enough",
            )
            .print();
    }
    gpu.end_event(event)?;
    Ok(())
}

/// Nanoseconds from another thread's sight of `value` in the word to the return of `work`, negative
/// if that came first. `None` if the thread had no core while the value came.
fn seen_to_return(word: &Memory<'_>, value: u32, work: impl FnOnce() -> Result<(), CudaError>) -> Result<Option<f64>> {
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            ready.wait();
            let begin = Instant::now();
            let mut before = None;
            loop {
                let look = Instant::now();
                if word.word() == value {
                    return before
                        .filter(|before| look.duration_since(*before) < BETWEEN_LOOKS)
                        .and(Some(look));
                }
                if look.duration_since(begin) > BOUND {
                    return None;
                }
                before = Some(look);
            }
        });
        ready.wait();
        work()?;
        let returned = Instant::now();
        let seen = watcher.join().ok().flatten();
        Ok(seen.map(|seen| nanoseconds(returned.duration_since(seen)) - nanoseconds(seen.duration_since(returned))))
    })
}
