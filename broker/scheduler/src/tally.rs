// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tallies of one client, for people: its use of the device, and how much of that was known. They
//! decide nothing.

use serde::Serialize;
use weft_protocol::{Ns, lane::HOST_COPY};

/// Time of a launch below which its uncertain part, 3 us, is more than a tenth, ns. The device
/// reaches an event on an idle stream when the host records it. A record and a launch take the host
/// that time.
const BRIEF_NS: Ns = 30_000;

/// Launches of a client in one role, kernels, graphs and copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RoleTally {
    /// Their predicted GPU time, ns. Copies between host and device have engines of their own.
    pub gpu: Ns,
    /// Launches in it that are too short to be timed exactly.
    pub brief: u64,
    /// Part of `gpu` that is only a bound, ns: times from first launches to waits, and the part of
    /// measured times that may be a switch or another job's work.
    pub at_most: Ns,
    /// The most that the real GPU time exceeds `gpu`, ns: launches without a known time.
    pub uncounted: Ns,
    /// Launches that are predicted to take longer than the delay bound.
    pub over_bound: u64,
    /// The longest prediction, ns.
    pub longest: Ns,
    /// Hash of its kernel; 0: a copy, or none.
    pub longest_kernel: u64,
    /// Longest time that changes only the sum, ns: that of the launches before, up to the delay
    /// bound.
    #[serde(skip)]
    pub(crate) usual: Ns,
}

impl RoleTally {
    /// Takes in a launch of predicted `time`, ns. `bound`: the delay bound, ns.
    #[inline]
    pub fn launched(&mut self, kernel: u64, time: Ns, bound: Ns) {
        if kernel != HOST_COPY {
            self.gpu = self.gpu.saturating_add(time);
            self.brief += u64::from(time < BRIEF_NS);
        }
        if time > self.usual {
            self.launched_long(kernel, time, bound);
        }
    }

    /// Takes in `count` kernels of one time. `gpu`: their GPU time, ns.
    pub(crate) fn launched_often(&mut self, kernel: u64, (time, gpu): (Ns, Ns), count: u64, bound: Ns) {
        self.gpu = self.gpu.saturating_add(gpu);
        self.brief += count * u64::from(time < BRIEF_NS);
        if time > self.usual && count > 0 {
            self.over_bound += (count - 1) * u64::from(time > bound);
            self.launched_long(kernel, time, bound);
        }
    }

    /// Rarely called: a usual launch adds to one word after one comparison.
    #[cold]
    #[inline(never)]
    fn launched_long(&mut self, kernel: u64, time: Ns, bound: Ns) {
        if time > bound {
            self.over_bound += 1;
        }
        if time > self.longest {
            (self.longest, self.longest_kernel) = (time, kernel);
        }
        self.usual = self.longest.min(bound);
    }
}

/// Lateness that background work caused at a foreground job's waits, measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Lateness {
    /// Its sum, ns. Below zero if measurements scatter.
    pub late: f64,
    /// Time that the judged stretches would have taken without background work, ns.
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

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND_NS: Ns = 500;

    #[test]
    fn each_launch_over_the_bound_is_counted_and_the_longest_is_known() {
        let mut tally = RoleTally::default();
        for (kernel, time) in [
            (1, 0),
            (2, 300),
            (3, 200),
            (4, 300),
            (5, 501),
            (6, 501),
            (7, 500),
            (8, 900),
            (9, 700),
        ] {
            tally.launched(kernel, time, BOUND_NS);
        }
        tally.launched(HOST_COPY, 800, BOUND_NS);
        assert_eq!(tally.gpu, 3_902);
        let (mut often, mut each) = (tally, tally);
        for (time, count) in [(100, 0), (400, 1), (600, 3)] {
            often.launched_often(7, (time, time * count), count, BOUND_NS);
            (0..count).for_each(|_| each.launched(7, time, BOUND_NS));
        }
        assert_eq!(often, each);
        assert_eq!(tally.over_bound, 5, "501 twice, 900, 700 and the copy");
        assert_eq!((tally.longest, tally.longest_kernel), (900, 8));
    }
}
