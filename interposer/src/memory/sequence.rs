//! The order in which a job touches its memory: what its last period shows of the next one.
//!
//! A job repeats itself: a training step, a decoded token. Each launch (copy, fill) is a [`Step`]: what it is, and which granules it uses. When the last steps were the
//! same as those a while before, for a whole while long, that while is the period, and its steps are the [`Forecast`]. From then on every step is compared with the one that is
//! expected; one that differs (an evaluation now and then) puts the job out of step until some steps in a row are known again.
//!
//! Two steps are the same if kernel and shape and the granules of all *large* regions are: a model's layers run the same kernels on other weights, and small temporaries
//! wander. Nothing here is told from time, so that the same launches give the same forecast.
//!
//! It costs a step one look into a table; memory is bounded.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};

use weft_broker::protocol::Ns;
use weft_broker::protocol::control::GranuleUse;

/// Steps in a row that are looked for: fewer would take two layers for each other, more find a period later.
const WINDOW: usize = 12;

/// Steps that are kept: the longest period that is found has half as many. A training step of a large model has some ten thousand launches.
const KEPT: usize = 1 << 15;

/// Uses of one forecast at most. Neighbours are joined before.
const USES: usize = 1 << 14;

/// Steps at least that must repeat before a period is believed.
const CERTAIN: usize = 2 * WINDOW;

/// What hashes are multiplied with: odd, its bits mixed (the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// What one launch, copy or fill is and uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Step {
    sign: u64,
    cost: Ns,
    begun: Ns,
    /// How many of `Sequence::uses` are its.
    uses: u32,
}

/// What a period touches, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forecast {
    /// How long it takes.
    pub period: Ns,
    /// In the order of their times, which are before the period's end.
    pub uses: Vec<GranuleUse>,
}

