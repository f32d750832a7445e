// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sampler's budget, and its choice of the launches that the device times.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use weft_protocol::Ns;

/// Part of the job's time that sampling may visibly take in stage 1. The aim is 5 % in total;
/// unseen costs are several times as large as the visible part. `scripts/bench profiling`,
/// simulated GPU, two cores: 12 % slower at 15 (2700 samples a second), 5 % at 4 (900), 4.9 % at 2
/// (400; `--phases 600`, 4.0 to 6.0 %).
const SHARE_PERMILLE: u64 = 2;

const RARE_SHARE_PERMILLE: u64 = 6;

/// The same part while the job serves: 600 samples a second at some 8 us each.
const SERVING_SHARE_PERMILLE: u64 = 5;

/// Advance for the first step's kernels.
const ADVANCE_NS: Ns = 1_000_000;

/// The same while the job serves: some 20 samples, so that a job without a profile is known within
/// its first 100 ms.
const SERVING_ADVANCE_NS: Ns = 200_000;

/// Interval in ns between two looks for ended samples.
pub const READ_INTERVAL_NS: Ns = 200_000;

/// Samples below which an identity is rare.
pub const RARE: u64 = 8;

/// Own work counts up to this multiple of its usual time: longer work was interrupted. On a busy
/// machine an interruption is as long as a thousand samples.
const UNUSUAL_FACTOR: u64 = 4;

/// Pieces of work in the average.
const AVERAGED_COUNT: u64 = 16;

/// Usual time before any measurement.
const FIRST_NS: Ns = 20_000;

/// Longest time between two looks that counts. An idle service must not save up budget, or the next
/// request would pay for it.
const LONGEST_STEP_NS: Ns = 5_000_000;

/// Sampling time against the job's time.
#[derive(Debug, Default)]
pub struct Budget {
    looked: Option<Ns>,
    active: Ns,
    spent: Ns,
    usual: [Ns; 3],
}

/// Work of the sampler that takes the job's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Records events around a launch.
    Record = 0,
    /// Reads windows.
    Read = 1,
    /// Queries whether windows can be read.
    Ask = 2,
}

impl Budget {
    /// Takes in the time of a piece of work.
    pub fn spend(&mut self, work: Work, ns: Ns) {
        let [record, read, ask] = &mut self.usual;
        let usual = match work {
            Work::Record => record,
            Work::Read => read,
            Work::Ask => ask,
        };
        // The average rises with the counted time, so it follows rising costs.
        let counted = ns.min(usual.saturating_mul(UNUSUAL_FACTOR).max(FIRST_NS));
        *usual = (*usual * (AVERAGED_COUNT - 1) + counted) / AVERAGED_COUNT;
        self.spent = self.spent.saturating_add(counted);
    }

    /// Whether more may be spent now, in stage 1.
    pub fn allows(&mut self, now: Ns, rare: bool) -> bool {
        self.within(now, if rare { RARE_SHARE_PERMILLE } else { SHARE_PERMILLE }, ADVANCE_NS)
    }

    /// Whether more may be spent now, while the job serves.
    pub fn allows_serving(&mut self, now: Ns) -> bool {
        self.within(now, SERVING_SHARE_PERMILLE, SERVING_ADVANCE_NS)
    }

    fn within(&mut self, now: Ns, share: Ns, advance: Ns) -> bool {
        let before = self.looked.replace(now).unwrap_or(now);
        self.active += now.saturating_sub(before).min(LONGEST_STEP_NS);
        let allowed = self.active / 1000 * share + advance;
        self.spent < allowed
    }

    #[cfg(test)]
    fn spent(&self) -> Ns {
        self.spent
    }
}

/// Time of a launch onto an idle device that always counts as uninterrupted.
pub const AT_ONCE_NS: Ns = 50_000;

/// Usual time of a serving job's launch onto an idle device, ns. The sampled time includes the
/// host's, so a launch of a thread that lost its core is no sample. On a slow host all launches
/// take long: without their own usual time the job would wait at the gate for seconds.
#[derive(Debug, Default)]
pub struct UsualLaunch(Ns);

impl UsualLaunch {
    /// Learns a launch's time. Returns whether its thread kept its core. `least`: shortest time
    /// that is unusual, ns.
    pub fn kept_core(&mut self, taken: Ns, least: Ns) -> bool {
        taken <= self.learn(taken, least)
    }

    /// Learns a launch's time. Returns whether it is at most twice the usual one. `first`: the most
    /// that the first time counts, ns.
    pub fn is_usual(&mut self, taken: Ns, first: Ns) -> bool {
        if self.0 == 0 {
            self.0 = taken.min(first);
        }
        let usual = self.0;
        self.learn(taken, first);
        taken <= usual.saturating_mul(2)
    }

