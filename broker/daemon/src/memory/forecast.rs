// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client's forecast of its next period, and its position in it.
//!
//! Both are untrusted: a forecast is bounded, and only granules in ranges that the client holds
//! count. A forecast in parts counts once its last part has arrived.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::Instant;

use weft_paging::{GranuleRange, Use, WorkingSet};
use weft_protocol::Ns;
use weft_protocol::control::GranuleUse;
use weft_protocol::page_ops::PageOps;

/// Most uses of a forecast: weft's own clients send no more.
const FORECAST_USES: usize = 1 << 14;

/// Most granules of one use that are visited one by one: 128 GB.
const MOST_GRANULES: u32 = 1 << 16;

/// Most granules of all uses, counted once per use: 80 GB fifty times. A larger forecast is
/// dropped.
const USED_GRANULES: u64 = 1 << 21;

const LONGEST_PERIOD_NS: Ns = 3_600_000_000_000;

/// A client's forecast.
#[derive(Debug, Default)]
pub(super) struct StepForecast {
    number: u32,
    period: Ns,
    uses: Vec<GranuleUse>,
    /// Parts of the next forecast.
    coming: (u32, Vec<GranuleUse>),
    /// The client's last position that the planner knows, and its time.
    stood: Option<(Ns, Instant)>,
    /// Position up to which uses were counted.
    counted: Option<Ns>,
}

impl StepForecast {
    /// Adds a part. True if it was the last part, so that the new forecast counts from now on.
    pub fn take(&mut self, number: u32, period: Ns, uses: Vec<GranuleUse>, ends: bool) -> bool {
        if self.coming.0 != number {
            self.coming = (number, Vec::new());
        }
        let room = FORECAST_USES.saturating_sub(self.coming.1.len());
        self.coming.1.extend(uses.into_iter().take(room));
        if !ends {
            return false;
        }
        let (number, mut uses) = std::mem::take(&mut self.coming);
        uses.retain(|one| one.at < period && one.count > 0);
        let used: u64 = uses.iter().map(|one| u64::from(one.count.min(MOST_GRANULES))).sum();
        let sound = (1..=LONGEST_PERIOD_NS).contains(&period) && used <= USED_GRANULES;
        *self = StepForecast {
            number,
            period,
            uses: if sound { uses } else { Vec::new() },
            ..StepForecast::default()
        };
        true
    }

    /// Number of kept uses of this forecast and the next.
    pub fn kept(&self) -> usize {
        self.uses.len() + self.coming.1.len()
    }

    /// Whether there is a forecast.
    pub fn is_there(&self) -> bool {
        !self.uses.is_empty()
    }

    /// The forecast for the planner; `holds` cuts a range to the parts that the client has.
    pub fn working_set(&self, holds: impl Fn(GranuleRange) -> Vec<GranuleRange>) -> WorkingSet {
        let used = |one: &GranuleUse| {
            let range = GranuleRange {
                first: one.first,
                count: one.count,
            };
            let (at, access) = (one.at, one.access);
            holds(range).into_iter().map(move |range| Use { at, range, access })
        };
        WorkingSet {
            period: self.period,
            uses: self.uses.iter().flat_map(used).collect(),
        }
    }

    /// The client's position in its period, ns, if it refers to this forecast.
    pub fn position(&self, page_ops: &PageOps) -> Option<Ns> {
        if !self.is_there() || page_ops.forecast.load(Ordering::Relaxed) != self.number {
            return None;
        }
        let said = page_ops.position.load(Ordering::Acquire).checked_sub(1)?;
        (said < self.period).then_some(said)
    }

    /// The granules used from `at` on, in order, once round the period.
    pub fn granules_from(&self, at: Ns) -> impl Iterator<Item = u64> {
        let split = self.uses.partition_point(|one| one.at < at);
        let (before, after) = self.uses.split_at(split.min(self.uses.len()));
        let granules = |one: &GranuleUse| one.first..one.first.saturating_add(u64::from(one.count.min(MOST_GRANULES)));
        after.iter().chain(before).flat_map(granules)
    }

    /// The granules used between the last call's position and `at`. None if either is unknown.
    pub fn passed(&mut self, at: Option<Ns>) -> impl Iterator<Item = u64> {
        let before = std::mem::replace(&mut self.counted, at);
        let (from, to) = before.zip(at).unwrap_or_default();
        let index = |at: Ns| self.uses.partition_point(|one| one.at < at);
        let (from, to) = (index(from), index(to));
        let (first, second) = if from <= to {
            (from..to, 0..0)
        } else {
            (from..self.uses.len(), 0..to)
        };
        let uses = self.uses.get(first).into_iter().chain(self.uses.get(second)).flatten();
        uses.flat_map(|one| one.first..one.first.saturating_add(u64::from(one.count.min(MOST_GRANULES))))
    }

