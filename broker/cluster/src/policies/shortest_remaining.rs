// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shortest remaining time first, with preemption. It knows how long each job will run, as no real
//! scheduler does, so it is a bound more than a policy.
//!
//! The remaining time follows from the run so far, if steps were seen. Else it is the expected run
//! less the past run. A job without either goes last.

use super::{ClusterPolicy, OrderKey, RankedJob};
use crate::Ns;

/// Order by remaining run time.
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
