// SPDX-License-Identifier: MIT OR Apache-2.0
//! Background work on the device by the clock, and the lead with which the next kernel is granted.
//!
//! The ledger learns late which work has ended. In this model, work also ends as time passes. The
//! ledger keeps the delay bound: a wrong clock costs idle time or delay, but never the bound.

use std::collections::VecDeque;

use weft_protocol::Ns;

use crate::queue::ClientSlot;

/// Time from a launch to its start on an idle device, ns: 4 to 6 us on recent cards.
const LAUNCH_NS: Ns = 5_000;

/// Limit of a learnt delay, ns: anything longer is a busy machine.
const LONGEST_ORDER_NS: Ns = 400_000;

/// Background jobs' work by the clock.
#[derive(Debug, Clone, Default)]
pub(super) struct DeviceClock {
    /// Predicted end of all of it.
    free_at: Ns,
    /// Whether the foreground job launched since. Earlier background work may still be there.
    stalled: bool,
    /// The background job that launched last since the foreground job's last compute launch.
    last: Option<ClientSlot>,
    /// Time from an order to its launch, and lateness of wakes.
    order: OrderDelay,
    wake: OrderDelay,
}

/// Learnt time that is nearly always long enough: it grows quickly and shrinks slowly.
#[derive(Debug, Clone, Copy, Default)]
struct OrderDelay(Option<Ns>);

impl OrderDelay {
    fn learn(&mut self, took: Ns) {
        let took = took.min(LONGEST_ORDER_NS);
        self.0 = Some(match self.0 {
            None => took,
            Some(known) if took > known => known + (took - known) / 4,
            Some(known) => known - (known - took) / 32,
        });
    }
}

impl DeviceClock {
    /// Takes in a launch. `time`: predicted, ns. `before`: work out before it, ns. `computes`: see
    /// [`Self::foreground_launched`].
    pub(super) fn launched(&mut self, slot: ClientSlot, time: Ns, at: Ns, before: Ns, computes: bool) {
        let begin = if self.stalled {
            at.saturating_add(before)
        } else {
            self.free_at.max(at)
        };
        self.free_at = begin.saturating_add(time);
        self.stalled = false;
        if computes {
            self.last = Some(slot);
        }
    }

    /// Takes in that at most `outstanding` is out.
    pub(super) fn seen(&mut self, outstanding: Ns, now: Ns) {
        self.free_at = self.free_at.min(now.saturating_add(outstanding));
    }

    /// Takes in a foreground launch. `computes`: it is not a copy between host and device. Such a
    /// copy leaves the compute engine with its present job.
    pub(super) fn foreground_launched(&mut self, computes: bool) {
        self.stalled = true;
        if computes {
            self.last = None;
        }
    }

    /// Time until the foreground job has the device, ns: the part of `outstanding` still to run,
    /// and the switch back from a background job.
    pub(super) fn taken(&self, outstanding: Ns, now: Ns, switch_cost: Ns) -> Ns {
        let switch = self.last.map_or(0, |_| switch_cost);
        self.remaining(outstanding, now).saturating_add(switch)
    }

    /// Part of `outstanding` that is still to run, ns.
    pub(super) fn remaining(&self, outstanding: Ns, now: Ns) -> Ns {
        if self.stalled {
            return outstanding;
        }
        self.free_at.saturating_sub(now).min(outstanding)
    }

    /// Time that the device still works for background jobs, only by the clock, ns.
    pub(super) fn running(&self, now: Ns) -> Ns {
        if self.stalled {
            0
        } else {
            self.free_at.saturating_sub(now)
        }
    }

    /// Predicted end of all background jobs' work.
    pub(super) fn free_at(&self) -> Ns {
        self.free_at
    }

    pub(super) fn owner(&self) -> Option<ClientSlot> {
        self.last
    }

    pub(super) fn forget(&mut self, slot: ClientSlot) {
        self.last = self.last.filter(|last| *last != slot);
    }

    /// Takes in the time from a grant to its launch.
    pub(super) fn order_took(&mut self, time: Ns) {
        self.order.learn(time);
    }

    pub(super) fn wake_took(&mut self, time: Ns) {
        self.wake.learn(time);
    }

    /// Time before the device runs dry at which the next kernel is granted, ns:
    /// `min(order + wake + LAUNCH_NS, most)`. `most` before any delay is known.
    pub(super) fn lead(&self, most: Ns) -> Ns {
        let Some(order) = self.order.0 else { return most };
        let ways = order.saturating_add(self.wake.0.unwrap_or(0));
        ways.saturating_add(LAUNCH_NS).min(most)
    }
}

/// Limit of remembered stretches.
const STRETCHES: usize = 256;

