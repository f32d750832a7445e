// SPDX-License-Identifier: MIT OR Apache-2.0
//! Period detector: finds the sequence of launches that a job repeats, and forecasts its memory
//! use.
//!
//! If the last `n` steps equal the `n` before them, `n` is the period (a training step, a decoded
//! token), and its steps are the [`PeriodForecast`]. Each later step is compared with the expected
//! step. If it differs, as in an evaluation, the job is out of step until some steps in a row are
//! known again.
//!
//! A step is a launch, copy or fill. Two steps are equal if their kernel, shape, and the granules
//! of all *large* regions are equal: layers run one kernel on other weights, and small temporaries
//! wander.
//!
//! A step's time is `max(device, host)`, with the lesser of the last two host times. It excludes
//! waits for a turn or for memory; otherwise a period would last as long as all jobs' turns. If a
//! period becomes much shorter, it is reported again.
//!
//! Cost: one table lookup per step. Memory is bounded.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};

use weft_protocol::Ns;
use weft_protocol::control::GranuleUse;

/// Steps compared: fewer would confuse two layers, more would find a period later.
const WINDOW_STEPS: usize = 12;

/// Steps kept: twice the longest period. A large model's training step has some 10,000 launches.
const KEPT_STEPS: usize = 32_768;

const MOST_USES: usize = 16_384;

/// Steps that must repeat before a period is believed.
const CERTAIN_STEPS: usize = 2 * WINDOW_STEPS;

/// Fourths of the reported time. A period that takes less is reported again.
const SHORTER_FOURTHS: u64 = 3;

/// Odd, with mixed bits (the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SequenceStep {
    signature: u64,
    cost: Ns,
    begun: Ns,
    uses: u32,
}

/// Granules that a period touches, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeriodForecast {
    pub period: Ns,
    pub uses: Vec<GranuleUse>,
}

#[derive(Debug, Default)]
struct KnownPeriod {
    signatures: Vec<u64>,
    /// Start of each step, ns.
    at: Vec<Ns>,
    length: Ns,
    /// Step after each window.
    windows: HashMap<u64, usize>,
}

/// A job's steps, and its period if it has one.
#[derive(Debug, Default)]
pub struct PeriodDetector {
    steps: VecDeque<SequenceStep>,
    uses: VecDeque<GranuleUse>,
    count: u64,
    hash: u64,
    /// Last step after each window.
    windows: HashMap<u64, u64>,
    /// Distance of the last equal window, and the steps in a row for which it held.
    distance: u64,
    streak: u64,
    known: Option<KnownPeriod>,
    expected: Option<usize>,
    news: Option<PeriodForecast>,
    /// Number of times the job got out of step, for people.
    pub losses: u64,
}

fn oldest() -> u64 {
    (1..WINDOW_STEPS).fold(1u64, |power, _| power.wrapping_mul(FACTOR))
}

fn windows(signatures: &[u64]) -> HashMap<u64, usize> {
    let window = |end: usize| {
        (0..WINDOW_STEPS).fold(0u64, |hash, at| {
            let step = (end + signatures.len() * WINDOW_STEPS + at + 1 - WINDOW_STEPS) % signatures.len();
            hash.wrapping_mul(FACTOR)
                .wrapping_add(signatures.get(step).copied().unwrap_or(0))
        })
    };
    (0..signatures.len())
        .map(|end| (window(end), (end + 1) % signatures.len()))
        .collect()
}

impl PeriodDetector {
    /// Adds a step. `cost`: its device time in ns, if known; `now`: the job's own time, ns.
    pub fn step(&mut self, signature: u64, cost: Ns, now: Ns, uses: impl Iterator<Item = GranuleUse>) {
        let signature = signature.wrapping_mul(FACTOR) | 1;
        let before = self.uses.len();
        self.uses.extend(uses);
        let leaving = match self.steps.len().checked_sub(WINDOW_STEPS) {
            Some(at) => self.steps.get(at).map_or(0, |step| step.signature),
            None => 0,
        };
        self.hash = self
            .hash
            .wrapping_sub(leaving.wrapping_mul(oldest()))
            .wrapping_mul(FACTOR)
            .wrapping_add(signature);
        self.steps.push_back(SequenceStep {
            signature,
            cost,
            begun: now,
            uses: (self.uses.len() - before) as u32,
        });
        self.count += 1;
        if self.steps.len() > KEPT_STEPS
            && let Some(gone) = self.steps.pop_front()
        {
            self.uses.drain(..(gone.uses as usize).min(self.uses.len()));
        }
        if self.steps.len() < WINDOW_STEPS {
            return;
        }
        if self.windows.len() > 2 * KEPT_STEPS {
            self.windows.clear();
        }
        let distance = self
            .windows
            .insert(self.hash, self.count)
            .map_or(0, |before| self.count - before);
        if distance != 0 && distance == self.distance {
            self.streak += 1;
        } else {
            (self.distance, self.streak) = (distance, 1);
        }
        self.keep_step(signature);
        let certain = self.streak >= self.distance.max(CERTAIN_STEPS as u64);
        let begins = match (self.expected, &self.known) {
            (None, _) | (_, None) => self.distance != 0,
            (Some(0), Some(known)) => {
                let (period, told) = (known.signatures.len(), known.length);
                let took: Option<Ns> = self.times(period).map(|times| times.iter().sum());
                self.distance == period as u64 && took.is_some_and(|took| took < told / 4 * SHORTER_FOURTHS)
            }
            _ => false,
        };
        if begins && certain {
            self.adopt(self.distance as usize);
        }
    }

