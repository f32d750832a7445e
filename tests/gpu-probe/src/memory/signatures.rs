// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's functions for moving managed memory, and whether both forms of a prefetch work.

use anyhow::Result;

use crate::bench::ProbeBench;
use crate::driver::{BLOCK_BYTES, CudaError, MemoryLocation};
use crate::probe::{Group, Probe};

/// The probe.
pub const PROBE: Probe = Probe {
    name: "signatures",
    group: Group::Memory,
    about: "which prefetch, batch and discard functions the driver has, and both forms of a prefetch",
    seconds: 10,
    run,
};

/// Exported names; a plain one is the oldest form, even if a newer header maps it to another.
const NAMES: [&std::ffi::CStr; 10] = [
    c"cuMemPrefetchAsync",
    c"cuMemPrefetchAsync_ptsz",
    c"cuMemPrefetchAsync_v2",
    c"cuMemPrefetchAsync_v2_ptsz",
    c"cuMemAdvise",
    c"cuMemAdvise_v2",
    c"cuMemPrefetchBatchAsync",
    c"cuMemDiscardBatchAsync",
    c"cuMemDiscardAndPrefetchBatchAsync",
    c"cuMemRangeGetAttribute",
];

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    for name in NAMES {
        let line = report.fact(&name.to_string_lossy(), gpu.exports(name));
        match (gpu.finds(name, 12_000), gpu.finds(name, 13_000)) {
            (Ok(twelve), Ok(thirteen)) => line.and("lookup_12000", twelve).and("lookup_13000", thirteen),
            (Err(error), _) | (_, Err(error)) => line.and("lookup", error.to_string()),
        }
        .print();
    }
    let (memory, stream) = (gpu.managed(BLOCK_BYTES, BLOCK_BYTES)?, gpu.stream()?);
    let told = |name: &str, result: Result<(), CudaError>| {
        let line = report.fact(name, result.is_ok());
        match result {
            Ok(()) => line,
            Err(error) => line.and("reason", error.to_string()),
        }
        .print();
    };
    for (name, place) in [("device", MemoryLocation::DEVICE), ("host", MemoryLocation::HOST)] {
        memory.populate(1);
        let by_number = gpu.prefetch_to_number(memory.whole(), place, stream);
        told(
            &format!("to_{name}_by_number"),
            by_number.and_then(|()| gpu.wait(stream)),
        );
        let by_place = gpu.prefetch_to_place(memory.whole(), place, stream);
        told(&format!("to_{name}_by_place"), by_place.and_then(|()| gpu.wait(stream)));
    }
    Ok(())
}
