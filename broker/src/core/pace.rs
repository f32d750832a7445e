//! How long a filler's kernels really take: learnt from the device while it serves.
//!
//! The credit that a kernel costs is what its client's table says: the mean of its profile, or what an unknown kernel counts for. Whether a kernel *fits* is asked of a high
//! quantile of its time in its context instead, and how much is on the device of the middle. Both come from the profile at first, then from what is seen: a
//! filler's work that ends says how long it took, if it had the device for itself.

use std::collections::{HashMap, VecDeque};

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
    /// Between launches that did not wait at the gate: host time, and device time of the launch before. Of the last dozens.
    host: f64,
    work: f64,
    /// The last launch: what it was charged, and when it was.
    last: Option<(Ns, Ns)>,
    /// Sums of what kernels were charged and of its squares, of the last few hundred.
    sum: f64,
    squares: f64,
    /// Ends seen of single kernels.
    seen: u32,
    profiled: bool,
    /// What kernels may well take whose times lie far apart ([`Config::may_take`](super::Config::may_take)).
    may_take: HashMap<u64, Ns>,
}

impl Pace {
    /// With what a profile says of each kernel.
    pub(super) fn of(profile: &Profile, may_take: Vec<(u64, Ns)>) -> Pace {
        let mut pace = Pace {
            may_take: may_take.into_iter().collect(),
            ..Pace::default()
        };
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

    /// What this kernel may well take where its times lie far apart, else 0.
    pub(super) fn may_take(&self, kernel: u64) -> Ns {
        self.may_take.get(&kernel).copied().unwrap_or(0)
    }

    /// The longest of the kernels that it launched lately, as charged.
    pub(super) fn longest(&self) -> Ns {
        self.longest
    }

    /// How much work it may be let launch on its own, if no more than `depth` of it is to queue up on the device. A job that launches more slowly than the
    /// device works never has more there than one kernel: it may go on for as long as the holder stays away.
    pub(super) fn spread(&self, depth: Ns) -> Ns {
        if self.work <= self.host {
            return if self.host > 0.0 { Ns::MAX } else { depth };
        }
        (depth as f64 / (1.0 - self.host / self.work)) as Ns
    }

    /// How long a kernel takes that is found in progress at any time: a long one is found more often than a short one.
    pub(super) fn in_progress(&self) -> Ns {
        if self.sum > 0.0 {
            (self.squares / self.sum) as Ns
        } else {
            0
        }
    }

    /// It launched. `waited`: at the gate.
    pub(super) fn launched(&mut self, kernel: u64, cost: Ns, at: Ns, waited: bool) {
        /// The part of what was learnt that stays with each launch.
        const STAYS: f64 = 1.0 - 1.0 / 64.0;
        /// A thread that paused for so long did something else than launch.
        const PAUSE: Ns = 2_000_000;
        if let Some((before, when)) = self.last.filter(|(_, when)| !waited && at - when.min(&at) < PAUSE) {
            self.host = self.host * STAYS + at.saturating_sub(when) as f64;
            self.work = self.work * STAYS + before as f64;
        }
        self.last = Some((cost, at));
        let context = if is_transfer(kernel) {
            self.history.context()
        } else {
            self.history.push(kernel)
        };
        /// The part of the sums that stays with each launch.
        const REMAINS: f64 = 1.0 - 1.0 / 512.0;
        self.sum = self.sum * REMAINS + cost as f64;
        self.squares = self.squares * REMAINS + cost as f64 * cost as f64;
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
        self.last = None;
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
            pace.launched(5, 20 * US, now, true);
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
        pace.launched(1, 20 * US, 0, true);
        pace.launched(2, 20 * US, 0, true);
        pace.ended(40 * US, 900 * US, 0);
        assert_eq!(pace.seen, 0);
        pace.launched(1, 20 * US, 1_000 * US, true);
        pace.ended(20 * US, 9_000 * US, 2_000 * US);
        assert_eq!(pace.seen, 0, "somebody else ran until 2 ms");
        pace.launched(1, 20 * US, 9_100 * US, true);
        pace.ended(10 * US, 9_200 * US, 2_000 * US);
        pace.ended(10 * US, 9_300 * US, 2_000 * US);
        assert_eq!(pace.seen, 1, "in two parts");
    }

    #[test]
    fn a_job_that_launches_slowly_queues_nothing_up() {
        let mut pace = Pace::default();
        assert_eq!(pace.spread(50 * US), 50 * US, "nothing is known");
        for step in 0..100 {
            pace.launched(1, 5 * US, step * 40 * US, false);
        }
        assert_eq!(pace.spread(50 * US), Ns::MAX);
        // The gate is no work of the host's.
        for step in 100..400 {
            pace.launched(1, 100 * US, step * 150 * US, true);
            pace.launched(1, 100 * US, step * 150 * US + 10 * US, false);
        }
        let spread = pace.spread(90 * US);
        assert!((95 * US..110 * US).contains(&spread), "{spread}");
    }

    #[test]
    fn ceiling_of_what_is_awaited() {
        let mut pace = Pace::default();
        for at in 0..10_000 {
            pace.launched(at, Ns::MAX / 2, at, true);
        }
        assert!(pace.awaited.len() <= AWAITED);
        pace.ended(Ns::MAX, 1, 0);
        pace.ended(Ns::MAX, 1, 0);
    }
}
