// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admitted jobs that are suspended before they take memory. They must not keep other jobs out.
//!
//! A stopped waiting job (SIGSTOP, Ctrl-Z) does not notice its admission, and its memory would
//! remain reserved. After [`LONGEST_NS`] it waits again, at its old place, until it is resumed. A
//! job that has taken memory keeps it, because memory cannot be taken back.
//!
//! Checks happen only while other jobs wait, with one read of `/proc` per process and
//! [`CHECK_NS`]. A resumed client reads its admission slot before it takes memory, and waits.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::job_table::JobTable;
use weft_admission::{Admission, Job};
use weft_protocol::Ns;

/// Time for which an admitted job may be suspended: a short stop costs it nothing.
const LONGEST_NS: Ns = 3_000_000_000;

/// Interval of checks.
const CHECK_NS: Ns = 250_000_000;

/// Suspension of a job.
#[derive(Debug)]
struct Suspension {
    since: Ns,
    /// Whether it was put back into the queue.
    queued: bool,
}

/// The suspended jobs without memory.
#[derive(Debug, Default)]
pub struct SuspendedJobs {
    jobs: HashMap<Job, Suspension>,
    checked_at: Ns,
}

/// Result of a check.
#[derive(Debug, Default)]
pub struct SuspensionCheck {
    /// Jobs that go back into the queue.
    pub suspended: Vec<Job>,
    /// Jobs in the queue that were resumed.
    pub resumed: Vec<Job>,
}

impl SuspendedJobs {
    /// Checks all jobs, if it is time and others wait.
    pub fn check(&mut self, now: Ns, machine: &Admission, jobs: &JobTable) -> SuspensionCheck {
        let mut found = SuspensionCheck::default();
        if machine.count().0 == 0 || now.saturating_sub(self.checked_at) < CHECK_NS {
            return found;
        }
        self.checked_at = now;
        self.jobs.retain(|job, _| jobs.gang(*job).is_some());
        for (job, gang) in jobs.iter() {
            let runs = machine.share(job).is_some();
            let queued = self.jobs.get(&job).is_some_and(|known| known.queued);
            if (!runs && !queued) || !gang.is_suspended_and_empty() {
                self.jobs.remove(&job);
                if queued && !runs {
                    found.resumed.push(job);
                }
                continue;
            }
            let new = Suspension { since: now, queued };
            let known = self.jobs.entry(job).or_insert(new);
            if runs && now.saturating_sub(known.since) >= LONGEST_NS {
                known.queued = true;
                found.suspended.push(job);
            }
        }
        found
    }
}
