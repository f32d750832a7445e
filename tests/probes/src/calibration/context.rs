//! What the device has, and what a context takes of it.

use anyhow::Result;

use crate::bench::Bench;
use crate::probes::{Group, Probe};
use crate::report::Clock;

/// The probe.
pub const PROBE: Probe = Probe {
    name: "context",
    group: Group::Calibration,
    about: "memory, threads at once, and what another process's context takes",
    seconds: 30,
    run,
};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` and `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
const MULTIPROCESSORS: i32 = 16;
const THREADS: i32 = 39;

fn run(bench: &Bench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    report
        .value("device_memory", "bytes", Clock::None, gpu.total_memory()?)
        .print();
    let threads = gpu.attribute(MULTIPROCESSORS)?.saturating_mul(gpu.attribute(THREADS)?);
    report.value("threads_at_once", "threads", Clock::None, threads).print();
    Ok(())
}
