// SPDX-License-Identifier: MIT OR Apache-2.0
//! XSched's highest-priority-first at level 1 (OSDI'25; source bd494cb, `policy/hpf`; 382a5d8,
//! `preempt/src/xqueue`).
//!
//! From the source: a launch copies its parameters into a queue without a bound and returns. A
//! worker forwards the queue's commands and keeps at most `threshold` (16) in flight. Every
//! `batch`th (8th) can be waited for: at the threshold the worker waits for the first of those, and
//! then forwards as many again. This holds for every queue, the most important one too. A server
//! receives each queue's ready and idle edges, and suspends every queue below the highest ready
//! priority.
//!
//! Not in the source: the time of an edge. The edge to the server and the server's order to the
//! client take one hop together (25-65 us to wake a sleeping core; 45 us here). The state by which
//! the client gates is old by that time.
//!
//! Names: a queue is a job's ([`HostQueue::All`]), whatever its streams. A queue is ready from its
//! first command to the end of its last. The worker of an idle queue sleeps, as the source's does,
//! and so does a host that waits; each is woken in 25-65 us. In the source a worker whose queue is
//! empty waits for all work in flight before it takes the next command; here it does not.
//!
//! The worker makes the service's launches on a core of its own, which any rule could have. To
//! compare rules and not cores, a foreground call takes its host as long as the launch. With
//! [`Xsched::spares_launches`] it takes 1 us, as measured for XSched: a service that is limited by
//! its host is then faster than in a solo run.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use weft_player::rule::{HostQueue, JobView, PlayedRule};

use crate::{Ns, US};

/// Time from an edge to the suspension or resumption of others.
const HOP_NS: Ns = 45 * US;

/// Distance in commands between two that can be waited for.
const BATCH: u64 = 8;

/// A worker's knowledge of its queue.
#[derive(Debug, Clone, Copy, Default)]
struct Forwarded {
    /// Number of forwarded commands.
    forwarded: u64,
    /// Number of commands that it knows to have ended.
    known: u64,
    /// Whether it is ready, and whether the other jobs' clients know it as ready.
    ready: (bool, bool),
}

/// The rule.
#[derive(Debug)]
pub struct Xsched {
    threshold: u64,
    batch: u64,
    spares_launches: bool,
    /// By job.
    queues: Vec<Forwarded>,
    /// Edges in flight: arrival time, job, whether ready.
    edges: VecDeque<(Ns, usize, bool)>,
}

impl Xsched {
    /// The rule with this in-flight window; 16 is the project's own.
    pub fn new(window: usize) -> Xsched {
        let threshold = window.max(1) as u64;
        Xsched {
            threshold,
            // The source refuses a threshold below the batch.
            batch: BATCH.min(threshold),
            spares_launches: false,
            queues: Vec::new(),
            edges: VecDeque::new(),
        }
    }

    /// The same rule, but its worker's core saves the service the time of its launches.
    pub fn spares_launches(self) -> Xsched {
        Xsched {
            spares_launches: true,
            ..self
        }
    }

    fn arrive(&mut self, now: Ns) {
        while self.edges.front().is_some_and(|(at, _, _)| *at <= now) {
            if let Some((_, job, ready)) = self.edges.pop_front() {
                self.queues[job].ready.1 = ready;
            }
        }
    }
}

impl PlayedRule for Xsched {
    fn may_launch(&mut self, now: Ns, job: usize, jobs: &[JobView]) -> bool {
        self.changed(now, job, jobs);
        self.arrive(now);
        let own = jobs[job];
        let above = |(other, view): (usize, &JobView)| {
            view.priority < own.priority && self.queues.get(other).is_some_and(|queue| queue.ready.1)
        };
        if jobs.iter().enumerate().any(above) {
            return false;
        }
        let queue = &mut self.queues[job];
        if own.outstanding == 0 {
            queue.known = queue.forwarded;
        }
        if queue.forwarded - queue.known < self.threshold {
            return true;
        }
        let ended = queue.forwarded - (own.outstanding as u64).min(queue.forwarded);
        let waited_for = (queue.known / self.batch + 1) * self.batch;
        if ended >= waited_for {
            queue.known = waited_for;
        }
        ended >= waited_for
    }

    fn changed(&mut self, now: Ns, job: usize, jobs: &[JobView]) {
        self.queues.resize(jobs.len(), Forwarded::default());
        let own = jobs[job];
        let ready = own.outstanding > 0 || own.queued > 0 || own.waits;
        if self.queues[job].ready.0 != ready {
            self.queues[job].ready.0 = ready;
            self.edges.push_back((now + HOP_NS, job, ready));
        }
    }

    fn launched(&mut self, now: Ns, job: usize, jobs: &[JobView]) {
        self.changed(now, job, jobs);
        self.queues[job].forwarded += 1;
    }

    fn wake(&mut self, now: Ns) {
        self.arrive(now);
    }

    fn next_wake(&self, _now: Ns) -> Option<Ns> {
        self.edges.front().map(|(at, _, _)| *at)
    }

    fn host_queue(&self) -> HostQueue {
        HostQueue::All {
            spares_launches: self.spares_launches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(priority: u8, outstanding: usize) -> JobView {
        JobView {
            priority,
            outstanding,
            ..JobView::default()
        }
    }

    /// Number of launches that job 0 makes until the rule stops it.
    fn forwards(rule: &mut Xsched, mut jobs: Vec<JobView>) -> usize {
        let mut count = 0;
        while rule.may_launch(0, 0, &jobs) && count < 100 {
            jobs[0].outstanding += 1;
            rule.launched(0, 0, &jobs);
            count += 1;
        }
        count
    }

    #[test]
    fn a_worker_forwards_sixteen_and_goes_on_by_eights() {
        let mut rule = Xsched::new(16);
        assert_eq!(forwards(&mut rule, vec![view(0, 0)]), 16);
        // Seven have ended: it waits for the eighth.
        assert_eq!(forwards(&mut rule, vec![view(0, 9)]), 0);
        assert_eq!(forwards(&mut rule, vec![view(0, 8)]), 8);
        // All have ended.
        assert_eq!(forwards(&mut rule, vec![view(0, 0)]), 16);
    }

    #[test]
    fn a_ready_queue_suspends_those_below_one_hop_later() {
        let mut rule = Xsched::new(16);
        let jobs = [view(0, 1), view(5, 0)];
        rule.changed(0, 0, &jobs);
        assert!(rule.may_launch(HOP_NS - 1, 1, &jobs));
        assert_eq!(rule.next_wake(0), Some(HOP_NS));
        assert!(!rule.may_launch(HOP_NS, 1, &jobs));
        assert!(rule.may_launch(HOP_NS, 0, &jobs));
        let idle = [view(0, 0), view(5, 0)];
        rule.changed(2 * HOP_NS, 0, &idle);
        assert!(!rule.may_launch(3 * HOP_NS - 1, 1, &idle));
        assert!(rule.may_launch(3 * HOP_NS, 1, &idle));
    }

    #[test]
    fn commands_in_the_queue_make_it_ready() {
        let mut rule = Xsched::new(16);
        let queued = JobView {
            queued: 1,
            ..view(0, 0)
        };
        let jobs = [queued, view(5, 0)];
        rule.changed(0, 0, &jobs);
        assert!(!rule.may_launch(HOP_NS, 1, &jobs));
    }
}
