// SPDX-License-Identifier: MIT OR Apache-2.0
//! A context's values in twenty bytes: their middle, and distances below and above it.

use super::forecast::Forecast;
use crate::{Ns, Sketch};

/// Most values averaged. Later values replace earlier ones, so the average follows a job's change.
const MEMORY: u8 = 24;

/// `1 / n` for `n` values, up to `MEMORY`.
const GAINS: [f32; MEMORY as usize + 1] = {
    let mut gains = [1.0; MEMORY as usize + 1];
    let mut seen = 1;
    while seen <= MEMORY as usize {
        gains[seen] = 1.0 / seen as f32;
        seen += 1;
    }
    gains
};

/// Most values that the middle counts. The middle follows faster than its spread.
const MIDDLE_MEMORY: f32 = 12.0;

/// Most mean deviations by which a value pulls the middle, because one outlier is not a new middle.
const PULL: f32 = 1.0;

/// Most mean deviations by which a value widens the spread. Values that jump often will jump again.
const STRETCH: f32 = 12.0;

/// Spread after one value, as a part of it.
const FIRST_SPREAD: f32 = 0.15;
/// Least spread after one value, ns: the jitter of clocks, launches and interrupts.
const MIN_SPREAD_NS: f32 = 200.0;

/// For a bell curve: mean deviation on one side of the middle, over the distance from the middle to
/// its lowest (or highest) tenth.
const OF_TENTH: f32 = 0.31;

/// Least distance, ns. A zero distance would shrink until it is subnormal, and subnormal arithmetic
/// is a hundred times as slow. Jobs that repeat exactly would pay most.
pub(super) const MIN_DISTANCE_NS: f32 = 1e-3;

/// Values of one context, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Cell {
    middle: f32,
    /// Mean distance of values below the middle, over all values.
    down: f32,
    /// Mean distance of values above the middle, over all values.
    up: f32,
    /// Mean distance of values from the next shorter context's forecast.
    shorter: f32,
    /// Number of values, 255 at most.
    seen: u8,
}

impl Cell {
    /// `shorter`: distance of the value from the next shorter context's forecast, ns.
    pub(super) fn first(value: Ns, shorter: f32) -> Cell {
        let value = value as f32;
        let spread = (FIRST_SPREAD * value).max(MIN_SPREAD_NS) / 2.0;
        Cell {
            middle: value,
            down: spread,
            up: spread,
            shorter,
            seen: 1,
        }
    }

    /// Makes a cell from a profile. It counts as a few values, so a changed job soon corrects it.
    pub(super) fn of(known: &Sketch) -> Option<Cell> {
        let middle = known.quantile(0.5)? as f32;
        let spread = |tenth: Option<Ns>| (tenth.unwrap_or(0) as f32 - middle).abs() * OF_TENTH;
        let first = Cell::first(middle as Ns, 0.0);
        let few = known.count() < 4;
        Some(Cell {
            middle,
            down: spread(known.quantile(0.1)).max(if few { first.down } else { 0.0 }),
            up: spread(known.quantile(0.9)).max(if few { first.up } else { 0.0 }),
            // The spread of other kernels' values is unknown. Until it is known, this cell is the
            // better one.
            shorter: middle,
            seen: known.count().min(8) as u8,
        })
    }

    /// `shorter`: as for [`Cell::first`].
    pub(super) fn learn(&mut self, value: Ns, shorter: f32) {
        let value = value as f32;
        self.seen = self.seen.saturating_add(1);
        let gain = GAINS[usize::from(self.seen.min(MEMORY))];
        let off = value - self.middle;
        let spread = (self.down + self.up).max(MIN_SPREAD_NS);
        let pull = off.clamp(-PULL * spread, PULL * spread);
        // Distances are from the old middle: a value that matches the forecast narrows them.
        let follow =
            |distance: &mut f32, seen: f32| *distance = (*distance + (seen - *distance) * gain).max(MIN_DISTANCE_NS);
        follow(&mut self.down, (-off).clamp(0.0, STRETCH * spread));
        follow(&mut self.up, off.clamp(0.0, STRETCH * spread));
        let shorter = shorter.min(STRETCH * (spread + self.shorter));
        follow(&mut self.shorter, shorter);
        self.middle = (self.middle + pull * gain.max(1.0 / MIDDLE_MEMORY)).max(0.0);
    }