    /// Times of the last `period` steps, ns. Their sum is the larger of device and host time.
    fn times(&self, period: usize) -> Option<Vec<Ns>> {
        let from = self.steps.len().checked_sub(period + 1)?;
        let begun = |at: usize| self.steps.get(at).map(|step| step.begun);
        // Up to the next step.
        let host = |at: usize| Some(begun(at + 1)?.saturating_sub(begun(at)?));
        let (mut times, mut hosts, mut costs): (Vec<Ns>, Ns, Ns) = (Vec::with_capacity(period), 0, 0);
        for at in from..self.steps.len() - 1 {
            let before = at.checked_sub(period).and_then(host);
            let took = host(at)?;
            let took = before.map_or(took, |before| before.min(took));
            let cost = self.steps.get(at)?.cost.max(1);
            hosts = hosts.saturating_add(took);
            costs = costs.saturating_add(cost);
            times.push(took.max(cost));
        }
        // A host that runs ahead waits at the end: the two times do not add up.
        let (sum, length) = (times.iter().sum::<Ns>().max(1), hosts.max(costs));
        for time in &mut times {
            *time = (u128::from(*time) * u128::from(length) / u128::from(sum)) as Ns;
        }
        // The first time is that of the previous period's last step, which also ends this period.
        times.rotate_left(1);
        Some(times)
    }

    fn keep_step(&mut self, signature: u64) {
        let Some(known) = &self.known else { return };
        let follows = self
            .expected
            .filter(|at| known.signatures.get(*at) == Some(&signature))
            .map(|at| (at + 1) % known.signatures.len().max(1));
        self.losses += u64::from(self.expected.is_some() && follows.is_none());
        self.expected = follows.or_else(|| known.windows.get(&self.hash).copied());
    }

    fn adopt(&mut self, period: usize) {
        if self.steps.len() < period + 1 {
            return;
        }
        let Some(times) = self.times(period) else { return };
        let from = self.steps.len() - period;
        let last: Vec<&SequenceStep> = self.steps.range(from..).collect();
        let mut length: Ns = 0;
        let mut at = Vec::with_capacity(period);
        for time in &times {
            at.push(length);
            length = length.saturating_add(*time);
        }
        let length = length.max(1);
        let count: usize = last.iter().map(|step| step.uses as usize).sum();
        let signatures: Vec<u64> = last.iter().map(|step| step.signature).collect();
        let counts: Vec<u32> = last.iter().map(|step| step.uses).collect();
        let mut found: Vec<GranuleUse> = Vec::new();
        let mut uses = self.uses.range(self.uses.len().saturating_sub(count)..);
        for (time, count) in at.iter().zip(counts) {
            for one in uses.by_ref().take(count as usize) {
                let again = found
                    .last()
                    .is_some_and(|last| (last.first, last.count, last.access) == (one.first, one.count, one.access));
                if !again && found.len() < MOST_USES {
                    found.push(GranuleUse { at: *time, ..*one });
                }
            }
        }
        self.known = Some(KnownPeriod {
            windows: windows(&signatures),
            signatures,
            at,
            length,
        });
        self.expected = Some(0);
        self.news = Some(PeriodForecast {
            period: length,
            uses: found,
        });
    }

    pub fn news(&mut self) -> Option<PeriodForecast> {
        self.news.take()
    }

    /// Position in the period, ns; `None` while out of step.
    pub fn position(&self) -> Option<Ns> {
        self.known.as_ref()?.at.get(self.expected?).copied()
    }

