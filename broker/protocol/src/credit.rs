//! The credit word: every change of it, of both sides, in one place.
//!
//! Credit given = credit taken + credit taken back + credit in the word, at every instruction,
//! because the word is changed by one atomic step at a time and nobody stores into it. A word below
//! zero is a debt: what went through without credit is taken from it all the same.
//!
//! Under a [`RunAheadWindow`] credit comes back when the work is seen to end for which it was
//! taken: that counts as given. So a background job goes on without a trip to the broker for each
//! piece of work, and what it has out stays bounded: what ends makes room for as much.
//!
//! The orderings are those that `tests/simulation` checks in every interleaving
//! (`cargo test -p weft-simulation --test memory_model`): it compiles this very file.
#![forbid(unsafe_code)]

use super::Ns;
use super::atomic::Ordering;
use super::epoch_page::EpochPage;
use super::lane::{Orders, Reports, flags};

/// What a background job may do with its credit by itself, as the device and the clock go on.
///
/// The broker says when it expects the foreground job; the background job, which knows what it has
/// launched, sees to it that the device is free by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunAheadWindow {
    /// What is predicted to end before this may be launched at once: the foreground job hardly
    /// comes before.
    pub safe_until: Ns,
    /// What is not predicted to end before this may not be launched. Never 0.
    pub deadline: Ns,
    /// Behind no more work than this a kernel may be launched that ends after `safe_until`: just
    /// enough that the device does not run dry while it is on its way.
    pub max_backlog: Ns,
    /// Of all the work that was ever seen to end, so much does not come back as credit. All that
    /// was given, less what was taken back, less this is what the background job may have out for
    /// good: credit and work on the device.
    pub non_refundable: Ns,
}

/// Whether a launch may go, as far as a run-ahead window says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayLaunch {
    /// Yes.
    Now,
    /// Not before this time: there is enough on the device until then.
    At(Ns),
    /// Not under this run-ahead window: it would not end in time.
    Never,
}

impl RunAheadWindow {
    /// Whether a kernel of `cost` may be launched now, when the device has `backlog` of its
    /// client's work to do.
    pub fn may_launch(&self, now: Ns, backlog: Ns, cost: Ns) -> MayLaunch {
        let end = now.saturating_add(backlog).saturating_add(cost);
        if end <= self.safe_until {
            MayLaunch::Now
        } else if end > self.deadline {
            MayLaunch::Never
        } else if backlog <= self.max_backlog {
            MayLaunch::Now
        } else {
            MayLaunch::At(now.saturating_add(backlog - self.max_backlog))
        }
    }
}

