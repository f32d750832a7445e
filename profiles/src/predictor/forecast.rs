// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forecasts and their chances.

use crate::Ns;

/// Part of the values below a forecast's low value, and part above its high value.
pub const MISS: f64 = 0.1;

/// Least forecast that matters, ns: a shorter gap takes only as long as a launch. Shorter forecasts
/// neither count nor teach the distances.
pub const MATERIAL_NS: Ns = 5_000;

/// Forecast of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// Nine values in ten are at least this, ns.
    pub low: Ns,
    /// About half of the values are at least this, ns.
    pub middle: Ns,
    /// One value in ten exceeds this, ns.
    pub high: Ns,
    /// Number of values behind the forecast, 255 at most.
    pub seen: u8,
    /// Number of kernels in the context behind it: 0 (the whole job), 1 (the last kernel), or more.
    pub kernels: u8,
}

impl Forecast {
    /// Longest time from now, ns, within which the value is reached with at most this chance, after
    /// `elapsed` ns.
    ///
    /// The chance grows evenly between the forecast's values, steeply just below them, and more and
    /// more slowly above them.
    pub fn room(&self, elapsed: Ns, chance: f64) -> Ns {
        if elapsed >= self.high {
            return lasting(elapsed, chance);
        }
        let before = self.part_before(elapsed);
        let until = self.value_at(before + (1.0 - before) * chance);
        until.saturating_sub(elapsed)
    }

    fn part_before(&self, value: Ns) -> f64 {
        let half = 0.5 - MISS;
        let (low, middle, high) = (self.low as f64, self.middle as f64, self.high as f64);
        let value = value as f64;
        if value < low {
            MISS * (value / low).powi(STEEP)
        } else if value < middle {
            MISS + half * (value - low) / (middle - low)
        } else if value < high {
            0.5 + half * (value - middle) / (high - middle)
        } else {
            1.0 - MISS * high.max(1.0) / value.max(1.0)
        }
    }

    fn value_at(&self, part: f64) -> Ns {
        let half = 0.5 - MISS;
        let (low, middle, high) = (self.low as f64, self.middle as f64, self.high as f64);
        let value = if part < MISS {
            low * (part / MISS).powf(1.0 / f64::from(STEEP))
        } else if part < 0.5 {
            low + (middle - low) * (part - MISS) / half
        } else if part < 1.0 - MISS {
            middle + (high - middle) * (part - 0.5) / half
        } else {
            high * MISS / (1.0 - part).max(1e-6)
        };
        value as Ns
    }
}

/// Below the low value, chances grow with this power of time.
const STEEP: i32 = 4;

/// Room of a value of which only its elapsed `elapsed` ns are known. Half of such values last twice
/// that time.
pub(super) fn lasting(elapsed: Ns, chance: f64) -> Ns {
    (elapsed as f64 * chance / (1.0 - chance).max(1e-6)) as Ns
}
