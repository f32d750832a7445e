//! How long a filler's kernels really take: learnt from the device while it serves.
//!
//! The credit that a kernel costs is what its client's table says: the mean of its profile, or what an unknown kernel counts for. Whether a kernel *fits* is asked of a high
//! quantile of its time in its context instead, and how much is on the device of the middle. Both come from the profile at first, then from what is seen: a
//! filler's work that ends says how long it took, if it had the device for itself.

use std::collections::VecDeque;

use weft_profiles::{
    Profile,
    predictor::{Context, Forecast, History, Predictor, Quality},
};

use crate::protocol::{Ns, lane::is_transfer};

/// Launches whose end is awaited. A filler is seldom so far ahead: its credit bounds it.
const AWAITED: usize = 256;

/// So many ends seen of a job without a profile, and it is known.
const KNOWN: u32 = 6;

/// A launch whose end was not seen.
#[derive(Debug, Clone, Copy)]
struct Launch {
    context: Context,
    /// What it was charged.
    cost: Ns,
    at: Ns,
}

/// A filler's times.
#[derive(Debug, Clone, Default)]
pub(super) struct Pace {
    history: History,
    times: Predictor,
    awaited: VecDeque<Launch>,
    /// Charged for the awaited, and for what is settled of the first of them already.
    settled_of_first: Ns,
    /// When its work was last seen to end.
    ended_at: Ns,
    /// The longest of the kernels that it launched lately, as charged.
    longest: Ns,
    /// Ends seen of single kernels.
    seen: u32,
    profiled: bool,
}

impl Pace {
    /// With what a profile says of each kernel.
    pub(super) fn of(profile: &Profile) -> Pace {
        let mut pace = Pace::default();
        for kernel in profile.kernels.iter().filter(|kernel| kernel.time.count() > 0) {
            pace.times.prime(kernel.hash, &kernel.time);
            pace.profiled = true;
        }
        pace
    }

    /// Whether its times come from a profile.
    pub(super) fn is_profiled(&self) -> bool {
        self.profiled
    }

    /// Whether its times are known well enough to let it run ahead.
    pub(super) fn is_known(&self) -> bool {
        self.profiled || self.seen >= KNOWN
    }

    /// What is to be expected of this kernel, should it be launched next.
    pub(super) fn of_next(&self, kernel: u64) -> Option<Forecast> {
        if is_transfer(kernel) {
            return None;
        }
        let mut history = self.history.clone();
        let forecast = self.times.forecast(&history.push(kernel))?;
        // Of a job without a profile the other kernels say nothing about this one.
        (self.is_known() || forecast.kernels > 0).then_some(forecast)
    }

    /// The longest of the kernels that it launched lately, as charged.
    pub(super) fn longest(&self) -> Ns {
        self.longest
    }

    /// It launched.
    pub(super) fn launched(&mut self, kernel: u64, cost: Ns, at: Ns) {
        let context = if is_transfer(kernel) {
            self.history.context()
        } else {
            self.history.push(kernel)
        };
        self.longest = cost.max(self.longest - self.longest / 256);
        if self.awaited.len() >= AWAITED {
            self.awaited.pop_front();
            self.settled_of_first = 0;
        }
        self.awaited.push_back(Launch { context, cost, at });
    }

    /// Work worth `settled` ended, seen at `now`. `undisturbed_since`: since when nobody else had the device.
    pub(super) fn ended(&mut self, settled: Ns, now: Ns, undisturbed_since: Ns) {
        self.settled_of_first = self.settled_of_first.saturating_add(settled);
        let mut ended = 0;
        let mut last = None;
        while let Some(first) = self.awaited.front().copied() {
            if self.settled_of_first < first.cost {
                break;
            }
            self.settled_of_first -= first.cost;
            self.awaited.pop_front();
            ended += 1;
            last = Some(first);
        }
        if self.awaited.is_empty() {
            self.settled_of_first = 0;
        }
        let began = last.map_or(now, |launch| launch.at.max(self.ended_at));
        // Several that were seen to end together say nothing about each. And ends are seen late: what a profile says is better.
        if let Some(launch) = last.filter(|_| ended == 1 && !self.profiled && began >= undisturbed_since) {
            self.times.learn(&launch.context, now.saturating_sub(began));
            self.seen = self.seen.saturating_add(1);
        }
        if ended > 0 {
            self.ended_at = now;
        }
    }

    /// A kernel's time as the device itself measured it.
    pub(super) fn measured(&mut self, kernel: u64, time: Ns) {
        // Where it stood in the sequence is not told: it counts for the kernel by itself.
        let mut alone = History::default();
        self.times.learn(&alone.push(kernel), time);
        self.seen = self.seen.saturating_add(1);
    }

    /// What is awaited will not be told.
    pub(super) fn forget(&mut self) {
        self.awaited.clear();
        self.settled_of_first = 0;
    }

    /// How good the forecasts were, and on how many contexts they rest.
    pub(super) fn quality(&self) -> (Quality, usize) {
        (self.times.quality(), self.times.contexts())
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::US;
    use super::*;

    #[test]
    fn a_job_without_a_profile_is_known_after_a_few_ends() {
        let mut pace = Pace::default();
        let mut now = 0;
        for _ in 0..KNOWN {
            assert!(!pace.is_known());
            pace.launched(5, 20 * US, now);
            now += 700 * US;
            pace.ended(20 * US, now, 0);
            now += 50 * US;
        }
        assert!(pace.is_known());
        let forecast = pace.of_next(5).expect("seen");
        assert!(forecast.middle.abs_diff(700 * US) < 20 * US, "{forecast:?}");
        assert!(forecast.high >= forecast.middle);
    }

    #[test]
    fn what_ended_together_or_beside_others_teaches_nothing() {
        let mut pace = Pace::default();
        pace.launched(1, 20 * US, 0);
        pace.launched(2, 20 * US, 0);
        pace.ended(40 * US, 900 * US, 0);
        assert_eq!(pace.seen, 0);
        pace.launched(1, 20 * US, 1_000 * US);
        pace.ended(20 * US, 9_000 * US, 2_000 * US);
        assert_eq!(pace.seen, 0, "somebody else ran until 2 ms");
        pace.launched(1, 20 * US, 9_100 * US);
        pace.ended(10 * US, 9_200 * US, 2_000 * US);
        pace.ended(10 * US, 9_300 * US, 2_000 * US);
        assert_eq!(pace.seen, 1, "in two parts");
    }

    #[test]
    fn ceiling_of_what_is_awaited() {
        let mut pace = Pace::default();
        for at in 0..10_000 {
            pace.launched(at, Ns::MAX / 2, at);
        }
        assert!(pace.awaited.len() <= AWAITED);
        pace.ended(Ns::MAX, 1, 0);
        pace.ended(Ns::MAX, 1, 0);
    }
}