#[derive(Debug, Default)]
struct Known {
    signs: Vec<u64>,
    /// When each step begins.
    at: Vec<Ns>,
    /// The step behind each window.
    windows: HashMap<u64, usize>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Sequence {
    steps: VecDeque<Step>,
    uses: VecDeque<GranuleUse>,
    /// Steps so far.
    count: u64,
    /// Of the last steps.
    hash: u64,
    /// After which step a window was seen last.
    windows: HashMap<u64, u64>,
    /// How far back the same was, and for how many steps in a row it was so.
    distance: u64,
    streak: u64,
    known: Option<Known>,
    /// The step that is expected, while in step.
    expected: Option<usize>,
    /// Told once.
    news: Option<Forecast>,
    /// Times out of step, for people.
    pub slips: u64,
}

/// What of the hash the oldest step of a window is.
fn oldest() -> u64 {
    (1..WINDOW).fold(1u64, |power, _| power.wrapping_mul(FACTOR))
}

fn windows(signs: &[u64]) -> HashMap<u64, usize> {
    let window = |end: usize| {
        (0..WINDOW).fold(0u64, |hash, at| {
            let step = (end + signs.len() * WINDOW + at + 1 - WINDOW) % signs.len();
            hash.wrapping_mul(FACTOR)
                .wrapping_add(signs.get(step).copied().unwrap_or(0))
        })
    };
    (0..signs.len())
        .map(|end| (window(end), (end + 1) % signs.len()))
        .collect()
}

impl Sequence {
    /// The next step. `sign` says what it is, `cost` how long it takes the device, as far as that is known; `uses` are joined to it.
    pub fn step(&mut self, sign: u64, cost: Ns, now: Ns, uses: impl Iterator<Item = GranuleUse>) {
        let sign = sign.wrapping_mul(FACTOR) | 1;
        let before = self.uses.len();
        self.uses.extend(uses);
        let leaving = match self.steps.len().checked_sub(WINDOW) {
            Some(at) => self.steps.get(at).map_or(0, |step| step.sign),
            None => 0,
        };
        self.hash = self
            .hash
            .wrapping_sub(leaving.wrapping_mul(oldest()))
            .wrapping_mul(FACTOR)
            .wrapping_add(sign);
        self.steps.push_back(Step {
            sign,
            cost,
            begun: now,
            uses: (self.uses.len() - before) as u32,
        });
        self.count += 1;
        if self.steps.len() > KEPT
            && let Some(gone) = self.steps.pop_front()
        {
            self.uses.drain(..(gone.uses as usize).min(self.uses.len()));
        }
        if self.steps.len() < WINDOW {
            return;
        }
        if self.windows.len() > 2 * KEPT {
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
        self.keep_step(sign);
        let certain = self.streak >= self.distance.max(CERTAIN as u64);
        if self.expected.is_none() && self.distance != 0 && certain {
            self.adopt(self.distance as usize);
        }
    }

    /// Compares the step with the one that was expected, or finds where it stands.
    fn keep_step(&mut self, sign: u64) {
        let Some(known) = &self.known else { return };
        let follows = self
            .expected
            .filter(|at| known.signs.get(*at) == Some(&sign))
            .map(|at| (at + 1) % known.signs.len().max(1));
        self.slips += u64::from(self.expected.is_some() && follows.is_none());
        self.expected = follows.or_else(|| known.windows.get(&self.hash).copied());
    }

    /// The last so many steps are the period.
    fn adopt(&mut self, period: usize) {
        if self.steps.len() < period + 1 {
            return;
        }
        let from = self.steps.len() - period;
        let last: Vec<&Step> = self.steps.range(from..).collect();
        let began = self.steps.get(from - 1).map_or(0, |step| step.begun);
        let took = self.steps.back().map_or(0, |step| step.begun.saturating_sub(began));
        let costs: Ns = last.iter().map(|step| step.cost.max(1)).sum();
        // A host that is slower than the device makes the period longer than what it launches.
        let length = took.max(costs);
        let mut spent: Ns = 0;
        let mut at = Vec::with_capacity(period);
        for step in &last {
            at.push((u128::from(spent) * u128::from(length) / u128::from(costs.max(1))) as Ns);
            spent += step.cost.max(1);
        }
        let count: usize = last.iter().map(|step| step.uses as usize).sum();
        let signs: Vec<u64> = last.iter().map(|step| step.sign).collect();
        let counts: Vec<u32> = last.iter().map(|step| step.uses).collect();
        let mut found: Vec<GranuleUse> = Vec::new();
        let mut uses = self.uses.range(self.uses.len().saturating_sub(count)..);
        for (time, count) in at.iter().zip(counts) {
            for one in uses.by_ref().take(count as usize) {
                let again = found
                    .last()
                    .is_some_and(|last| (last.first, last.count, last.access) == (one.first, one.count, one.access));
                if !again && found.len() < USES {
                    found.push(GranuleUse { at: *time, ..*one });
                }
            }
        }
        self.known = Some(Known {
            windows: windows(&signs),
            signs,
            at,
        });
        self.expected = Some(0);
        self.news = Some(Forecast {
            period: length.max(1),
            uses: found,
        });
    }

    /// A forecast that was not told yet.
    pub fn news(&mut self) -> Option<Forecast> {
        self.news.take()
    }

    /// How far into its period the job is; `None` while it is out of step.
    pub fn position(&self) -> Option<Ns> {
        self.known.as_ref()?.at.get(self.expected?).copied()
    }

    /// Something was launched whose uses are not known: what was learnt does not hold any more.
    pub fn forget(&mut self) {
        if self.known.is_some() {
            self.news = Some(Forecast::default());
        }
        let (news, slips) = (self.news.take(), self.slips);
        *self = Sequence {
            news,
            slips,
            ..Sequence::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use weft_broker::protocol::control::Access;

    use super::*;

    fn granule(first: u64) -> GranuleUse {
        GranuleUse {
            at: 0,
            first,
            count: 1,
            access: Access::Read,
        }
    }

    /// A period of 30 steps: ten layers of three kernels, each layer with a granule of its own.
    fn period(sequence: &mut Sequence, now: &mut Ns) {
        for layer in 0..10u64 {
            for kernel in 0..3u64 {
                sequence.step(kernel << 32 | layer, 100, *now, [granule(layer)].into_iter());
                *now += 1000;
            }
        }
    }

    #[test]
    fn a_period_is_found_after_it_came_twice() {
        let (mut sequence, mut now) = (Sequence::default(), 0);
        period(&mut sequence, &mut now);
        period(&mut sequence, &mut now);
        assert_eq!(sequence.news(), None);
        period(&mut sequence, &mut now);
        let forecast = sequence.news().expect("a period");
        assert_eq!(forecast.period, 30_000, "the host is slower than the device");
        let mut firsts: Vec<u64> = forecast.uses.iter().map(|one| one.first).collect();
        if firsts.first() == firsts.last() {
            // The period was cut in the middle of a layer.
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
    fn who_is_out_of_step_finds_it_again() {
        let (mut sequence, mut now) = (Sequence::default(), 0);
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
        assert_eq!((sequence.news(), sequence.slips), (None, 1));
        // Another period takes its place.
        for _ in 0..4 {
            for kernel in 0..40 {
                sequence.step(7 << 50 | kernel, 100, now, [granule(77)].into_iter());
            }
        }
        assert_eq!(sequence.news().unwrap().uses.len(), 1);
        sequence.forget();
        assert_eq!(sequence.news(), Some(Forecast::default()), "it holds no more");
        assert_eq!(sequence.position(), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut sequence = Sequence::default();
        for n in 0..3 * KEPT as u64 {
            sequence.step(n, 1, n, [granule(n)].into_iter());
        }
        assert_eq!((sequence.steps.len(), sequence.uses.len()), (KEPT, KEPT));
        assert!(sequence.windows.len() <= 2 * KEPT + 1);
        assert_eq!(sequence.position(), None);
    }
}
