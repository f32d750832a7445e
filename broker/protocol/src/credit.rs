// SPDX-License-Identifier: MIT OR Apache-2.0
//! The credit word: all changes of it, by both sides.
//!
//! `given = taken + taken back + word` at every instruction: the word changes by single atomic
//! steps, never by a store. A word below zero is a debt, from work that launched without credit.
//!
//! Under a [`RunAheadWindow`] completed work returns its credit, which counts as given. So a
//! background job continues without the broker, and its outstanding work stays bounded.
//!
//! `tests/memory-model` compiles this file and tries every interleaving.
#![forbid(unsafe_code)]

use super::Ns;
use super::atomic::Ordering;
use super::epoch_page::EpochPage;
use super::lane::{Orders, Reports, flags};

/// Bounds within which a background job uses its credit without asking the broker. They keep the
/// device free at the time when the foreground job is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunAheadWindow {
    /// Work that is predicted to end by this time may launch at once.
    pub safe_until: Ns,
    /// Work that is predicted to end after this time may not launch. Never 0.
    pub deadline: Ns,
    /// The same time for kernels of [`RunAheadWindow::long_from`] and more; at most `deadline`.
    pub long_deadline: Ns,
    /// Length, ns, from which a kernel may not end after `long_deadline`.
    pub long_from: Ns,
    /// Most work on the device, ns, when a kernel launches that ends after `safe_until`. The device
    /// does not run out of work.
    pub max_backlog: Ns,
    /// Total completed work that does not come back as credit, ns:
    /// `credit + outstanding <= given - taken back - non_refundable`.
    pub non_refundable: Ns,
}

/// Whether a run-ahead window admits a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayLaunch {
    /// The launch may go.
    Now,
    /// The launch may not go earlier: until then the device has work.
    At(Ns),
    /// The launch may not go under this window: it would end too late.
    Never,
}

impl RunAheadWindow {
    /// Whether a kernel of `cost` ns may launch behind `backlog` ns of its client's work.
    pub fn may_launch(&self, now: Ns, backlog: Ns, cost: Ns) -> MayLaunch {
        let end = now.saturating_add(backlog).saturating_add(cost);
        let deadline = match cost >= self.long_from {
            true => self.long_deadline,
            false => self.deadline,
        };
        if end <= self.safe_until {
            MayLaunch::Now
        } else if end > deadline {
            MayLaunch::Never
        } else if backlog <= self.max_backlog {
            MayLaunch::Now
        } else {
            MayLaunch::At(now.saturating_add(backlog - self.max_backlog))
        }
    }
}

/// Most launches that credit outlives. A client of another priority has another sum. Credit whose
/// bound is further away than this number belongs to another priority, and is void.
const MAX_OUTLIVED: u64 = 32_768;

/// Whether credit bound up to a sum of launch epochs holds at this sum. Sums only grow.
#[inline]
pub fn epochs_hold(bound_to: u64, sum_above: u64) -> bool {
    bound_to.wrapping_sub(sum_above) <= MAX_OUTLIVED
}

impl Orders {
    /// Client: takes `cost` if the credit suffices and still holds.
    #[inline]
    pub fn take(&self, epoch_page: &EpochPage, cost: i64) -> bool {
        let mut credit = self.credit.load(Ordering::Acquire);
        loop {
            if credit < cost {
                return false;
            }
            if self.flags.load(Ordering::Acquire) & flags::CREDIT_BOUND_TO_EPOCHS != 0 {
                let above = epoch_page.sum_above(self.epoch.load(Ordering::Relaxed) as usize);
                if !epochs_hold(self.epochs.load(Ordering::Acquire), above) {
                    return false;
                }
            }
            match self
                .credit
                .compare_exchange_weak(credit, credit - cost, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => credit = now,
            }
        }
    }

    /// Client: the run-ahead window, if any. Each word is valid by itself, so the words are
    /// read one by one.
    #[inline]
    pub fn window(&self) -> Option<RunAheadWindow> {
        let deadline = self.deadline.load(Ordering::Acquire);
        (deadline != 0).then(|| RunAheadWindow {
            safe_until: self.safe_until.load(Ordering::Relaxed),
            deadline,
            long_deadline: self.long_deadline.load(Ordering::Relaxed),
            long_from: self.long_from.load(Ordering::Relaxed),
            max_backlog: self.max_backlog.load(Ordering::Relaxed),
            non_refundable: self.non_refundable.load(Ordering::Relaxed),
        })
    }

    /// Broker: sets the run-ahead window, before it gives the credit.
    pub fn set_window(&self, window: Option<RunAheadWindow>) {
        let flags = self.flags.load(Ordering::Relaxed);
        if let Some(window) = window {
            self.safe_until.store(window.safe_until, Ordering::Relaxed);
            self.long_deadline.store(window.long_deadline, Ordering::Relaxed);
            self.long_from.store(window.long_from, Ordering::Relaxed);
            self.max_backlog.store(window.max_backlog, Ordering::Relaxed);
            self.non_refundable.store(window.non_refundable, Ordering::Relaxed);
            self.deadline.store(window.deadline, Ordering::Release);
            self.flags.store(flags | flags::CREDIT_REPLENISHES, Ordering::Release);
        } else {
            self.flags.store(flags & !flags::CREDIT_REPLENISHES, Ordering::Release);
            self.deadline.store(0, Ordering::Release);
        }
    }

    /// Client: whether the credit holds: unbound, or the launch epochs have not passed its bound.
    #[inline]
    pub fn holds(&self, epoch_page: &EpochPage) -> bool {
        self.flags.load(Ordering::Acquire) & flags::CREDIT_BOUND_TO_EPOCHS == 0
            || epochs_hold(
                self.epochs.load(Ordering::Acquire),
                epoch_page.sum_above(self.epoch.load(Ordering::Relaxed) as usize),
            )
    }