/// Least distance of two stretches, ns.
const APART_NS: Ns = 20_000;

/// Stretches of a job's work on the device, from the first launch to the end, or those of all
/// foreground jobs. With several foreground jobs they are a little too long.
#[derive(Debug, Clone, Default)]
pub(super) struct WorkSpans(VecDeque<(Ns, Ns)>);

impl WorkSpans {
    /// Takes in a launch whose work ends at `end`.
    pub(super) fn launched(&mut self, at: Ns, end: Ns) {
        match self.0.back_mut() {
            Some(last) if at <= last.1.saturating_add(APART_NS) => last.1 = last.1.max(end),
            _ => {
                if self.0.len() >= STRETCHES {
                    self.0.pop_front();
                }
                self.0.push_back((at, end));
            }
        }
    }

    pub(super) fn ended(&mut self, at: Ns) {
        if let Some(last) = self.0.back_mut().filter(|last| last.0 <= at) {
            last.1 = at;
        }
    }

    /// Part of `time` from `at` on without such work, ns. Other work that began at `at` ran for at
    /// least this long.
    pub(super) fn without(&self, at: Ns, time: Ns) -> Ns {
        let end = at.saturating_add(time);
        let mut begin = at;
        for (first, last) in &self.0 {
            if *last <= begin {
                continue;
            }
            if *first > begin {
                return end.min(*first).saturating_sub(begin);
            }
            // Such work was there first.
            begin = *last;
        }
        end.saturating_sub(begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MS, US};

    #[test]
    fn work_ends_as_time_passes_and_as_it_is_seen() {
        let mut device = DeviceClock::default();
        device.launched(1, 100 * US, 0, 0, true);
        device.launched(1, 50 * US, 20 * US, 100 * US, true);
        assert_eq!(device.remaining(150 * US, 30 * US), 120 * US);
        device.seen(40 * US, 60 * US);
        assert_eq!(device.remaining(40 * US, 70 * US), 30 * US);
        assert_eq!(device.owner(), Some(1));
        assert_eq!(device.taken(40 * US, 90 * US, 9 * US), 19 * US);
        device.foreground_launched(false);
        assert_eq!(device.owner(), Some(1), "a copy takes no kernel's place");
        device.foreground_launched(true);
        assert_eq!(device.taken(0, 90 * US, 9 * US), 0, "it has switched");
        assert_eq!(device.owner(), None);
        assert_eq!(device.remaining(40 * US, 500 * US), 40 * US, "it may have waited");
        device.launched(2, 10 * US, 500 * US, 40 * US, false);
        assert_eq!(device.owner(), None, "nor does a background job's copy");
        assert_eq!(device.remaining(50 * US, 500 * US), 50 * US);
    }

    #[test]
    fn when_foreground_jobs_worked_is_remembered_as_stretches() {
        let mut worked = WorkSpans::default();
        assert_eq!(worked.without(7, 900 * US), 900 * US);
        worked.launched(100 * US, 130 * US);
        worked.launched(120 * US, 150 * US);
        worked.ended(170 * US);
        worked.launched(300 * US, 320 * US);
        assert_eq!(
            worked.without(0, 100 * US),
            100 * US,
            "it ended when the first one began"
        );
        assert_eq!(worked.without(40 * US, 61 * US), 60 * US);
        assert_eq!(worked.without(160 * US, US), 0, "it was there already");
        assert_eq!(worked.without(160 * US, 30 * US), 20 * US, "and went");
        assert_eq!(worked.without(170 * US, 130 * US), 130 * US, "between two");
        assert_eq!(
            worked.without(120 * US, 900 * US),
            130 * US,
            "between two, and through both"
        );
        worked.ended(310 * US);
        assert_eq!(worked.without(310 * US, MS), MS, "it ended sooner than predicted");
        (0..2 * STRETCHES as Ns).for_each(|turn| worked.launched(1_000 * US + turn * 100 * US, 0));
        assert_eq!(worked.0.len(), STRETCHES);
    }

    #[test]
    fn the_lead_is_what_orders_and_wakings_take() {
        let mut device = DeviceClock::default();
        assert_eq!(device.lead(125 * US), 125 * US);
        for _ in 0..10 {
            device.order_took(20 * US);
            device.wake_took(US);
        }
        assert_eq!(device.lead(125 * US), 26 * US);
        device.order_took(10_000_000 * US);
        assert!(device.lead(125 * US) > 100 * US);
        assert_eq!(device.lead(60 * US), 60 * US);
        (0..400).for_each(|_| device.order_took(20 * US));
        assert!(device.lead(125 * US) < 30 * US);
    }
}
