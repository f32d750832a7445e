// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prediction of a kernel's time and of the gap after it, from the kernels that ran before.
//!
//! One kernel identity has many gaps and times, because it occurs at many places of a model. But
//! steps repeat their sequence, so values are kept by *context*, the last few kernels. A forecast
//! takes the context with the least error so far, from a kernel with 31 predecessors to the whole
//! job.
//!
//! A forecast is a low, a middle and a high value. Nine values in ten reach the low one, one in ten
//! exceeds the high one. A value outside widens the distance from the middle, any other value
//! narrows it a ninth as much. So the rates hold in the long run for every distribution.
//!
//! Memory is bounded ([`MOST_CONTEXTS`]), an event costs a handful of look-ups, no operation
//! overflows or divides by zero. Equal events give equal forecasts. There is no I/O.
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

/// Rate of the distances: a miss widens them by `RATE * (1 - MISS)` of themselves, a hit narrows
/// them by `RATE * MISS`.
const RATE: f32 = 0.08;

/// First distance, in mean deviations: nine tenths of a bell curve lie above the middle minus 3.2
/// mean deviations below it.
const FIRST_DISTANCE: f32 = 3.2;

/// Bounds of the distances. A distribution with a floor has all values just below the middle; a
/// distribution with jumps needs the whole way down.
const DISTANCES: (f32, f32) = (0.2, 40.0);

/// Classes of contexts by how often they were seen: fewer values need wider distances.
const CLASSES: usize = 4;

/// Accuracy of the forecasts so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Quality {
    /// Values forecast as [`MATERIAL_NS`] or more.
    pub forecasts: u64,
    /// Forecast values at or above the low one.
    pub above_low: u64,
    /// Forecast values at or below the high one.
    pub below_high: u64,
    /// Sum of the distances between value and middle, ns.
    pub error: u64,
    /// Sum of the values, ns.
    pub sum: u64,
}

impl Quality {
    /// Part of the values at or above the low one.
    pub fn coverage(&self) -> Option<f64> {
        (self.forecasts > 0).then(|| self.above_low as f64 / self.forecasts as f64)
    }

    /// Part of the values at or below the high one.
    pub fn coverage_of_high(&self) -> Option<f64> {
        (self.forecasts > 0).then(|| self.below_high as f64 / self.forecasts as f64)
    }

    /// Mean distance between value and middle, over the mean value.
    pub fn relative_error(&self) -> Option<f64> {
        (self.sum > 0).then(|| self.error as f64 / self.sum as f64)
    }
}

/// Distances from the middle, in mean deviations.
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

/// Predictor of one kind of value (gaps, or kernel times) of one job.
#[derive(Debug, Clone, Default)]
pub struct Predictor {
    table: ContextTable,
    distances: [[Distance; CLASSES]; ORDERS.len()],
    trust: [[Trust; CLASSES]; ORDERS.len()],
    drift: Drift,
    quality: Quality,
}

impl Predictor {
    /// Adds a profile's knowledge of a kernel. It counts as a few values at most.
    pub fn prime(&mut self, kernel: u64, known: &Sketch) {
        let Some(cell) = Cell::of(known) else { return };
        self.table.put(Context::of_kernel(kernel), cell);
    }

    /// Forecast in this context. `None` if its context, its kernel and its job are all unseen.
    pub fn forecast(&self, context: &Context) -> Option<Forecast> {
        let (order, cell) = self.best(context)?;
        Some(self.of_cell(order, cell))
    }

    /// Accuracy of the forecasts so far.
    pub fn quality(&self) -> Quality {
        self.quality
    }

    /// Number of known contexts.
    pub fn contexts(&self) -> usize {
        self.table.len()
    }

    /// Learns a value that followed this context.
    pub fn learn(&mut self, context: &Context, value: Ns) {
        let exact = value as f32;
        // From the shortest context to the longest, each against the shorter ones. The longest one
        // that counts is judged.
        let mut said: Option<(usize, Cell)> = None;
        // New entries come last: an insertion may move the others.
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

    /// Learns an upper bound of an unknown value, ns: contexts with a higher middle move towards
    /// it.
    pub fn at_most(&mut self, context: &Context, value: Ns) {
        self.bounded(context, value, |middle| middle > value as f32);
    }

    /// Learns a lower bound of an unknown value, ns.
    pub fn at_least(&mut self, context: &Context, value: Ns) {
        self.bounded(context, value, |middle| middle < value as f32);
    }

    fn bounded(&mut self, context: &Context, value: Ns, refuted: impl Fn(f32) -> bool) {
        let best = self.best(context).map(|(order, _)| order);
        for (order, hash) in context.hashes().into_iter().enumerate() {
            let Some(at) = self.table.find(hash) else { continue };
            // The entry of the whole job changes only if the forecast rests on it.
            if order == 0 && best != Some(0) {
                continue;
            }
            let cell = self.table.at_mut(at);
            if refuted(cell.middle()) {
                // A value that was not seen does not judge the shorter contexts.
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

    /// Longest context that predicts better than the shorter ones.
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
