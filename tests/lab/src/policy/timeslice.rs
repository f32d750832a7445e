// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns of fixed length among all jobs with work. Priorities do not count.
//!
//! A turn ends early when its job is silent for [`SILENT_NS`]. The job with the oldest turn is
//! next. In its turn a job may have [`WINDOW`] launches on the device: a thousand kernels launched
//! ahead would run far beyond the turn. No time is charged for the message that grants a turn.
#![forbid(unsafe_code)]

use weft_player::rule::{JobView, PlayedRule};

use crate::{MS, Ns, US};

/// Length of a turn: 10 ms against 0.2 ms for switching there and back is 2 %.
const TURN_NS: Ns = 10 * MS;

/// Silence that ends a turn. A Python framework launches its next kernel within 100 us.
const SILENT_NS: Ns = 200 * US;

/// Launches of a job on the device: one that runs and some on their way.
pub(super) const WINDOW: usize = 4;

/// The turn, and the jobs that had one before.
#[derive(Debug, Default)]
pub(super) struct FixedTurns {
    /// The job whose turn it is, and the turn's end.
    current: Option<(usize, Ns)>,
    /// Begin of each job's last turn.
    begun: Vec<Ns>,
    /// When the waiting jobs are to ask again.
    pub(super) again: Option<Ns>,
}

impl FixedTurns {
    /// Whether it is this job's turn among the jobs that `takes_part` names.
    pub(super) fn is_of(
        &mut self,
        now: Ns,
        job: usize,
        jobs: &[JobView],
        takes_part: impl Fn(&JobView) -> bool,
    ) -> bool {
        if let Some((owner, until)) = self.current
            && now < until
        {
            let view = &jobs[owner];
            let silent_at = view.active_at + SILENT_NS;
            let working = view.waits || view.outstanding > 0;
            if owner == job {
                return true;
            }
            if working || now < silent_at {
                self.again = Some(if working { until } else { until.min(silent_at) });
                return false;
            }
        }
        self.begun.resize(jobs.len(), 0);
        let wants = |&at: &usize| at == job || (jobs[at].waits && takes_part(&jobs[at]));
        let next = (0..jobs.len())
            .filter(wants)
            .min_by_key(|at| self.begun[*at])
            .unwrap_or(job);
        self.begun[next] = now;
        self.current = Some((next, now + TURN_NS));
        // Another job whose turn begins asks at once.
        self.again = Some(if next == job { now + TURN_NS } else { now + 1 });
        next == job
    }
}

/// The rule.
#[derive(Debug, Default)]
pub struct Timeslice(FixedTurns);

impl PlayedRule for Timeslice {
    fn may_launch(&mut self, now: Ns, job: usize, jobs: &[JobView]) -> bool {
        self.0.is_of(now, job, jobs, |_| true) && jobs[job].outstanding < WINDOW
    }

    fn next_wake(&self, now: Ns) -> Option<Ns> {
        self.0.again.filter(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_by_time_or_silence_and_the_oldest_is_next() {
        let (mut rule, mut jobs) = (Timeslice::default(), [JobView::default(); 3]);
        let mut now = MS;
        assert!(rule.may_launch(now, 0, &jobs));
        jobs[0] = JobView {
            outstanding: 1,
            active_at: now,
            ..JobView::default()
        };
        for job in [1, 2] {
            assert!(!rule.may_launch(now, job, &jobs), "the first job has the turn");
            jobs[job].waits = true;
        }
        assert_eq!(rule.next_wake(now), Some(now + TURN_NS));
        now += TURN_NS;
        jobs[0].waits = true;
        assert!(!rule.may_launch(now, 0, &jobs) && rule.may_launch(now, 1, &jobs));
        // The second job leaves the device.
        jobs[1] = JobView {
            active_at: now,
            ..JobView::default()
        };
        assert!(!rule.may_launch(now, 2, &jobs));
        assert_eq!(rule.next_wake(now), Some(now + SILENT_NS));
        now += SILENT_NS;
        assert!(rule.may_launch(now, 2, &jobs));
        jobs[2].outstanding = WINDOW;
        assert!(!rule.may_launch(now, 2, &jobs), "no more than its window");
    }
}