    /// Returns the longest time that is not unusual, ns.
    fn learn(&mut self, taken: Ns, least: Ns) -> Ns {
        let longest = self.0.saturating_mul(UNUSUAL_FACTOR).max(least);
        self.0 = (self.0 * (AVERAGED_COUNT - 1) + taken.min(longest)) / AVERAGED_COUNT;
        longest
    }
}

/// Longest time between two looks.
const SPREAD_NS: Ns = 50_000_000;

/// Divisor of the time since the first look: the time between two looks is at most this part of it.
/// So the first samples come at once.
const SPREAD_RATIO: Ns = 4;

/// Most launches between two looks.
const PASSED_OVER: u32 = 512;

/// Parts of a launch that the stride counts.
const PARTS: u64 = 64;

/// Launches between two looks while the job serves.
#[derive(Debug, Default)]
pub struct Stride {
    first: Option<Ns>,
    looked: Option<Ns>,
    /// In parts of [`PARTS`]: with whole numbers a count of few launches would never grow.
    launches: u64,
    time: Ns,
}

impl Stride {
    /// Number below which the launches to pass over after a look at `now` are drawn. `passed`:
    /// those passed over before it.
    ///
    /// At least 2. The launch after a timed one is not timed. So if none were passed over, a job of
    /// two kernels in turn would have the same one timed each time.
    pub fn most(&mut self, now: Ns, passed: u32) -> u32 {
        let before = self.looked.replace(now).unwrap_or(now);
        // Earlier looks keep their weight in part.
        self.launches = self.launches / 8 * 7 + (u64::from(passed) + 1) * PARTS;
        self.time = self.time / 8 * 7 + now.saturating_sub(before).min(SPREAD_NS);
        let since = now.saturating_sub(*self.first.get_or_insert(now));
        let spread = (since / SPREAD_RATIO).min(SPREAD_NS);
        let most = u128::from(self.launches) * u128::from(spread) / u128::from(self.time.max(1) * PARTS);
        u32::try_from(most).unwrap_or(u32::MAX).clamp(2, PASSED_OVER)
    }
}

/// Launches between two windows: a random number, because otherwise repeated steps would always be
/// sampled at the same place. Inexact: two threads' launches may count as one.
#[derive(Debug)]
pub struct Pause {
    left: AtomicU32,
    seed: AtomicU32,
}

impl Default for Pause {
    fn default() -> Pause {
        Pause {
            left: AtomicU32::new(0),
            seed: AtomicU32::new(0x9e37_79b9),
        }
    }
}

