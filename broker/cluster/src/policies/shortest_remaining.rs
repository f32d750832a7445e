//! Shortest remaining time first, with preemption. It knows what no real scheduler knows, how long
//! each job will run, and is a bound more than a policy.
//!
//! Remaining: where steps were seen, the run so far tells how long the rest takes. Else the
//! expected run less what was run. A job of which nothing is known goes last.

use super::{ClusterPolicy, OrderKey, RankedJob};
use crate::Ns;

/// By what is left of the run.
#[derive(Debug, Clone)]
pub struct ShortestRemaining;

fn remaining(job: &RankedJob) -> Ns {
    match job.expected {
        Some(expected) => expected.saturating_sub(job.ran),
        None if job.done_ppm > 0 && job.ran > 0 => {
            let done = u128::from(job.done_ppm);
            (u128::from(job.ran) * (1_000_000 - done.min(1_000_000)) / done) as Ns
        }
        None => Ns::MAX,
    }
}

impl ClusterPolicy for ShortestRemaining {
    fn name(&self) -> &'static str {
        "shortest-remaining"
    }

    fn keyed(&self) -> bool {
        true
    }

    fn key(&mut self, _now: Ns, job: &RankedJob) -> OrderKey {
        OrderKey(u128::from(remaining(job)), 0)
    }

    fn preempts(&self) -> bool {
        true
    }
}
