// SPDX-License-Identifier: MIT OR Apache-2.0
//! An upper bound for any planner: several decoders in equal turns, each swapped out for at most a
//! given time. It is calculated, not run.
//!
//! Each of `k` jobs touches all of its set in each period. Two things bound a round of their turns:
//!
//! * All bytes that exceed the device come in before each job has seen its set once. If the bound
//!   leaves less time, a turn gets through a part of a period, and hardly any granule is used twice
//!   before it leaves.
//! * In longer turns the running job's set is on the device for all of its turn. The next job's
//!   granules come into the room next to it, and displace those of other jobs. So a round moves at
//!   least `L` if nothing is held ready, and `A` if all is. For a share `s` that is not ready,
//!   `(1 - s) A + s L` takes no longer than `x + s L`, where `x` is the own time of all jobs in
//!   the round.
//!
//! In the last period of each turn granules are used for the last time, and others come in their
//! place, `P` in the round. So `x (1 - L / A) = W - L + P (1 - L / A)` for a round of `W`.
//!
//! Unequal turns are not covered. A planner could give one job nearly all of a second, and each
//! other job a step of a few microseconds within any bound. That has the throughput and keeps the
//! bound literally. But a job's next token comes after the others' long turns, later than in equal
//! turns that are long enough.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use weft_engine::memory::{BLOCK_BYTES, MemorySettings};
use weft_paging::Link;

use super::machine::link_of;
use super::workload::{PagedJob, Workload};
use crate::Ns;

/// The decoders' demand on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodersBound {
    jobs: u64,
    /// Time on the link of the bytes that exceed the device, ns: the shortest round in which each
    /// job has seen its set once.
    pub excess: f64,
    /// `L` of the module, ns. `ahead` is `A`, `periods` is `P`.
    least: f64,
    ahead: f64,
    periods: f64,
}

/// Number of granules that a job touches, and of those that it writes.
fn touched(job: &PagedJob) -> (u64, u64) {
    let (mut all, mut written) = (BTreeSet::new(), BTreeSet::new());
    for touch in job.kernels.iter().flat_map(|kernel| &kernel.touches) {
        let granules = touch.range.start / BLOCK_BYTES..touch.range.end().div_ceil(BLOCK_BYTES);
        if touch.access.writes() {
            written.extend(granules.clone());
        }
        all.extend(granules);
    }
    (all.len() as u64, written.len() as u64)
}

impl DecodersBound {
    /// The bound for this workload on a device with this memory; `None` if all fits, or for fewer
    /// than three jobs.
    pub fn of(workload: &Workload, memory: &MemorySettings) -> Option<DecodersBound> {
        let sets: Vec<(u64, u64)> = workload.jobs.iter().map(touched).collect();
        let jobs = sets.len() as u64;
        let sum = |of: fn(&(u64, u64)) -> u64| sets.iter().map(of).sum::<u64>();
        let (all, written) = (sum(|set| set.0), sum(|set| set.1));
        let capacity = memory.capacity / BLOCK_BYTES;
        if jobs < 3 || all <= capacity {
            return None;
        }
        let link = link_of(memory);
        let round = |holds_next: bool| -> f64 {
            let of_set = |&(used, written): &(u64, u64)| {
                let next = if holds_next { (all - used) / (jobs - 1) } else { 0 };
                let others = (all - used - next) as f64;
                let left = capacity as f64 - (used + next) as f64;
                let comes = used as f64 * (1.0 - (left / others).min(1.0));
                time(&link, comes, comes * written as f64 / used.max(1) as f64)
            };
            sets.iter().map(of_set).sum()
        };
        let excess = (all - capacity) as f64;
        Some(DecodersBound {
            jobs,
            excess: time(&link, excess, excess * written as f64 / all as f64),
            least: round(false),
            ahead: round(true),
            periods: workload.jobs.iter().map(|job| job.period() as f64).sum(),
        })
    }

    /// The largest possible part of the throughput when all fits, with no job swapped out for
    /// longer than this, ns.
    pub fn efficiency(&self, swapped_out: Ns) -> f64 {
        let round = swapped_out as f64 * self.jobs as f64 / (self.jobs - 1) as f64;
        let gain = 1.0 - self.least / self.ahead;
        let whole = ((round - self.least) / gain + self.periods) / round.max(1.0);
        let parts = self.periods / self.excess.max(self.periods);
        whole.max(parts).clamp(0.0, 1.0)
    }

    /// The shortest bound on being swapped out at which this efficiency is possible, ns; found by
    /// halving.
    pub fn swapped_out(&self, efficiency: f64) -> Ns {
        let (mut low, mut high) = (0, 1 << 40);
        while low + 1 < high {
            let middle = (low + high) / 2;
            if self.efficiency(middle) >= efficiency {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }
}

/// Time of these numbers of granules on a link, ns.
fn time(link: &Link, inward: f64, outward: f64) -> f64 {
    // The link counts whole granules; the rounding error is a thousandth of one.
    const PARTS: f64 = 1000.0;
    link.time((inward * PARTS) as u64, (outward * PARTS) as u64) as f64 / PARTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MS;
    use crate::memory::workload::generate;

    #[test]
    fn what_exceeds_the_device_has_to_come_in_first() {
        let memory = MemorySettings::default();
        let at = |share| DecodersBound::of(&generate("decoders", memory.capacity, share, 1), &memory);
        assert_eq!(at(100), None);
        let three = at(300).expect("more than fits");
        // Twice 17.2 GB less the untouched bytes, at 41.7 GB/s.
        assert!((600.0..830.0).contains(&(three.excess / 1e6)), "{three:?}");
        // Below that a turn is a part of a period, and the share is that of the link.
        assert!(three.efficiency(500 * MS) < 0.1, "{}", three.efficiency(500 * MS));
        assert_eq!(three.efficiency(3_000 * MS), 1.0);
        let at_60 = three.swapped_out(0.6);
        assert!(at_60 > three.excess as Ns && at_60 < 900 * MS, "{at_60}");
        let two = at(200).expect("more than fits");
        assert!(two.efficiency(500 * MS) > 0.95);
        assert!(two.swapped_out(0.95) < at_60);
    }

    #[test]
    fn the_bound_grows_with_the_time_swapped_out_and_shrinks_with_the_share() {
        let memory = MemorySettings::default();
        let at = |share| DecodersBound::of(&generate("decoders", memory.capacity, share, 1), &memory).expect("short");
        let bounds = [150, 200, 300].map(at);
        for ms in (50..1_500).step_by(50) {
            let all = bounds.map(|bound| bound.efficiency(ms * MS));
            assert!(all[0] >= all[1] && all[1] >= all[2], "{ms}: {all:?}");
            for bound in bounds {
                assert!(bound.efficiency(ms * MS) <= bound.efficiency((ms + 50) * MS));
            }
        }
    }
}
