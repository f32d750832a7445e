//! Cost of a launch on the host, and time until the device begins it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::bench::{ProbeBench, nanoseconds};
use crate::probe::{Group, Probe};
use crate::report::Clock;

/// The probe.
pub const PROBE: Probe = Probe {
    name: "launch",
    group: Group::Calibration,
    about: "host time of a launch, of a launch and a wait, and until the kernel's first store is seen",
    seconds: 20,
    run,
};

/// Launches between two waits: fewer than any driver's queue holds, so none waits for room.
const BURST: usize = 200;
/// Longest wait for one store.
const BOUND: Duration = Duration::from_secs(10);

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
    let calls = crate::report::Samples::new(calls);
    report.samples("call", "ns", Clock::Host, &calls).print();

    let alone = bench.repeat_calls(500, |_| {
        launch()?;
        Ok(gpu.wait(stream)?)
    })?;
    report.samples("call_and_wait", "ns", Clock::Host, &alone).print();

    let word = gpu.pinned(4096, 4096)?;
    let seen = bench.repeat(500, |round| {
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
    Ok(())
}
