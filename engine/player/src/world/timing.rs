// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches of a background job that the device times: which ones, and when the broker gets the
//! times. The choice is that of the interposer's profiler, by [`weft_gate::sampling`].
//!
//! One difference: events take no time of the host or the device. Only the budget counts them.
#![forbid(unsafe_code)]

use weft_gate::sampling::{Budget, Pause, READ_INTERVAL_NS, Stride, Work};

use crate::Ns;

/// Time of the host that a sample takes, ns: three records, a query and a read.
const SAMPLE_COST_NS: Ns = 8_000;

/// A timed launch that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimedLaunch {
    pub(super) kernel: u64,
    /// Time of the launch, ns.
    pub(super) at: Ns,
    /// Time between its two events, ns.
    pub(super) time: Ns,
}

/// A job's timed launches.
#[derive(Debug, Default)]
pub(super) struct LaunchTimer {
    budget: Budget,
    stride: Stride,
    pause: Pause,
    /// Launches to pass over, and their number after the last look.
    skip: u32,
    passed: u32,
    /// Whether the last launch was timed: the next one ends its gap.
    open: bool,
    looked: Ns,
    ended: Vec<TimedLaunch>,
}

impl LaunchTimer {
    /// Whether the device times this launch. The ended ones are moved to `read` if it is time to.
    pub(super) fn takes(&mut self, now: Ns, read: &mut Vec<TimedLaunch>) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if std::mem::take(&mut self.open) {
            self.pass_over(now);
            return false;
        }
        if now.saturating_sub(self.looked) > READ_INTERVAL_NS {
            self.looked = now;
            read.append(&mut self.ended);
        }
        self.open = self.budget.allows_serving(now);
        match self.open {
            true => self.budget.spend(Work::Record, SAMPLE_COST_NS),
            false => self.pass_over(now),
        }
        self.open
    }

    /// Asks for a look at the next launch: its kernel waited and has no charge of its own.
    pub(super) fn soon(&mut self) {
        self.skip = 0;
    }

    fn pass_over(&mut self, now: Ns) {
        let most = self.stride.most(now, self.passed);
        self.passed = self.pause.some(most);
        self.skip = self.passed;
    }

    /// Takes in a timed launch that has ended.
    pub(super) fn ended(&mut self, launch: TimedLaunch) {
        self.ended.push(launch);
    }
}