impl Orders {
    /// Client: takes `cost` if there is so much credit and it holds.
    #[inline]
    pub fn take(&self, epoch_page: &EpochPage, cost: i64) -> bool {
        let mut credit = self.credit.load(Ordering::Acquire);
        loop {
            if credit < cost {
                return false;
            }
            if self.flags.load(Ordering::Acquire) & flags::CREDIT_BOUND_TO_EPOCHS != 0 {
                let above = epoch_page.sum_above(self.epoch.load(Ordering::Relaxed) as usize);
                if above != self.epochs.load(Ordering::Acquire) {
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

    /// Client: the run-ahead window, if there is one. Its words are read one by one: each is a
    /// promise by itself.
    #[inline]
    pub fn window(&self) -> Option<RunAheadWindow> {
        let deadline = self.deadline.load(Ordering::Acquire);
        (deadline != 0).then(|| RunAheadWindow {
            safe_until: self.safe_until.load(Ordering::Relaxed),
            deadline,
            max_backlog: self.max_backlog.load(Ordering::Relaxed),
            non_refundable: self.non_refundable.load(Ordering::Relaxed),
        })
    }

    /// Broker: says what the client may do with its credit. Said before the credit is given.
    pub fn set_window(&self, window: Option<RunAheadWindow>) {
        let flags = self.flags.load(Ordering::Relaxed);
        if let Some(window) = window {
            self.safe_until.store(window.safe_until, Ordering::Relaxed);
            self.max_backlog.store(window.max_backlog, Ordering::Relaxed);
            self.non_refundable.store(window.non_refundable, Ordering::Relaxed);
            self.deadline.store(window.deadline, Ordering::Release);
            self.flags.store(flags | flags::CREDIT_RENEWS, Ordering::Release);
        } else {
            self.flags.store(flags & !flags::CREDIT_RENEWS, Ordering::Release);
            self.deadline.store(0, Ordering::Release);
        }
    }

    /// Client: whether credit that is bound to the launch epochs still holds.
    #[inline]
    pub fn holds(&self, epoch_page: &EpochPage) -> bool {
        self.flags.load(Ordering::Acquire) & flags::CREDIT_BOUND_TO_EPOCHS == 0
            || epoch_page.sum_above(self.epoch.load(Ordering::Relaxed) as usize) == self.epochs.load(Ordering::Acquire)
    }

    /// Client: work of its own was seen to end, and that is reported. Under a run-ahead window that
    /// still holds, as much credit comes back. Counted first: whoever reads what was issued, and
    /// then this count, has counted all the credit that was issued. Several threads may find the
    /// same end: it counts once.
    #[inline]
    pub fn renew(&self, reports: &Reports, epoch_page: &EpochPage) -> bool {
        const BOTH: u32 = flags::CREDIT_RENEWS | flags::CREDIT_BOUND_TO_EPOCHS;
        if self.flags.load(Ordering::Acquire) & BOTH != BOTH || !self.holds(epoch_page) {
            return false;
        }
        let settled = reports.settled.load(Ordering::Acquire);
        let total = settled.saturating_sub(self.non_refundable.load(Ordering::Relaxed));
        let counted = reports
            .renewed
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |before| {
                (total > before).then_some(total)
            });
        let Ok(before) = counted else { return false };
        let more = i64::try_from(total - before).unwrap_or(0);
        self.credit.fetch_add(more, Ordering::AcqRel);
        true
    }

    /// Client: takes credit that is not there.
    pub fn overdraw(&self, cost: i64) {
        // Saturating: a word near its end would otherwise turn into a fortune.
        let _ = self.credit.fetch_update(Ordering::AcqRel, Ordering::Acquire, |credit| {
            Some(credit.saturating_sub(cost))
        });
    }

    /// Broker: gives credit, bound to these launch epochs or to none. Where what is left was given
    /// under other launch epochs, that is taken back first and returned: it must not come back to
    /// life. A debt stays: the credit that is given pays it.
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

    /// Broker: takes back what is left; below zero: a debt is forgiven.
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
        max_backlog: 10,
        non_refundable: 200,
    };

    #[test]
    fn a_window_lets_go_what_ends_in_time_and_little_ahead() {
        assert_eq!(WINDOW.may_launch(0, 60, 40), MayLaunch::Now, "it ends in `safe_until`");
        assert_eq!(WINDOW.may_launch(0, 60, 41), MayLaunch::At(50), "when 10 are left");
        assert_eq!(WINDOW.may_launch(50, 10, 41), MayLaunch::Now);
        assert_eq!(WINDOW.may_launch(50, 10, 941), MayLaunch::Never);
        assert_eq!(WINDOW.may_launch(u64::MAX, u64::MAX, 1), MayLaunch::Never);
    }

    #[test]
    fn credit_comes_back_once_and_only_while_the_epoch_stands() {
        let (lane, epoch_page) = (Box::<Lane>::default(), Box::<EpochPage>::default());
        let (orders, reports) = (&lane.orders, &lane.reports);
        orders.epoch.store(5, Ordering::Relaxed);
        reports.settled.store(250, Ordering::Relaxed);
        assert!(!orders.renew(reports, &epoch_page), "no run-ahead window");
        orders.set_window(Some(WINDOW));
        orders.grant(500, Some(epoch_page.sum_above(5)));
        assert!(orders.renew(reports, &epoch_page));
        assert!(!orders.renew(reports, &epoch_page), "the same end");
        assert_eq!(orders.credit.load(Ordering::Relaxed), 550, "200 of it are surplus");
        reports.settled.store(300, Ordering::Relaxed);
        epoch_page.bump(0);
        assert!(!orders.renew(reports, &epoch_page), "the foreground job is back");
        orders.set_window(None);
        assert_eq!(orders.window(), None);
    }

    #[test]
    fn a_grant_pays_a_debt_once() {
        let lane = Box::<Lane>::default();
        let orders = &lane.orders;
        assert_eq!(orders.grant(100, Some(1)), 0);
        orders.overdraw(130);
        // The core knows of the debt and grants that much more; under other launch epochs it must
        // not be forgiven as well.
        assert_eq!(orders.grant(530, Some(2)), 0);
        assert_eq!(orders.take_back(), 500);
    }
}
