// SPDX-License-Identifier: MIT OR Apache-2.0
//! The batch work that the device's time allows, whatever the rule: a bound that holds for every
//! rule on a device that runs one kernel at a time.
//!
//! ```text
//! batch work, of alone <= min(1 - f, a) / b
//!   f  part of the time in which foreground kernels run
//!   b  part of the time in which the batch job's kernels run when it is alone
//!   a  the same on an empty device, if its launches return as soon as with a launch queue
//! ```
//!
//! The device does one thing at a time, so batch kernels run in `1 - f` of the time at most. The
//! bound does not depend on gaps: a kernel may begin in one and outlast it, which the packer's may
//! not ([`crate::oracle`]). A host may launch ahead and so do more than in a solo run, but no more
//! than `a`. With several batch jobs, the one that needs the least device time for its work goes
//! first.
//!
//! `f` is taken from the run without batch jobs: the bound is then one at no added latency, and the
//! same for all rules of a case ([`crate::compare::CaseFigures::bound`]). In a closed loop a rule
//! that delays requests lets fewer of them come, and leaves more device time. With the `f` of its
//! own run the bound holds for that run ([`crate::compare::CaseFigures::own_bound`]). Launches that
//! a queue held before the first counted request may come on top of `a`.
#![forbid(unsafe_code)]

use weft_player::{MachineRun, PlayedJob};

use crate::Ns;
use crate::oracle::{ForegroundGaps, GapUse, OracleBackground};

/// A batch job's parts of the time in which its kernels run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchDemand {
    /// In a solo run.
    pub alone: f64,
    /// On an empty device, if its launches return as with a launch queue.
    pub ahead: f64,
}

/// The most work of all batch jobs, relative to their solo runs, in this part of the device's time.
pub fn most(left: f64, jobs: &[BatchDemand]) -> f64 {
    let mut jobs: Vec<&BatchDemand> = jobs.iter().filter(|job| job.alone > 0.0).collect();
    jobs.sort_by(|one, other| one.alone.total_cmp(&other.alone));
    let mut left = left.max(0.0);
    let mut sum = 0.0;
    for job in jobs {
        let taken = left.min(job.ahead.max(job.alone));
        sum += taken / job.alone;
        left -= taken;
    }
    sum
}

/// The part of the time in which kernels ran, from the arrival of the first job's request number
/// `warmup` on.
pub fn device_share(run: &MachineRun, warmup: usize) -> f64 {
    let begin = run.jobs[0].arrivals.get(warmup).copied().unwrap_or(0);
    let counted = run.pieces.iter().filter(|piece| piece.start >= begin);
    let sum: Ns = counted.map(|piece| piece.end - piece.start).sum();
    sum as f64 / run.span.saturating_sub(begin).max(1) as f64
}

/// [`BatchDemand::ahead`] of a job after its solo run, in this place of a set, over the same time.
pub fn ahead(job: &PlayedJob, place: usize, alone: &MachineRun) -> f64 {
    let empty = ForegroundGaps {
        windows: vec![(0, alone.span)],
        preemptive: true,
    };
    let background = OracleBackground {
        job,
        number: place as u64,
        seed: alone.seed,
        inside: &[],
        launch_latency: alone.device.launch_latency,
        sync_return: alone.sync_return,
        gated: false,
    };
    background.most(&empty, &mut GapUse(vec![0])) as f64 / alone.span.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_work_goes_first() {
        let job = |alone, ahead| BatchDemand { alone, ahead };
        let near = |value: f64, right: f64| assert!((value - right).abs() < 1e-9, "{value} {right}");
        // The limit is the device, then the host, then the host with a queue.
        near(most(0.3, &[job(0.6, 0.6)]), 0.5);
        near(most(0.9, &[job(0.6, 0.6)]), 1.0);
        near(most(0.9, &[job(0.6, 0.75)]), 1.25);
        near(most(-0.1, &[job(0.6, 0.6)]), 0.0);
        // All of the second, half of the first.
        near(most(0.6, &[job(0.8, 0.8), job(0.2, 0.2)]), 1.5);
        // A job that does not use the device has no throughput.
        near(most(0.5, &[job(0.0, 0.0)]), 0.0);
    }
}
