// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two jobs on managed memory: facts for the simulated GPU's page ledger and for the planner of
//! working sets.
#![forbid(unsafe_code)]

pub mod discard;
pub mod page_table;
pub mod read_mostly;
pub mod signatures;
pub mod swap;

use anyhow::Result;

use crate::bench::{EventPair, ProbeBench};
use crate::driver::{Kernel, Memory, MemoryLocation, Part, Stream};

/// Reason for skipping on the simulated device.
pub const NO_LEDGER: &str =
    "the simulated device has no page ledger: managed memory is resident everywhere, only prefetches take time";

/// Time for which a stream is held while many calls are queued: a hundred of them at 50 us each.
const HOLD_NS: u64 = 5_000_000;

/// Tools of the probes of this folder: a stream, the sweeping kernel, an event pair.
pub struct Tools<'b> {
    bench: &'b ProbeBench,
    /// The stream.
    pub stream: Stream,
    sweep: Kernel,
    pair: EventPair<'b>,
}

impl<'b> Tools<'b> {
    /// Makes the tools of a probe.
    pub fn new(bench: &'b ProbeBench) -> Result<Tools<'b>> {
        Ok(Tools {
            bench,
            stream: bench.gpu.stream()?,
            sweep: bench.gpu.kernel("gpu_probe_sweep")?,
            pair: bench.pair()?,
        })
    }

    /// Device time of a kernel that reads and writes all of a part.
    pub fn sweep(&self, part: Part) -> Result<f64> {
        let words = part.bytes() as u64 / 4;
        // 256 threads a block, 16 bytes a thread.
        let blocks = u32::try_from(words / 4 / 256).unwrap_or(u32::MAX).max(1);
        self.pair.around(self.stream, || {
            Ok(self
                .bench
                .gpu
                .launch(self.sweep, blocks, 256, &[part.address(), words], self.stream)?)
        })
    }

    /// Device time of a prefetch.
    pub fn prefetch(&self, part: Part, place: MemoryLocation) -> Result<f64> {
        self.pair
            .around(self.stream, || Ok(self.bench.gpu.prefetch(part, place, self.stream)?))
    }

    /// Device time of the many calls of `body`.
    pub fn timed(&self, body: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.pair.behind(HOLD_NS, self.stream, body)
    }

    /// Brings every page to the device by writing it there.
    pub fn dirty(&self, memory: &Memory<'_>) -> Result<()> {
        self.prefetch(memory.whole(), MemoryLocation::DEVICE)?;
        self.sweep(memory.whole()).map(drop)
    }
}
