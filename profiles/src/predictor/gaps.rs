// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gaps of one job: forecasts by context, and distributions for gaps that are widely spread.
//!
//! [`Gaps::room`] returns the time that may be used now, if the foreground job may return within it
//! with a given chance.

use super::{Context, Forecast, MATERIAL_NS, Predictor, Quality, forecast, shape::GapShape};
use crate::{Ns, Sketch};

/// Most distributions kept of a job: one context, or a few, follow a request.
const SHAPES: usize = 16;

/// Fewest values for which a distribution counts.
const ENOUGH: u32 = 12;

/// A forecast needs no distribution if `high - low <= middle / WIDE_RATIO`.
const WIDE_RATIO: Ns = 3;

/// Least gap, ns, that displaces another distribution. The displaced distribution is the one with
/// the shortest longest gap, or with the fewest values among those below half of this. So a
/// service's pause between requests is kept even if each of its kernels has gaps.
const LONG_GAP_NS: Ns = 500_000;

/// Gaps of one job.
#[derive(Debug, Clone, Default)]
pub struct Gaps {
    predictor: Predictor,
    shapes: Vec<NamedShape>,
}

/// Gaps after a kernel and its predecessor.
#[derive(Debug, Clone)]
struct NamedShape {
    name: u64,
    shape: GapShape,
    longest: Ns,
}

/// Expectation of the gap that begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Forecast by context.
    pub forecast: Option<Forecast>,
    shape: Option<usize>,
    /// Whether the shape counts from the gap's start; else only when the gap outlasts the forecast.
    wide: bool,
}

impl Gaps {
    /// Adds a profile's knowledge of the gaps after a kernel.
    pub fn prime(&mut self, kernel: u64, known: &Sketch) {
        self.predictor.prime(kernel, known);
    }

    /// Learns the gap that followed a context.
    pub fn learn(&mut self, context: &Context, gap: Ns) {
        self.predictor.learn(context, gap);
        let name = context.of_pair();
        if let Some(known) = self.shapes.iter_mut().find(|known| known.name == name) {
            known.shape.add(gap);
            known.longest = known.longest.max(gap);
            return;
        }
        if gap < MATERIAL_NS || self.shapes.len() >= SHAPES && !self.make_room(gap) {
            return;
        }
        let mut shape = GapShape::default();
        shape.add(gap);
        self.shapes.push(NamedShape {
            name,
            shape,
            longest: gap,
        });
    }

    /// Drops a distribution in favour of a new one that starts with this gap, if that is worth it.
    fn make_room(&mut self, gap: Ns) -> bool {
        let least = (0..self.shapes.len()).min_by_key(|at| {
            let known = &self.shapes[*at];
            (known.longest.max(LONG_GAP_NS / 2), known.shape.total())
        });
        match least {
            Some(least) if gap >= LONG_GAP_NS => {
                self.shapes.swap_remove(least);
                true
            }
            _ => false,
        }
    }

    /// Expectation in this context.
    pub fn outlook(&self, context: &Context) -> Outlook {
        let forecast = self.predictor.forecast(context);
        let name = context.of_pair();
        let known = |known: &NamedShape| known.name == name && known.shape.total() >= ENOUGH;
        Outlook {
            forecast,
            shape: self.shapes.iter().position(known),
            wide: forecast.is_some_and(|forecast| (forecast.high - forecast.low) > forecast.middle / WIDE_RATIO),
        }
    }

    /// Time from now, ns, within which the foreground job returns with at most this chance,
    /// `elapsed` ns after the start of the gap.
    pub fn room(&self, outlook: &Outlook, elapsed: Ns, chance: f64) -> Ns {
        let beyond = outlook.forecast.is_none_or(|forecast| elapsed >= forecast.high);
        let known = outlook.shape.filter(|_| outlook.wide || beyond);
        if let Some(known) = known.and_then(|at| self.shapes.get(at)) {
            return known.shape.room(elapsed, chance);
        }
        match outlook.forecast {
            Some(forecast) => forecast.room(elapsed, chance),
            None => forecast::lasting(elapsed, chance),
        }
    }

