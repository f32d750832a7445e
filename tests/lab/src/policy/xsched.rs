//! XSched's highest-priority-first at level 1 (OSDI'25; source bd494cb, `policy/hpf`): each queue
//! has at most 16 commands on the device; a server that hears of each queue's ready and idle edges
//! suspends every queue below the highest ready priority.
//!
//! A queue is ready from its first command to the end of its last. Each edge reaches the server,
//! and the server's word the client, after one hop together (25-65 us to wake a sleeping core; 45
//! us here): what the client gates by is that much old. The in-flight window is the default of its
//! sources.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::{JobView, LabPolicy};
use crate::{Ns, US};

/// From an edge to the suspension or resumption of others.
const HOP_NS: Ns = 45 * US;

/// The rule.
#[derive(Debug)]
pub struct Xsched {
    window: usize,
    /// By job: ready as it is, as the others' clients know it.
    ready: Vec<(bool, bool)>,
    /// Edges on their way: when they arrive, of whom, which.
    edges: VecDeque<(Ns, usize, bool)>,
}

impl Xsched {
    /// With this in-flight window; 16 is the project's own.
    pub fn new(window: usize) -> Xsched {
        Xsched {
            window: window.max(1),
            ready: Vec::new(),
            edges: VecDeque::new(),
        }
    }

    fn arrive(&mut self, now: Ns) {
        while self.edges.front().is_some_and(|(at, _, _)| *at <= now) {
            if let Some((_, job, ready)) = self.edges.pop_front() {
                self.ready[job].1 = ready;
            }
        }
    }
}

impl LabPolicy for Xsched {
    fn may_launch(&mut self, now: Ns, job: usize, jobs: &[JobView]) -> bool {
        self.changed(now, job, jobs);
        self.arrive(now);
        let own = jobs[job];
        let suspended = jobs
            .iter()
            .enumerate()
            .any(|(other, view)| view.priority < own.priority && self.ready.get(other).is_some_and(|ready| ready.1));
        !suspended && own.outstanding < self.window
    }

    fn changed(&mut self, now: Ns, job: usize, jobs: &[JobView]) {
        self.ready.resize(jobs.len(), (false, false));
        // A launch that goes at once is seen here with its work on the device.
        let ready = jobs[job].outstanding > 0 || jobs[job].waits;
        if self.ready[job].0 != ready {
            self.ready[job].0 = ready;
            self.edges.push_back((now + HOP_NS, job, ready));
        }
    }

    fn wake(&mut self, now: Ns) {
        self.arrive(now);
    }

    fn next_wake(&self, _now: Ns) -> Option<Ns> {
        self.edges.front().map(|(at, _, _)| *at)
    }
}
