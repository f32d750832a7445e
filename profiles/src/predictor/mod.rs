//! What comes after a kernel, predicted from what ran before it.
//!
//! One kernel identity is followed by many gaps (and takes many times): the same copy or addition
//! stands at a hundred places in a model. A step or request repeats its sequence, though. So values
//! are kept by *context*: the last few kernels that ran. A forecast takes the context that has told
//! most so far, from the longest (a kernel and its 31 predecessors) to the shortest (the job as a
//! whole).
//!
//! A forecast is a middle, a low and a high value. The low one is to be reached or exceeded by nine
//! values in ten, the high one to be exceeded by one in ten. How far they lie from the middle is
//! learnt by feedback: each value that falls outside widens the distance, each other one narrows it
//! a ninth as much, so that the promise holds in the long run however the values are distributed.
//!
//! What holds: memory is fixed once grown ([`MOST_CONTEXTS`]), an event costs a handful of look-ups
//! whatever came before, nothing is ever divided by zero or overflows, and the same events always
//! give the same forecasts. There is no I/O here.
#![forbid(unsafe_code)]

mod cell;
mod context;
mod drift;
mod evaluate;
mod forecast;
mod gaps;
mod shape;
mod table;
mod trust;

pub use context::{Context, History, ORDERS};
pub use evaluate::{Evaluation, evaluate};
pub use forecast::{Forecast, MATERIAL_NS, MISS};
pub use gaps::{Gaps, Outlook};
pub use table::MOST_CONTEXTS;

use cell::Cell;
use drift::Drift;
use table::ContextTable;
use trust::Trust;

use crate::{Ns, Sketch};

/// How fast distances follow: each miss widens them by `RATE * (1 - MISS)`, as a part of
/// themselves, each hit narrows them by `RATE * MISS`.
const RATE: f32 = 0.08;

/// Distances begin as those of a bell curve: nine tenths of it lie above the middle less 3.2 times
/// the mean deviation below it.
const FIRST_DISTANCE: f32 = 3.2;

/// Distances stay between these. A distribution with a floor has all of its values just below the
/// middle; one that jumps needs the whole way down.
const DISTANCES: (f32, f32) = (0.2, 40.0);

/// How much one context is believed: by how often it was seen. The fewer values, the wider the
/// distances have to be.
const CLASSES: usize = 4;

/// How good the forecasts were.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Quality {
    /// Values that were forecast as at least [`MATERIAL_NS`].
    pub forecasts: u64,
    /// Of these, values at or above the low one.
    pub above_low: u64,
    /// Of these, values at or below the high one.
    pub below_high: u64,
    /// Sum of the distances between value and middle, ns.
    pub error: u64,
    /// Sum of the values, ns.
    pub sum: u64,
}

impl Quality {
    /// The part of the values that were at least the low one.
    pub fn coverage(&self) -> Option<f64> {
        (self.forecasts > 0).then(|| self.above_low as f64 / self.forecasts as f64)
    }

    /// The part of the values that were no more than the high one.
    pub fn coverage_of_high(&self) -> Option<f64> {
        (self.forecasts > 0).then(|| self.below_high as f64 / self.forecasts as f64)
    }

    /// The mean distance between value and middle, as a part of the mean value.
    pub fn relative_error(&self) -> Option<f64> {
        (self.sum > 0).then(|| self.error as f64 / self.sum as f64)
    }
}

/// How far from the middle, in mean deviations.
#[derive(Debug, Clone, Copy)]
struct Distance {
    down: f32,
    up: f32,
}

impl Default for Distance {
    fn default() -> Distance {
        Distance {
            down: FIRST_DISTANCE,
            up: FIRST_DISTANCE,
        }
    }
}

/// Predicts one kind of value (gaps, or kernel times) of one job.
#[derive(Debug, Clone, Default)]
pub struct Predictor {
    table: ContextTable,
    distances: [[Distance; CLASSES]; ORDERS.len()],
    trust: [[Trust; CLASSES]; ORDERS.len()],
    drift: Drift,
    quality: Quality,
}

impl Predictor {
    /// What was known of a kernel before, from a profile: counts for no more than a few values.
    pub fn prime(&mut self, kernel: u64, known: &Sketch) {
        let Some(cell) = Cell::of(known) else { return };
        self.table.put(Context::of_kernel(kernel), cell);
    }

    /// What is to be expected in this context. `None` where nothing at all was seen of it, its
    /// kernel or its job.
    pub fn forecast(&self, context: &Context) -> Option<Forecast> {
        let (order, cell) = self.best(context)?;
        Some(self.of_cell(order, cell))
    }

