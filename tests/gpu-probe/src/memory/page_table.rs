// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the host's page table shows the pages of managed memory that a kernel pulled to the
//! device. If so, working sets can be learnt without binary instrumentation: populate on the host,
//! let a kernel touch a known part, and read which pages are no longer present.

use anyhow::Result;

use super::NO_LEDGER;
use crate::bench::{ProbeBench, nanoseconds};
use crate::driver::{BLOCK_BYTES, Memory, MemoryLocation};
use crate::host::{PAGE, PageTable, page_table};
use crate::probe::{Group, Probe};
use crate::report::Clock;

/// The probe.
pub const PROBE: Probe = Probe {
    name: "page-table",
    group: Group::Memory,
    about: "whether /proc/self/pagemap shows which pages a kernel pulled to the device",
    seconds: 20,
    run,
};

/// Memory whose pages are read.
const BYTES: usize = 32 << 20;
/// One touch in every second block: prefetches within a block show, and untouched blocks must not
/// change.
const STRIDE_BYTES: usize = 2 * BLOCK_BYTES;
/// Offset of a touch in its block: not 0, so that the pages that the driver brings around it show
/// on both sides.
const OFFSET_BYTES: usize = 256 << 10;
/// Distance of consecutive touches that share a block: 64 KiB.
const DENSE_BYTES: usize = 64 << 10;

fn run(bench: &ProbeBench) -> Result<()> {
    let (gpu, report) = (&bench.gpu, &bench.report);
    let (stream, memory) = (gpu.stream()?, gpu.managed(BYTES, BYTES)?);
    let look = || page_table(memory.address(), memory.bytes());
    let share = |table: &PageTable| {
        let present = table.present.iter().filter(|present| **present).count();
        present as f64 / table.present.len().max(1) as f64
    };
    let tell = |name: &str, table: &PageTable| {
        report
            .value(&format!("present_{name}"), "ratio", Clock::None, share(table))
            .print();
    };

    let never = look()?;
    tell("never_touched", &never);
    memory.populate(1);
    let begin = std::time::Instant::now();
    let populated = look()?;
    let took = nanoseconds(begin.elapsed());
    report
        .value(
            "read_cost",
            "ns/page",
            Clock::Host,
            took / populated.present.len().max(1) as f64,
        )
        .print();
    tell("populated", &populated);
    let frames = if populated.frames {
        "shown"
    } else {
        "hidden (no permission)"
    };
    report.fact("frame_numbers", frames).print();

    // A kernel pulls pages that the host populated.
    touch(bench, &memory, OFFSET_BYTES, STRIDE_BYTES)?;
    let from_host = judged(&populated, &look()?, OFFSET_BYTES, STRIDE_BYTES);
    from_host.print(bench, "after_host");

    gpu.prefetch(memory.whole(), MemoryLocation::DEVICE, stream)?;
    gpu.wait(stream)?;
    tell("on_device", &look()?);
    // Evicted: later looks compare with the pages that the host has mapped now.
    gpu.prefetch(memory.whole(), MemoryLocation::HOST, stream)?;
    gpu.wait(stream)?;
    let evicted = look()?;
    tell("evicted", &evicted);
    touch(bench, &memory, OFFSET_BYTES, STRIDE_BYTES)?;
    judged(&evicted, &look()?, OFFSET_BYTES, STRIDE_BYTES).print(bench, "after_eviction");

    // Evicted, then touched once by the host, which maps every page that came back.
    gpu.prefetch(memory.whole(), MemoryLocation::HOST, stream)?;
    gpu.wait(stream)?;
    memory.populate(3);
    let mapped = look()?;
    tell("evicted_and_touched", &mapped);
    touch(bench, &memory, OFFSET_BYTES, STRIDE_BYTES)?;
    let last = judged(&mapped, &look()?, OFFSET_BYTES, STRIDE_BYTES);
    last.print(bench, "after_eviction_and_touch");
    memory.populate(4);
    touch(bench, &memory, 0, DENSE_BYTES)?;
    judged(&mapped, &look()?, 0, DENSE_BYTES).print(bench, "dense");

    let mut line = report.fact("shows_what_kernels_pulled", from_host.shows() && last.shows());
    if gpu.is_simulated() {
        line = line.and("note", NO_LEDGER);
    }
    line.print();
    Ok(())
}