    /// Sets the position from which progress counts.
    pub fn stands(&mut self, at: Ns, now: Instant) {
        self.stood = Some((at, now));
    }

    /// The client's own time since the last call, ns: `moved + k * period`, with the `k` that comes
    /// nearest to the elapsed time.
    pub fn progress(&mut self, at: Ns, now: Instant) -> Ns {
        let Some((before, since)) = self.stood.replace((at, now)) else {
            return 0;
        };
        let period = self.period.max(1);
        let moved = (at + period - before % period) % period;
        let elapsed = u64::try_from(now.saturating_duration_since(since).as_nanos()).unwrap_or(u64::MAX);
        let rounds = elapsed.saturating_sub(moved).saturating_add(period / 2) / period;
        moved.saturating_add(rounds.saturating_mul(period))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use weft_paging::Access;

    fn one(at: Ns, first: u64, count: u32) -> GranuleUse {
        GranuleUse {
            at,
            first,
            count,
            access: Access::Read,
        }
    }

    #[test]
    fn a_forecast_counts_when_it_is_whole_and_sound() {
        let mut forecast = StepForecast::default();
        assert!(!forecast.take(1, 100, vec![one(0, 5, 2)], false));
        assert!(!forecast.is_there());
        assert!(forecast.take(1, 100, vec![one(50, 9, 1), one(100, 9, 1), one(60, 9, 0)], true));
        let set = forecast.working_set(|range| vec![range]);
        let uses: Vec<_> = set.uses.iter().map(|one| (one.at, one.range.first)).collect();
        assert_eq!((set.period, uses), (100, vec![(0, 5), (50, 9)]));
        assert!(forecast.working_set(|_| Vec::new()).uses.is_empty(), "not its memory");
        assert_eq!(forecast.granules_from(1).collect::<Vec<_>>(), [9, 5, 6]);
        let page_ops = Box::<PageOps>::default();
        assert_eq!(forecast.position(&page_ops), None);
        page_ops.position.store(31, Ordering::Relaxed);
        assert_eq!(forecast.position(&page_ops), None, "of another forecast");
        page_ops.forecast.store(1, Ordering::Relaxed);
        assert_eq!(forecast.position(&page_ops), Some(30));
        page_ops.position.store(200, Ordering::Relaxed);
        assert_eq!(forecast.position(&page_ops), None, "beyond the period");
        assert!(forecast.take(2, 0, vec![one(0, 1, 1)], true));
        assert!(!forecast.is_there());
        for _ in 0..20 {
            forecast.take(3, 10, vec![one(0, 1, 1); 1000], false);
        }
        forecast.take(3, 10, Vec::new(), true);
        assert_eq!(forecast.working_set(|range| vec![range]).uses.len(), FORECAST_USES);
        assert_eq!(forecast.kept(), FORECAST_USES);
        forecast.take(4, 1000, (0..64).map(|at| one(at, 5, MOST_GRANULES)).collect(), true);
        assert!(!forecast.is_there(), "nobody uses so much in a period");
    }

    #[test]
    fn what_was_passed_is_what_lies_between_two_places_of_the_period() {
        let mut forecast = StepForecast::default();
        forecast.take(1, 100, (0..10).map(|n| one(10 * n, n, 1)).collect(), true);
        let mut passed = |at| forecast.passed(at).collect::<Vec<_>>();
        assert!(passed(Some(30)).is_empty(), "where it was is not known");
        assert_eq!(passed(Some(50)), [3, 4]);
        assert!(passed(Some(50)).is_empty());
        assert_eq!(passed(Some(10)), [5, 6, 7, 8, 9, 0], "round the period");
        assert!(passed(None).is_empty());
        assert!(passed(Some(80)).is_empty(), "it was out of step");
        assert_eq!(passed(Some(99)), [8, 9]);
    }

    #[test]
    fn progress_is_what_comes_nearest_to_the_clock() {
        let mut forecast = StepForecast::default();
        forecast.take(1, 1_000_000, vec![one(0, 1, 1)], true);
        let begin = Instant::now();
        assert_eq!(forecast.progress(500_000, begin), 0);
        let later = |us: u64| begin + Duration::from_micros(us);
        assert_eq!(forecast.progress(700_000, later(210)), 200_000);
        assert_eq!(forecast.progress(100_000, later(600)), 400_000, "round the period");
        assert_eq!(
            forecast.progress(200_000, later(2_800)),
            2_100_000,
            "two periods between two looks"
        );
        forecast.stands(900_000, later(9_000));
        assert_eq!(forecast.progress(900_000, later(9_010)), 0);
    }
}