    /// How good the forecasts were so far.
    pub fn quality(&self) -> Quality {
        self.quality
    }

    /// How many contexts are known.
    pub fn contexts(&self) -> usize {
        self.table.len()
    }

    /// This value came of this context.
    pub fn learn(&mut self, context: &Context, value: Ns) {
        let exact = value as f32;
        // From the shortest context to the longest, each beside what the ones before it would have
        // said. What the longest that counts said is judged.
        let mut said: Option<(usize, Cell)> = None;
        // Entered last: an entry may move the others.
        let mut new: [Option<(u64, Cell)>; ORDERS.len()] = [None; ORDERS.len()];
        for (order, hash) in context.hashes().into_iter().enumerate() {
            let shorter = said.map_or(0.0, |(_, cell)| (exact - cell.middle()).abs());
            let Some(at) = self.table.find(hash) else {
                new[order] = Some((hash, Cell::first(value, shorter)));
                continue;
            };
            let cell = self.table.at_mut(at);
            let trust = &mut self.trust[order][cell.class()];
            let before = *cell;
            cell.learn(value, shorter);
            match said {
                Some(_) if !before.tells_more(trust.usual()) => trust.learn(before.error(value), shorter),
                Some(_) => {
                    trust.learn(before.error(value), shorter);
                    said = Some((order, before));
                }
                None => said = Some((order, before)),
            }
        }
        if let Some((order, cell)) = said.filter(|(_, cell)| cell.middle() >= MATERIAL_NS as f32) {
            let forecast = self.of_cell(order, &cell);
            self.judge(order, &cell, &forecast, value);
            self.drift.learn(exact, cell.middle());
        }
        for (hash, cell) in new.into_iter().flatten() {
            self.table.insert(hash, cell);
        }
    }

    /// What came of this context was no more than this, and how much less is not known: contexts
    /// that say more come down towards it, the others stay.
    pub fn at_most(&mut self, context: &Context, value: Ns) {
        self.bounded(context, value, |middle| middle > value as f32);
    }

    /// The same where it was no less.
    pub fn at_least(&mut self, context: &Context, value: Ns) {
        self.bounded(context, value, |middle| middle < value as f32);
    }

    fn bounded(&mut self, context: &Context, value: Ns, refuted: impl Fn(f32) -> bool) {
        let best = self.best(context).map(|(order, _)| order);
        for (order, hash) in context.hashes().into_iter().enumerate() {
            let Some(at) = self.table.find(hash) else { continue };
            // What the job's kernels take all together is another matter, unless it is what is
            // believed of this one.
            if order == 0 && best != Some(0) {
                continue;
            }
            let cell = self.table.at_mut(at);
            if refuted(cell.middle()) {
                // What shorter contexts would have said is not judged by a value that nobody saw.
                let shorter = cell.shorter();
                cell.learn(value, shorter);
            }
        }
    }

    fn judge(&mut self, order: usize, cell: &Cell, forecast: &Forecast, value: Ns) {
        let quality = &mut self.quality;
        quality.forecasts += 1;
        quality.error = quality.error.saturating_add(forecast.middle.abs_diff(value));
        quality.sum = quality.sum.saturating_add(value);
        let distance = &mut self.distances[order][cell.class()];
        let follow = |distance: &mut f32, missed: bool| {
            let step = if missed { 1.0 - MISS as f32 } else { -(MISS as f32) };
            *distance = (*distance * (1.0 + RATE * step)).clamp(DISTANCES.0, DISTANCES.1);
        };
        let (below, above) = (value < forecast.low, value > forecast.high);
        quality.above_low += u64::from(!below);
        quality.below_high += u64::from(!above);
        follow(&mut distance.down, below);
        follow(&mut distance.up, above);
    }

    /// The longest context that tells more than those shorter than it.
    fn best(&self, context: &Context) -> Option<(usize, &Cell)> {
        let mut best = None;
        for (order, hash) in context.hashes().into_iter().enumerate() {
            let Some(at) = self.table.find(hash) else { continue };
            let cell = self.table.at(at);
            if best.is_none() || cell.tells_more(self.trust[order][cell.class()].usual()) {
                best = Some((order, cell));
            }
        }
        best
    }

    fn of_cell(&self, order: usize, cell: &Cell) -> Forecast {
        let distance = self.distances[order][cell.class()];
        let known = Forecast {
            kernels: ORDERS[order] as u8,
            ..cell.forecast(distance.down, distance.up)
        };
        match cell.middle() >= MATERIAL_NS as f32 {
            true => self.drift.applied(known),
            false => known,
        }
    }
}

#[cfg(test)]
mod tests;