    pub fn forget(&mut self) {
        if self.known.is_some() {
            self.news = Some(PeriodForecast::default());
        }
        let (news, losses) = (self.news.take(), self.losses);
        *self = PeriodDetector {
            news,
            losses,
            ..PeriodDetector::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use weft_protocol::control::Access;

    use super::*;

    fn granule(first: u64) -> GranuleUse {
        GranuleUse {
            at: 0,
            first,
            count: 1,
            access: Access::Read,
        }
    }

    /// Ten layers of three kernels, each layer with its own granule.
    fn period(sequence: &mut PeriodDetector, now: &mut Ns) {
        for layer in 0..10u64 {
            for kernel in 0..3u64 {
                sequence.step(kernel << 32 | layer, 100, *now, [granule(layer)].into_iter());
                *now += 1000;
            }
        }
    }

    #[test]
    fn a_period_is_found_after_it_came_twice() {
        let (mut sequence, mut now) = (PeriodDetector::default(), 0);
        period(&mut sequence, &mut now);
        period(&mut sequence, &mut now);
        assert_eq!(sequence.news(), None);
        period(&mut sequence, &mut now);
        let forecast = sequence.news().expect("a period");
        assert_eq!(forecast.period, 30_000, "the host is slower than the device");
        let mut firsts: Vec<u64> = forecast.uses.iter().map(|one| one.first).collect();
        if firsts.first() == firsts.last() {
            // The period was cut within a layer.
            firsts.pop();
        }
        assert_eq!(firsts.len(), 10, "neighbours that are alike are one");
        let turn = firsts.iter().position(|first| *first == 0).unwrap();
        firsts.rotate_left(turn);
        assert_eq!(firsts, (0..10).collect::<Vec<_>>());
        assert!(forecast.uses.is_sorted_by_key(|one| one.at));
        assert_eq!(sequence.news(), None, "told once");
        let before = sequence.position().unwrap();
        sequence.step(0, 1, now, std::iter::empty());
        assert!(sequence.position() != Some(before));
    }

    #[test]
    fn a_use_comes_when_the_job_itself_gets_there() {
        let (mut sequence, mut now) = (PeriodDetector::default(), 0);
        // The host pauses after the third launch, and stalls once for a long time.
        let mut rounds = |sequence: &mut PeriodDetector, pause: Ns, count: u64| {
            for round in 0..count {
                for kernel in 0..30u64 {
                    sequence.step(kernel, 100, now, [granule(kernel)].into_iter());
                    let stalls = round == 1 && kernel == 20;
                    now += 1000 + if kernel == 2 { pause } else { 0 } + if stalls { 1_000_000_000 } else { 0 };
                }
            }
        };
        rounds(&mut sequence, 470_000, 5);
        let forecast = sequence.news().expect("a period");
        let at = |first: u64| forecast.uses.iter().find(|one| one.first == first).expect("used").at;
        let from = |first: u64, to: u64| (at(to) + forecast.period - at(first)) % forecast.period;
        assert_eq!(forecast.period, 500_000, "the stall is not in it");
        assert_eq!((from(1, 2), from(2, 3), from(3, 29)), (1000, 471_000, 26_000));
        assert!(forecast.uses.is_sorted_by_key(|one| one.at));
        // A period learnt while the job was slow is reported again.
        rounds(&mut sequence, 400_000, 6);
        assert_eq!(sequence.news(), None);
        rounds(&mut sequence, 20_000, 6);
        assert_eq!(sequence.news().expect("a shorter one").period, 50_000);
        assert_eq!(sequence.losses, 0);
    }

    #[test]
    fn who_is_out_of_step_finds_it_again() {
        let (mut sequence, mut now) = (PeriodDetector::default(), 0);
        for _ in 0..3 {
            period(&mut sequence, &mut now);
        }
        sequence.news().unwrap();
        let at = sequence.position();
        for other in 0..7 {
            sequence.step(1 << 40 | other, 100, now, std::iter::empty());
            assert_eq!(sequence.position(), None);
        }
        period(&mut sequence, &mut now);
        assert_eq!(sequence.position(), at, "the same place in the period");
        assert_eq!((sequence.news(), sequence.losses), (None, 1));
        for _ in 0..4 {
            for kernel in 0..40 {
                sequence.step(7 << 50 | kernel, 100, now, [granule(77)].into_iter());
            }
        }
        assert_eq!(sequence.news().unwrap().uses.len(), 1);
        sequence.forget();
        assert_eq!(sequence.news(), Some(PeriodForecast::default()), "it holds no more");
        assert_eq!(sequence.position(), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut sequence = PeriodDetector::default();
        for n in 0..3 * KEPT_STEPS as u64 {
            sequence.step(n, 1, n, [granule(n)].into_iter());
        }
        assert_eq!((sequence.steps.len(), sequence.uses.len()), (KEPT_STEPS, KEPT_STEPS));
        assert!(sequence.windows.len() <= 2 * KEPT_STEPS + 1);
        assert_eq!(sequence.position(), None);
    }
}
