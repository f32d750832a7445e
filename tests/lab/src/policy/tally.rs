// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tally's priority rule (ASPLOS'25; source 02d6da0, `src/tally/scheduler/priority.cpp`). The
//! paper's full text was not at hand; its bound is from other papers.
//!
//! From the source: a server holds every client's kernels. It launches all of the highest-priority
//! client's. A lower client has at most one kernel on the device, and only while those above have
//! none there, launched or waiting. Copies do not count. A kernel that runs at the high-priority
//! client's arrival is stopped. For that the PTX of low-priority kernels is rewritten: into slices
//! of the grid, or into blocks that persist and look at a flag between two pieces of work. Among
//! the ways to rewrite a kernel a profile finds one whose estimated time to stop is below a bound:
//! 0.1 ms in the source, 0.0316 ms in the paper. For slices the server allows 30 % of overhead:
//! `slices = ceil(1.3 * time / bound)`, at most one for each block. A kernel below the bound stays
//! unchanged.
//!
//! Not in the source: the time until the flag is seen. Nothing is charged for it.
//!
//! Names: a kernel with the profile's time `t` above the bound runs in `slices` pieces of equal
//! length and takes `1.3 * t` in all. Each piece but the first begins if the jobs above have
//! nothing on the device. Otherwise it waits until they have nothing and then takes as long as a
//! launch to reach the device. The high-priority client's kernels are not rewritten. Neither are
//! graphs, nor kernels that no profile knows. Batch work is counted without the overhead, gaps are
//! filled with it. Rewritten kernels may compute other results, and libraries without PTX are
//! replaced by slower ones; neither costs anything here.
#![forbid(unsafe_code)]

use weft_player::rule::{JobView, KernelPieces, PlayedRule};

use crate::Ns;

/// Time, ns, within which a low-priority kernel must stop.
const BOUND_NS: Ns = 31_600;

/// Time of a rewritten kernel, in thousandths of the original.
const REWRITTEN_PERMILLE: u64 = 1_300;

/// The rule.
#[derive(Debug)]
pub struct TallyPriority;

impl PlayedRule for TallyPriority {
    fn may_launch(&mut self, _now: Ns, job: usize, jobs: &[JobView]) -> bool {
        let own = jobs[job];
        if own.is_foreground(jobs) || own.next.transfer {
            return true;
        }
        let mut below = jobs.iter().filter(|view| !view.is_foreground(jobs));
        self.may_go_on(job, jobs) && below.all(|view| view.kernels == 0)
    }

    fn pieces(&self, job: usize, jobs: &[JobView]) -> Option<KernelPieces> {
        let (own, kernel) = (jobs[job], jobs[job].next);
        let pieces = (kernel.time * REWRITTEN_PERMILLE / 1_000)
            .div_ceil(BOUND_NS)
            .min(u64::from(kernel.needs.blocks));
        if own.is_foreground(jobs) || kernel.transfer || kernel.time <= BOUND_NS || pieces < 2 {
            return None;
        }
        Some(KernelPieces {
            count: pieces as u32,
            permille: REWRITTEN_PERMILLE,
        })
    }

    fn may_go_on(&self, job: usize, jobs: &[JobView]) -> bool {
        let own = jobs[job];
        let mut above = jobs.iter().filter(|view| view.priority < own.priority);
        above.all(|view| view.kernels == 0 && view.queued == 0 && !view.waits)
    }
}

#[cfg(test)]
mod tests {

    use weft_player::rule::{KernelNeeds, LaunchView};

    use super::*;
    use crate::US;

    fn jobs(time: Ns, blocks: u32) -> [JobView; 3] {
        let next = LaunchView {
            time,
            needs: KernelNeeds {
                blocks,
                ..KernelNeeds::default()
            },
            transfer: false,
        };
        let job = |priority| JobView {
            priority,
            next,
            ..JobView::default()
        };
        [job(0), job(5), job(7)]
    }

    #[test]
    fn one_low_priority_kernel_goes_while_nothing_above_is_there() {
        let mut rule = TallyPriority;
        let mut jobs = jobs(100 * US, 1_000);
        assert!(rule.may_launch(0, 1, &jobs) && rule.may_launch(0, 2, &jobs));
        jobs[2].kernels = 1;
        assert!(!rule.may_launch(0, 1, &jobs) && !rule.may_launch(0, 2, &jobs));
        // It continues, and stops for any job above it.
        assert!(rule.may_go_on(2, &jobs));
        jobs[1].kernels = 1;
        assert!(rule.may_go_on(1, &jobs) && !rule.may_go_on(2, &jobs));
        jobs[0].kernels = 1;
        assert!(!rule.may_go_on(1, &jobs) && rule.may_launch(0, 0, &jobs));
    }

    #[test]
    fn kernels_beyond_the_bound_are_cut() {
        let count = |time, blocks| {
            TallyPriority
                .pieces(1, &jobs(time, blocks))
                .map_or(1, |pieces| pieces.count)
        };
        assert_eq!(count(BOUND_NS, 1_000), 1);
        // 1.3 x 316 us / 31.6 us.
        assert_eq!(count(10 * BOUND_NS, 1_000), 13);
        assert_eq!(count(10 * BOUND_NS, 4), 4);
        assert_eq!(count(10 * BOUND_NS, 1), 1);
        assert_eq!(TallyPriority.pieces(0, &jobs(10 * BOUND_NS, 1_000)), None);
    }
}