    /// Accuracy of the forecasts so far.
    pub fn quality(&self) -> Quality {
        self.predictor.quality()
    }

    /// Number of known contexts.
    pub fn contexts(&self) -> usize {
        self.predictor.contexts()
    }
}

#[cfg(test)]
mod tests {
    use super::super::History;
    use super::*;

    const US: Ns = 1_000;
    const MS: Ns = 1_000_000;

    #[test]
    fn a_steady_gap_is_used_nearly_to_its_end() {
        let (mut gaps, mut history) = (Gaps::default(), History::default());
        for step in 0..50 {
            let context = history.push(1);
            gaps.learn(&context, 5 * MS + step % 5 * 10 * US);
        }
        let outlook = gaps.outlook(&history.push(1));
        let room = gaps.room(&outlook, 0, 0.3);
        assert!((4_900 * US..=5_050 * US).contains(&room), "{room}");
        assert!(gaps.room(&outlook, 5 * MS, 0.3) < 50 * US, "it is due");
        assert!(
            gaps.room(&outlook, 10 * MS, 0.3) > 3 * MS,
            "it did not come when it was due"
        );
        assert!(gaps.room(&outlook, 0, 0.02) > 3 * MS);
    }

    #[test]
    fn a_request_that_waits_already_leaves_a_grace() {
        let (mut gaps, mut history) = (Gaps::default(), History::default());
        let mut random = 1u64;
        for _ in 0..200 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let queued = random >> 62 == 0;
            let gap = if queued {
                150 * US
            } else {
                8 * MS + (random >> 50) * 500
            };
            for kernel in [1, 2, 3] {
                history.push(kernel);
            }
            let context = history.push(99);
            gaps.learn(&context, gap);
        }
        for kernel in [1, 2, 3] {
            history.push(kernel);
        }
        let outlook = gaps.outlook(&history.push(99));
        let grace = gaps.room(&outlook, 0, 0.1);
        assert!((100 * US..=170 * US).contains(&grace), "{grace}");
        let after = gaps.room(&outlook, 250 * US, 0.1);
        assert!(after > 5 * MS, "{after}");
    }

    #[test]
    fn of_an_unknown_job_what_has_lasted_will_last() {
        let gaps = Gaps::default();
        let outlook = gaps.outlook(&History::default().context());
        assert_eq!(gaps.room(&outlook, 0, 0.3), 0);
        let room = gaps.room(&outlook, MS, 0.3);
        assert!((400 * US..450 * US).contains(&room), "{room}");
    }

    #[test]
    fn a_pause_that_hardly_ever_follows_is_known_once_the_usual_gap_is_over() {
        let (mut gaps, mut history) = (Gaps::default(), History::default());
        for request in 0..40u64 {
            // Other kernels with gaps of their own compete for room.
            for other in 0..60 {
                let context = history.push(100 + other);
                gaps.learn(&context, 80 * US + request % 3 * US);
            }
            for token in 0..20 {
                history.push(1);
                let context = history.push(2);
                gaps.learn(&context, if token == 19 { 4 * MS } else { 60 * US });
            }
        }
        history.push(1);
        let outlook = gaps.outlook(&history.push(2));
        let begin = gaps.room(&outlook, 0, 0.1);
        assert!(begin < 100 * US, "it is short nearly always: {begin}");
        let lasted = gaps.room(&outlook, 300 * US, 0.1);
        assert!(lasted > 3 * MS, "what has lasted for longer lasts to its end: {lasted}");
    }

    #[test]
    fn ceiling_of_distributions() {
        let (mut gaps, mut history) = (Gaps::default(), History::default());
        for kernel in 0..10_000u64 {
            let context = history.push(kernel);
            gaps.learn(&context, MS);
        }
        assert!(gaps.shapes.len() <= SHAPES);
    }
}
