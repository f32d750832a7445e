//! How much the sampler may cost, and whose turn it is to be sampled. Pure.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use weft_protocol::Ns;

/// The part of the job's time that sampling may be seen to take, a part of 1000. The aim is 5 % in
/// all, and what is not seen from here (events on the device, colder caches, another core's work)
/// is several times as much: on the simulated GPU, on two cores, `scripts/bench profiling` found a
/// job slower by 12 % at 15 (2700 samples a second), 5 % at 4 (900) and 4.9 % at 2 (400;
/// `--phases 600`, 4.0 to 6.0 %).
const SHARE: Ns = 2;

/// Kernels that were hardly sampled yet may go this far over.
const SHARE_FOR_RARE: Ns = 6;

/// While the job serves. At some 8 us a sample these are 600 a second.
const SHARE_SERVING: Ns = 5;

/// To begin with, so that the first step's kernels are not all missed.
const ADVANCE: Ns = 1_000_000;

/// An identity sampled less often is rare.
pub const RARE: u64 = 8;

/// A stretch of own work counts up to so many times what such a stretch usually takes. What is
/// longer was interrupted, as the job's own code is: on a machine with more to run than cores one
/// interruption is as long as a thousand samples.
const UNUSUAL: Ns = 4;

/// What a stretch usually takes is an average over about so many.
const MEMORY: Ns = 16;

/// Before anything is known, this is not unusual.
const FIRST: Ns = 20_000;

/// Between two looks no more than this counts as the job's time: a launching job looks several
/// times as often. A service that waits for its next request does not save up for it, or the
/// request would pay for the wait.
const LONGEST_STEP: Ns = 5_000_000;

/// Own work against the job's.
#[derive(Debug, Default)]
pub struct Budget {
    looked: Option<Ns>,
    /// Time in which the job launched.
    active: Ns,
    spent: Ns,
    usual: [Ns; 3],
}

/// Which kind of own work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Events around a launch.
    Record = 0,
    /// Reading windows.
    Read = 1,
    /// Asking whether they can be read.
    Ask = 2,
}

impl Budget {
    /// Time passed in the sampler.
    pub fn spend(&mut self, work: Work, ns: Ns) {
        let [record, read, ask] = &mut self.usual;
        let usual = match work {
            Work::Record => record,
            Work::Read => read,
            Work::Ask => ask,
        };
        // Rising costs are followed: the average rises by what is counted.
        let counted = ns.min(usual.saturating_mul(UNUSUAL).max(FIRST));
        *usual = (*usual * (MEMORY - 1) + counted) / MEMORY;
        self.spent = self.spent.saturating_add(counted);
    }

    /// Whether more may be spent at this time, while stage 1 goes on.
    pub fn allows(&mut self, now: Ns, rare: bool) -> bool {
        self.within(now, if rare { SHARE_FOR_RARE } else { SHARE }, ADVANCE)
    }

    /// Whether more may be spent at this time, while the job serves.
    pub fn allows_serving(&mut self, now: Ns) -> bool {
        self.within(now, SHARE_SERVING, 0)
    }

    fn within(&mut self, now: Ns, share: Ns, advance: Ns) -> bool {
        let before = self.looked.replace(now).unwrap_or(now);
        self.active += now.saturating_sub(before).min(LONGEST_STEP);
        let allowed = self.active / 1000 * share + advance;
        self.spent < allowed
    }

    /// Spent so far.
    #[cfg(test)]
    pub fn spent(&self) -> Ns {
        self.spent
    }
}

/// While a job serves, launches are passed over for about so long between two looks...
const SPREAD: Ns = 50_000_000;

/// ...and no more than so many, however fast it launches: what a look costs is spread over them.
const PASSED_OVER: u32 = 512;

/// How fast a serving job launches, of the last few looks.
#[derive(Debug, Default)]
pub struct Stride {
    looked: Option<Ns>,
    launches: u64,
    time: Ns,
}

impl Stride {
    /// The most launches to be passed over after a look at this time, before which `passed` were.
    pub fn most(&mut self, now: Ns, passed: u32) -> u32 {
        let before = self.looked.replace(now).unwrap_or(now);
        // What stays of the looks before this one.
        self.launches = self.launches * 7 / 8 + u64::from(passed) + 1;
        self.time = self.time / 8 * 7 + now.saturating_sub(before).min(SPREAD);
        let most = u128::from(self.launches) * u128::from(SPREAD) / u128::from(self.time.max(1));
        u32::try_from(most).unwrap_or(u32::MAX).clamp(1, PASSED_OVER)
    }
}

/// Launches between two windows: random, or a job whose steps repeat would always be sampled at the
/// same place. Not exact: threads that count at once may count one launch for two.
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

    /// A new pause of up to `most` launches.
    pub fn begin(&self, most: u32) {
        self.left.store(1 + self.random() % most.max(1), Ordering::Relaxed);
    }

    /// How many launches to pass over, up to so many.
    pub fn some(&self, most: u32) -> u32 {
        self.random() % most.max(1)
    }

    /// True once in so many times.
    #[inline]
    pub fn chance(&self, of: u32) -> bool {
        self.random().is_multiple_of(of.max(1))
    }

    fn random(&self) -> u32 {
        // Xorshift: good enough to fall out of step with anything.
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
    fn the_share_is_kept() {
        let mut budget = Budget::default();
        let mut now = 1_000_000_000;
        let begin = now;
        let mut samples = 0;
        // A job that launches every 10 us; a sample costs 4 us.
        for _ in 0..1_000_000 {
            now += 10_000;
            if budget.allows(now, false) {
                budget.spend(Work::Record, 4_000);
                now += 4_000;
                samples += 1;
            }
        }
        let share = (budget.spent() - ADVANCE) as f64 / (now - begin) as f64;
        let allowed = SHARE as f64 / 1000.0;
        assert!((share / allowed - 1.0).abs() < 0.04, "{share}");
        assert_eq!(budget.spent(), samples * 4_000);
        assert!(budget.allows(now, true), "a rare one may still be taken");
    }

    #[test]
    fn a_job_that_waits_saves_nothing_up() {
        let mut budget = Budget::default();
        assert!(budget.allows(0, false));
        budget.spend(Work::Record, FIRST);
        while budget.allows(1_000, false) {
            budget.spend(Work::Record, FIRST);
        }
        // An hour later there is room for what one step allows, no more.
        let hour = 3_600_000_000_000;
        let before = budget.spent();
        while budget.allows(hour, false) {
            budget.spend(Work::Record, FIRST);
        }
        assert!(budget.spent() - before <= LONGEST_STEP / 1000 * SHARE + FIRST);
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
        assert!(budget.spent() - before <= FIRST.max(UNUSUAL * 3_000));
        // A driver whose events take 200 us from now on is charged in full after a while.
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
