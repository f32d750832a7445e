//! Tallies of one client, for people: what it had of the device, and what of it was known. They
//! decide nothing.

use serde::Serialize;
use weft_protocol::Ns;

/// Launches of a client in one role, kernels, graphs and copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RoleTally {
    /// Their predicted GPU time, ns.
    pub gpu: Ns,
    /// Launches that are predicted to take longer than the delay bound.
    pub over_bound: u64,
    /// The longest prediction, ns.
    pub longest: Ns,
    /// Hash of its kernel; 0: a copy, or none.
    pub longest_kernel: u64,
}

impl RoleTally {
    /// Takes in a launch of predicted `time`, ns. `bound`: the delay bound, ns.
    pub fn launched(&mut self, kernel: u64, time: Ns, bound: Ns) {
        self.gpu = self.gpu.saturating_add(time);
        // Hardly ever: a launch adds to one word.
        if time > bound {
            self.over_bound += 1;
        }
        if time > self.longest {
            (self.longest, self.longest_kernel) = (time, kernel);
        }
    }
}

/// Lateness that background work caused at a foreground job's waits, measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Lateness {
    /// Its sum, ns. Below zero where measurements scatter.
    pub late: f64,
    /// What the judged stretches would have taken alone, ns.
    pub alone: f64,
    /// Judged stretches.
    pub waits: u64,
    /// Length of all stretches, judged or not, ns.
    pub stretches: f64,
}

impl Lateness {
    /// Slowdown: a part of the job's own time. `None`: nothing was judged.
    pub fn part(&self) -> Option<f64> {
        (self.alone > 0.0).then(|| self.late / self.alone)
    }
}