fn touch(bench: &ProbeBench, memory: &Memory<'_>, offset: usize, stride: usize) -> Result<()> {
    let (gpu, stream) = (&bench.gpu, bench.gpu.stream()?);
    let count = (memory.bytes() - offset).div_ceil(stride);
    let kernel = gpu.kernel("gpu_probe_touch")?;
    let at = memory.address() + offset as u64;
    gpu.launch(kernel, 1, 1, &[at, stride as u64, count as u64], stream)?;
    gpu.wait(stream)?;
    Ok(gpu.end_stream(stream)?)
}

/// Changes of the page table after a known touch.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Judged {
    /// Share of touched pages that are no longer present.
    touched_gone: f64,
    /// Share of pages in untouched blocks that are no longer present.
    others_gone: f64,
    /// Bytes that went with each touch.
    bytes_a_touch: f64,
}

fn judged(before: &PageTable, after: &PageTable, offset: usize, stride: usize) -> Judged {
    let gone: Vec<bool> = before
        .present
        .iter()
        .zip(&after.present)
        .map(|(before, after)| *before && !*after)
        .collect();
    let touched = |page: &usize| page * PAGE >= offset && (page * PAGE - offset).is_multiple_of(stride);
    let touches: Vec<usize> = (0..gone.len()).filter(touched).collect();
    let blocks: std::collections::BTreeSet<usize> = touches.iter().map(|page| page * PAGE / BLOCK_BYTES).collect();
    let others: Vec<usize> = (0..gone.len())
        .filter(|page| !blocks.contains(&(page * PAGE / BLOCK_BYTES)))
        .collect();
    let share = |pages: &[usize]| {
        let count = pages.iter().filter(|page| gone.get(**page) == Some(&true)).count();
        count as f64 / pages.len().max(1) as f64
    };
    let all = gone.iter().filter(|gone| **gone).count();
    Judged {
        touched_gone: share(&touches),
        others_gone: share(&others),
        bytes_a_touch: (all * PAGE) as f64 / touches.len().max(1) as f64,
    }
}

impl Judged {
    fn shows(&self) -> bool {
        self.touched_gone == 1.0 && self.others_gone == 0.0
    }

    fn print(&self, bench: &ProbeBench, when: &str) {
        let report = &bench.report;
        let ratio = |name: &str, value: f64| {
            report
                .value(&format!("{when}_{name}"), "ratio", Clock::None, value)
                .print();
        };
        ratio("touched_gone", self.touched_gone);
        ratio("others_gone", self.others_gone);
        report
            .value(
                &format!("{when}_bytes_a_touch"),
                "bytes",
                Clock::None,
                self.bytes_a_touch,
            )
            .print();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(present: Vec<bool>) -> PageTable {
        PageTable { present, frames: false }
    }

    #[test]
    fn what_a_touch_took_along_is_told_from_what_nobody_touched() {
        const PAGES: usize = 4 * BLOCK_BYTES / PAGE;
        let before = table(vec![true; PAGES]);
        assert_eq!(
            judged(&before, &before, OFFSET_BYTES, STRIDE_BYTES),
            Judged {
                touched_gone: 0.0,
                others_gone: 0.0,
                bytes_a_touch: 0.0
            }
        );
        // Each touch took its 64 KiB.
        let mut after = before.clone();
        for at in [OFFSET_BYTES, OFFSET_BYTES + STRIDE_BYTES] {
            after.present[at / PAGE..][..16].fill(false);
        }
        let seen = judged(&before, &after, OFFSET_BYTES, STRIDE_BYTES);
        assert!(seen.shows());
        assert_eq!(seen.bytes_a_touch, 65_536.0);
        // A page of an untouched block went too.
        after.present[BLOCK_BYTES / PAGE] = false;
        let seen = judged(&before, &after, OFFSET_BYTES, STRIDE_BYTES);
        assert!(!seen.shows() && seen.others_gone > 0.0);
    }
}