    /// Client: returns the credit of completed, reported work under a window that holds.
    ///
    /// `replenished` is counted before the credit comes back. So it covers an `issued` that was
    /// read before it. An end that several threads find counts once.
    #[inline]
    pub fn replenish(&self, reports: &Reports, epoch_page: &EpochPage) -> bool {
        const BOTH: u32 = flags::CREDIT_REPLENISHES | flags::CREDIT_BOUND_TO_EPOCHS;
        if self.flags.load(Ordering::Acquire) & BOTH != BOTH || !self.holds(epoch_page) {
            return false;
        }
        let completed = reports.completed.load(Ordering::Acquire);
        let total = completed.saturating_sub(self.non_refundable.load(Ordering::Relaxed));
        let counted = reports
            .replenished
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |before| {
                (total > before).then_some(total)
            });
        let Ok(before) = counted else { return false };
        let more = i64::try_from(total - before).unwrap_or(0);
        self.credit.fetch_add(more, Ordering::AcqRel);
        true
    }

    /// Client: takes credit that does not exist.
    pub fn overdraw(&self, cost: i64) {
        // Saturating: a wrapped word would become a huge credit.
        let _ = self.credit.fetch_update(Ordering::AcqRel, Ordering::Acquire, |credit| {
            Some(credit.saturating_sub(cost))
        });
    }

    /// Broker: gives credit, bound up to these launch epochs or to none.
    ///
    /// Credit of other launch epochs is taken back first and returned: it must not become valid
    /// again. The new credit pays a debt.
    pub fn grant(&self, credit: i64, bound_to: Option<u64>) -> i64 {
        let flags = self.flags.load(Ordering::Relaxed);
        let was_bound = flags & flags::CREDIT_BOUND_TO_EPOCHS != 0;
        let same = match bound_to {
            Some(epochs) => was_bound && self.epochs.load(Ordering::Relaxed) == epochs,
            None => !was_bound,
        };
        let mut left = 0;
        if !same {
            left = self.take_back();
            if left < 0 {
                self.credit.fetch_add(left, Ordering::AcqRel);
                left = 0;
            }
            match bound_to {
                Some(epochs) => {
                    self.epochs.store(epochs, Ordering::Release);
                    self.flags
                        .store(flags | flags::CREDIT_BOUND_TO_EPOCHS, Ordering::Release);
                }
                None => self
                    .flags
                    .store(flags & !flags::CREDIT_BOUND_TO_EPOCHS, Ordering::Release),
            }
        }
        self.credit.fetch_add(credit, Ordering::AcqRel);
        left
    }

    /// Broker: takes back the credit left. A debt is forgiven.
    pub fn take_back(&self) -> i64 {
        self.credit.swap(0, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::{MayLaunch, RunAheadWindow};
    use crate::atomic::Ordering;
    use crate::epoch_page::EpochPage;
    use crate::lane::Lane;

    const WINDOW: RunAheadWindow = RunAheadWindow {
        safe_until: 100,
        deadline: 1_000,
        long_deadline: 700,
        long_from: 600,
        max_backlog: 10,
        non_refundable: 200,
    };

    #[test]
    fn a_window_lets_go_what_ends_in_time_and_little_ahead() {
        assert_eq!(WINDOW.may_launch(0, 60, 40), MayLaunch::Now, "it ends in `safe_until`");
        assert_eq!(WINDOW.may_launch(0, 60, 41), MayLaunch::At(50), "when 10 are left");
        assert_eq!(WINDOW.may_launch(50, 10, 41), MayLaunch::Now);
        assert_eq!(WINDOW.may_launch(50, 10, 941), MayLaunch::Never);
        assert_eq!(
            WINDOW.may_launch(50, 460, 491),
            MayLaunch::Never,
            "not even a short one"
        );
        assert_eq!(WINDOW.may_launch(50, 10, 599), MayLaunch::Now);
        assert_eq!(WINDOW.may_launch(50, 10, 640), MayLaunch::Now);
        assert_eq!(WINDOW.may_launch(50, 10, 641), MayLaunch::Never, "it is long");
        assert_eq!(WINDOW.may_launch(u64::MAX, u64::MAX, 1), MayLaunch::Never);
    }

    #[test]
    fn credit_comes_back_once_and_only_while_the_epoch_stands() {
        let (lane, epoch_page) = (Box::<Lane>::default(), Box::<EpochPage>::default());
        let (orders, reports) = (&lane.orders, &lane.reports);
        orders.epoch.store(5, Ordering::Relaxed);
        reports.completed.store(250, Ordering::Relaxed);
        assert!(!orders.replenish(reports, &epoch_page), "no run-ahead window");
        orders.set_window(Some(WINDOW));
        orders.grant(500, Some(epoch_page.sum_above(5)));
        assert!(orders.replenish(reports, &epoch_page));
        assert!(!orders.replenish(reports, &epoch_page), "the same end");
        assert_eq!(orders.credit.load(Ordering::Relaxed), 550, "200 of it are surplus");
        reports.completed.store(300, Ordering::Relaxed);
        epoch_page.bump(0);
        assert!(!orders.replenish(reports, &epoch_page), "the foreground job is back");
        orders.set_window(None);
        assert_eq!(orders.window(), None);
    }

    #[test]
    fn a_grant_pays_a_debt_once() {
        let lane = Box::<Lane>::default();
        let orders = &lane.orders;
        assert_eq!(orders.grant(100, Some(1)), 0);
        orders.overdraw(130);
        // The core's grant covers the debt, which other launch epochs must not forgive too.
        assert_eq!(orders.grant(530, Some(2)), 0);
        assert_eq!(orders.take_back(), 500);
    }
}
