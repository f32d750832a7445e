//! The gaps of one job: forecasts by context, and for contexts whose gaps are spread wide how they are distributed.
//!
//! Asked is [`Gaps::room`]: how much time may be used from now on, if the holder is to find it used with no more than a given chance.

use super::{Context, Forecast, Predictor, Quality, shape::Shape};
use crate::{Ns, Sketch};

/// Distributions kept of one job. What follows a request is one context, or a few.
const SHAPES: usize = 16;

/// A distribution is believed from so many values on.
const ENOUGH: u32 = 12;

/// Forecasts whose tenths lie closer together than this part of the middle need no distribution: the context has told it better.
const WIDE: Ns = 3;

/// Gaps of one job.
#[derive(Debug, Clone, Default)]
pub struct Gaps {
    predictor: Predictor,
    shapes: Vec<(u64, Shape)>,
}

/// What is to be expected of the gap that begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outlook {
    /// By context.
    pub forecast: Option<Forecast>,
    shape: Option<usize>,
}

impl Gaps {
    /// What a profile knows of the gaps after a kernel.
    pub fn prime(&mut self, kernel: u64, known: &Sketch) {
        self.predictor.prime(kernel, known);
    }

    /// This gap followed.
    pub fn learn(&mut self, context: &Context, gap: Ns) {
        self.predictor.learn(context, gap);
        let name = context.of_pair();
        match self.shapes.iter().position(|(known, _)| *known == name) {
            Some(at) => self.shapes[at].1.add(gap),
            None if gap >= super::MATERIAL => {
                if self.shapes.len() >= SHAPES
                    && let Some(least) = (0..SHAPES).min_by_key(|at| self.shapes[*at].1.total())
                {
                    self.shapes.swap_remove(least);
                }
                let mut shape = Shape::default();
                shape.add(gap);
                self.shapes.push((name, shape));
            }
            None => {}
        }
    }

    /// What is to be expected in this context.
    pub fn outlook(&self, context: &Context) -> Outlook {
        let forecast = self.predictor.forecast(context);
        let wide = forecast.is_some_and(|forecast| (forecast.high - forecast.low) > forecast.middle / WIDE);
        let shape = wide.then(|| {
            let name = context.of_pair();
            let known = |(other, shape): &(u64, Shape)| *other == name && shape.total() >= ENOUGH;
            self.shapes.iter().position(known)
        });
        Outlook {
            forecast,
            shape: shape.flatten(),
        }
    }

    /// How much time there is from now on, `elapsed` after the gap began, so that the holder comes back within it with no more than this chance.
    pub fn room(&self, outlook: &Outlook, elapsed: Ns, chance: f64) -> Ns {
        if let Some((_, shape)) = outlook.shape.and_then(|at| self.shapes.get(at)) {
            return shape.room(elapsed, chance);
        }
        match outlook.forecast {
            Some(forecast) => forecast.room(elapsed, chance),
            None => super::lasting(elapsed, chance),
        }
    }

    /// How good the forecasts were so far.
    pub fn quality(&self) -> Quality {
        self.predictor.quality()
    }

    /// How many contexts are known.
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
    fn ceiling_of_distributions() {
        let (mut gaps, mut history) = (Gaps::default(), History::default());
        for kernel in 0..10_000u64 {
            let context = history.push(kernel);
            gaps.learn(&context, MS);
        }
        assert!(gaps.shapes.len() <= SHAPES);
    }
}