impl Pause {
    /// Counts a launch; true if the pause is over.
    #[inline]
    pub fn over(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed).saturating_sub(1);
        self.left.store(left, Ordering::Relaxed);
        left == 0
    }

    /// Begins a pause of up to `most` launches.
    pub fn begin(&self, most: u32) {
        self.left.store(1 + self.random() % most.max(1), Ordering::Relaxed);
    }

    /// A random number below `most`.
    pub fn some(&self, most: u32) -> u32 {
        self.random() % most.max(1)
    }

    /// True once in `of` times.
    #[inline]
    pub fn chance(&self, of: u32) -> bool {
        self.random().is_multiple_of(of.max(1))
    }

    fn random(&self) -> u32 {
        // Xorshift, which does not stay in step with any pattern.
        let mut seed = self.seed.load(Ordering::Relaxed);
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        self.seed.store(seed, Ordering::Relaxed);
        seed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_hosts_launches_are_samples_and_interrupted_ones_are_not() {
        let mut usual = UsualLaunch::default();
        let quick = (0..100).all(|_| usual.kept_core(5_000, AT_ONCE_NS));
        assert!(
            quick && !usual.kept_core(80_000, AT_ONCE_NS),
            "one of many took much longer"
        );
        assert!(
            (0..100).all(|_| usual.kept_core(6_000, AT_ONCE_NS)),
            "the interrupted one counts little"
        );
        let mut usual = UsualLaunch::default();
        let dropped = (0..100).filter(|_| !usual.kept_core(80_000, AT_ONCE_NS)).count();
        assert!((1..=12).contains(&dropped), "{dropped} launches of 80 us were dropped");
        assert!(!usual.kept_core(400_000, AT_ONCE_NS));
    }

    #[test]
    fn a_launch_of_more_than_twice_the_usual_time_is_unusual() {
        let mut usual = UsualLaunch::default();
        assert!(usual.is_usual(5_000, AT_ONCE_NS), "the first one");
        assert!((0..50).all(|_| usual.is_usual(5_000, AT_ONCE_NS)));
        assert!(!usual.is_usual(12_000, AT_ONCE_NS) && usual.is_usual(9_000, AT_ONCE_NS));
        // A slow first launch is forgotten, and a host that became slow is learnt.
        let mut usual = UsualLaunch::default();
        assert!(!usual.is_usual(400_000, AT_ONCE_NS));
        (0..50).for_each(|_| _ = usual.is_usual(5_000, AT_ONCE_NS));
        assert!(!usual.is_usual(20_000, AT_ONCE_NS));
        (0..50).for_each(|_| _ = usual.is_usual(20_000, AT_ONCE_NS));
        assert!(usual.is_usual(20_000, AT_ONCE_NS));
    }

    #[test]
    fn the_share_is_kept() {
        let mut budget = Budget::default();
        let mut now = 1_000_000_000;
        let begin = now;
        let mut samples = 0;
        // It launches every 10 us; a sample costs 4 us.
        for _ in 0..1_000_000 {
            now += 10_000;
            if budget.allows(now, false) {
                budget.spend(Work::Record, 4_000);
                now += 4_000;
                samples += 1;
            }
        }
        let share = (budget.spent() - ADVANCE_NS) as f64 / (now - begin) as f64;
        let allowed = SHARE_PERMILLE as f64 / 1000.0;
        assert!((share / allowed - 1.0).abs() < 0.04, "{share}");
        assert_eq!(budget.spent(), samples * 4_000);
        assert!(budget.allows(now, true), "a rare one may still be taken");
    }

    #[test]
    fn a_job_that_waits_saves_nothing_up() {
        let mut budget = Budget::default();
        assert!(budget.allows(0, false));
        budget.spend(Work::Record, FIRST_NS);
        while budget.allows(1_000, false) {
            budget.spend(Work::Record, FIRST_NS);
        }
        let hour = 3_600_000_000_000;
        let before = budget.spent();
        while budget.allows(hour, false) {
            budget.spend(Work::Record, FIRST_NS);
        }
        assert!(budget.spent() - before <= LONGEST_STEP_NS / 1000 * SHARE_PERMILLE + FIRST_NS);
    }

    #[test]
    fn a_job_that_serves_pays_half_a_per_cent() {
        let mut budget = Budget::default();
        let (mut now, mut samples) = (1_000_000_000, 0);
        let begin = now;
        for _ in 0..1_000_000 {
            now += 10_000;
            if budget.allows_serving(now) {
                budget.spend(Work::Record, 4_000);
                now += 4_000;
                samples += 1;
            }
        }
        assert!(samples > 1_000);
        assert!(budget.spent() as f64 / ((now - begin) as f64) < 0.0051);
    }

    #[test]
    fn a_slow_job_is_looked_at_more_often_than_by_the_number_of_its_launches() {
        for (every, least, most) in [
            (6_000_000, 4, 16),
            (400_000, 60, 300),
            (1_000, PASSED_OVER, PASSED_OVER),
        ] {
            let mut stride = Stride::default();
            let (mut now, mut looks) = (1_000_000_000, Vec::new());
            let mut passed = 0;
            for _ in 0..200 {
                now += every * (Ns::from(passed) + 1);
                looks.push(stride.most(now, passed));
                passed = looks.last().copied().unwrap_or(0) / 2;
            }
            let last = looks[100..].iter();
            assert!(
                last.clone().all(|look| (least..=most).contains(look)),
                "{every}: {looks:?}"
            );
        }
    }

    #[test]
    fn an_interruption_is_not_paid_for_and_a_slow_driver_is() {
        let mut budget = Budget::default();
        for _ in 0..100 {
            budget.spend(Work::Record, 3_000);
        }
        let before = budget.spent();
        budget.spend(Work::Record, 8_000_000);
        assert!(budget.spent() - before <= FIRST_NS.max(UNUSUAL_FACTOR * 3_000));
        // From now on events take 200 us.
        for _ in 0..200 {
            budget.spend(Work::Record, 200_000);
        }
        let before = budget.spent();
        budget.spend(Work::Record, 200_000);
        assert_eq!(budget.spent() - before, 200_000);
    }

    #[test]
    fn pauses_differ_and_end() {
        let pause = Pause::default();
        let mut lengths = Vec::new();
        for _ in 0..100 {
            pause.begin(64);
            let mut length = 1;
            while !pause.over() {
                length += 1;
            }
            assert!(length <= 64);
            lengths.push(length);
        }
        lengths.sort_unstable();
        lengths.dedup();
        assert!(lengths.len() > 30);
    }
}