    /// Whether this context predicts better than the next shorter one. `usual`: error of such
    /// contexts over that of the shorter ones, the best guess with few values.
    pub(super) fn tells_more(&self, usual: f32) -> bool {
        /// Number of values that weigh as much as the guess.
        const GUESS: f32 = 2.0;
        // The first value was not compared with a forecast.
        let judged = f32::from(self.seen) - 1.0;
        let own = (self.down + self.up) * judged + self.shorter * usual * GUESS;
        own <= self.shorter * (judged + GUESS)
    }

    /// Distance of a value from the middle, ns.
    pub(super) fn error(&self, value: Ns) -> f32 {
        (value as f32 - self.middle).abs()
    }

    pub(super) fn middle(&self) -> f32 {
        self.middle
    }

    /// Mean distance of values from the next shorter context's forecast.
    pub(super) fn shorter(&self) -> f32 {
        self.shorter
    }

    pub(super) fn seen(&self) -> u8 {
        self.seen
    }

    /// Lowers the count when the table keeps this cell although a new one needs the place.
    pub(super) fn fade(&mut self) {
        self.seen -= self.seen / 8;
    }

    /// Class by count: 0 for a context seen at most twice, up to 3 for one seen often.
    pub(super) fn class(&self) -> usize {
        match self.seen {
            0..=2 => 0,
            3..=5 => 1,
            6..=12 => 2,
            _ => 3,
        }
    }

    pub(super) fn forecast(&self, down: f32, up: f32) -> Forecast {
        Forecast {
            low: (self.middle - down * self.down).max(0.0) as Ns,
            middle: self.middle as Ns,
            high: (self.middle + up * self.up) as Ns,
            seen: self.seen,
            kernels: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_value_is_known_after_a_few() {
        let mut cell = Cell::first(1_000_000, 0.0);
        for _ in 0..30 {
            cell.learn(1_000_000, 0.0);
        }
        let forecast = cell.forecast(3.0, 3.0);
        assert_eq!(forecast.middle, 1_000_000);
        assert!(forecast.low > 970_000 && forecast.high < 1_030_000, "{forecast:?}");
    }

    #[test]
    fn one_hiccup_moves_little() {
        let mut cell = Cell::first(100_000, 0.0);
        for _ in 0..30 {
            cell.learn(100_000, 0.0);
        }
        cell.learn(50_000_000, 0.0);
        assert!(cell.forecast(3.0, 3.0).middle < 105_000);
    }

    #[test]
    fn a_change_is_followed() {
        let mut cell = Cell::first(100_000, 0.0);
        for _ in 0..100 {
            cell.learn(100_000, 0.0);
        }
        for _ in 0..100 {
            cell.learn(5_000_000, 0.0);
        }
        let middle = cell.forecast(3.0, 3.0).middle;
        assert!(middle.abs_diff(5_000_000) < 500_000, "{middle}");
    }

    #[test]
    fn what_always_comes_costs_no_more_than_what_varies() {
        let mut cell = Cell::first(1_000_000, 3.0);
        for _ in 0..100_000 {
            cell.learn(1_000_000, 0.0);
        }
        for distance in [cell.down, cell.up, cell.shorter] {
            assert!(distance.is_normal() && distance < 1.0, "{distance}");
        }
    }

    #[test]
    fn nothing_stays_nothing() {
        let mut cell = Cell::first(0, 0.0);
        for _ in 0..10 {
            cell.learn(0, 0.0);
        }
        assert!(cell.forecast(3.0, 3.0).high < 100);
        assert_eq!(Cell::of(&Sketch::default()), None);
    }
}
