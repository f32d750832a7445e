// SPDX-License-Identifier: MIT OR Apache-2.0
//! The most important active job runs without others.
//!
//! A job is active while it has work and for [`GRACE_NS`] after it. Then the next priority may have
//! a few launches on the device, so that the more important job finds it nearly free. Equals share:
//! foreground jobs at the same time, background jobs in turns. No time is charged for the message
//! that admits a job.
#![forbid(unsafe_code)]

use super::timeslice::{FixedTurns, WINDOW};
use weft_player::rule::{JobView, PlayedRule};

use crate::{MS, Ns};

/// Silence of a job after which the next may run. Jobs pause for some ms between steps.
const GRACE_NS: Ns = 10 * MS;

/// The rule.
#[derive(Debug, Default)]
pub struct ExclusivePriority(FixedTurns);

impl PlayedRule for ExclusivePriority {
    fn may_launch(&mut self, now: Ns, job: usize, jobs: &[JobView]) -> bool {
        let own = jobs[job];
        if own.is_foreground(jobs) {
            return true;
        }
        // A job that never launched has not been active.
        let above = jobs
            .iter()
            .filter(|view| view.priority < own.priority && view.active_at > 0);
        let active_until = |view: &JobView| match view.waits || view.outstanding > 0 {
            true => Ns::MAX,
            false => view.active_at + GRACE_NS,
        };
        let free_at = above.map(active_until).max().unwrap_or(0);
        if now < free_at {
            self.0.again = Some(free_at).filter(|at| *at < Ns::MAX);
            return false;
        }
        let equal = |view: &JobView| view.priority == own.priority;
        self.0.is_of(now, job, jobs, equal) && own.outstanding < WINDOW
    }

    fn next_wake(&self, now: Ns) -> Option<Ns> {
        self.0.again.filter(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_background_job_waits_for_a_silence_of_the_foreground_job() {
        let (mut rule, now) = (ExclusivePriority::default(), 100 * MS);
        let mut jobs = [0, 5].map(|priority| JobView {
            priority,
            active_at: now,
            ..JobView::default()
        });
        jobs[0].outstanding = 1;
        assert!(rule.may_launch(now, 0, &jobs) && !rule.may_launch(now, 1, &jobs));
        assert_eq!(rule.next_wake(now), None, "the end of the work asks again");
        jobs[0].outstanding = 0;
        assert!(!rule.may_launch(now, 1, &jobs));
        assert_eq!(rule.next_wake(now), Some(now + GRACE_NS));
        assert!(rule.may_launch(now + GRACE_NS, 1, &jobs));
    }
}
