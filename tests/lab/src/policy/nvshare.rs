// SPDX-License-Identifier: MIT OR Apache-2.0
//! nvshare's turns (source 1a8f211): one job at a time has the device, first come first served, for
//! 30 seconds while others want it. A job whose time is over launches no more, drains, and passes
//! the device on; a job that is idle for 5 seconds passes it on as well.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use weft_player::rule::{AddedCost, HostQueue, JobView, PlayedRule};

use crate::{Ns, US};

/// nvshare while it has the lock: 2,718 instead of 2,064 per launch in bursts, 2,648 instead of
/// 2,090 with a wait after each. Its own library on the simulated driver whose launches take 2 us,
/// two cores.
const NVSHARE_NS: AddedCost = AddedCost { launch: 654, wait: 0 };

const SECOND: Ns = 1_000_000 * US;

/// Time for which an idle owner keeps the device.
const IDLE_NS: Ns = 5 * SECOND;

/// The rule.
#[derive(Debug)]
pub struct Nvshare {
    quantum: Ns,
    owner: Option<(usize, Ns)>,
    queue: VecDeque<usize>,
}

impl Nvshare {
    /// The rule with turns of this length; 30 seconds is the project's own.
    pub fn new(quantum: Ns) -> Nvshare {
        Nvshare {
            quantum,
            owner: None,
            queue: VecDeque::new(),
        }
    }

    /// Passes the device on if it is time.
    fn turn(&mut self, now: Ns, jobs: &[JobView]) {
        if let Some((owner, since)) = self.owner {
            let view = jobs[owner];
            let over = !self.queue.is_empty() && now >= since + self.quantum;
            let idle = now >= view.active_at + IDLE_NS && !view.waits;
            if !((over || idle) && view.outstanding == 0) {
                return;
            }
            self.owner = None;
            if view.waits && !self.queue.contains(&owner) {
                self.queue.push_back(owner);
            }
        }
        self.owner = self.queue.pop_front().map(|job| (job, now));
    }
}

impl PlayedRule for Nvshare {
    fn added(&self) -> AddedCost {
        NVSHARE_NS
    }

    fn may_launch(&mut self, now: Ns, job: usize, jobs: &[JobView]) -> bool {
        self.turn(now, jobs);
        match self.owner {
            Some((owner, since)) if owner == job => {
                // If its time is over, it drains.
                self.queue.is_empty() || now < since + self.quantum
            }
            Some(_) => {
                if !self.queue.contains(&job) {
                    self.queue.push_back(job);
                }
                false
            }
            None => {
                self.owner = Some((job, now));
                true
            }
        }
    }

    /// Its hosts wait in the hook of their call.
    fn host_queue(&self) -> HostQueue {
        HostQueue::None
    }

    fn next_wake(&self, now: Ns) -> Option<Ns> {
        let (_, since) = self.owner?;
        if self.queue.is_empty() {
            return None;
        }
        let over = since + self.quantum;
        // After its time it drains; the end of its work asks again. An idle owner is checked every
        // second.
        let look = now - now % SECOND + SECOND;
        Some(if now < over { over.min(look) } else { look })
    }
}
