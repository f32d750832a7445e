// SPDX-License-Identifier: MIT OR Apache-2.0
//! A count-based window: while the most important job has nothing on the device, the others may
//! have a fixed number of kernels there.
//!
//! Several layers without knowledge of kernel times do this. Permission is a word in shared memory,
//! so no hop is charged: the best case of the idea.
#![forbid(unsafe_code)]

use weft_player::rule::{JobView, PlayedRule};

use crate::Ns;

/// The rule.
#[derive(Debug)]
pub struct Count {
    window: usize,
}

impl Count {
    /// The rule with this number of kernels.
    pub fn new(window: usize) -> Count {
        Count { window: window.max(1) }
    }
}

impl PlayedRule for Count {
    fn may_launch(&mut self, _now: Ns, job: usize, jobs: &[JobView]) -> bool {
        let first = jobs.iter().map(|job| job.priority).min().unwrap_or(0);
        if jobs[job].priority == first {
            return true;
        }
        let foreground_idle = jobs
            .iter()
            .filter(|job| job.priority == first)
            .all(|job| job.outstanding == 0);
        let out: usize = jobs
            .iter()
            .filter(|job| job.priority != first)
            .map(|job| job.outstanding)
            .sum();
        foreground_idle && out < self.window
    }
}
