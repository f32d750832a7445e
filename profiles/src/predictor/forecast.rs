//! What a forecast is, and what it says of chances.

use crate::Ns;

/// The part of the values that may lie below a forecast's low value, and the part that may lie
/// above its high value.
pub const MISS: f64 = 0.1;

/// A forecast below this is no gap to fill and no kernel to wait for: it takes as long as
/// launching. Such forecasts neither count nor teach the distances.
pub const MATERIAL_NS: Ns = 5_000;

/// What is to be expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forecast {
    /// Nine values in ten are at least this.
    pub low: Ns,
    /// About half of them are.
    pub middle: Ns,
    /// One in ten exceeds this.
    pub high: Ns,
    /// Values that the forecast rests on, 255 at most.
    pub seen: u8,
    /// How many kernels the context has that it rests on: none (the job as a whole), the last one,
    /// or more.
    pub kernels: u8,
}

impl Forecast {
    /// The longest time ahead within which the value is reached with no more than this chance,
    /// `elapsed` having passed already.
    ///
    /// Between the values told chances are taken to grow evenly; below the low one mostly just
    /// before it, beyond the high one ever more slowly.
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

/// Chances below the low value grow with this power of the time.
const STEEP: i32 = 4;

/// How long something lasts of which nothing is known but that it has lasted for `elapsed`: as long
/// again, in every second case.
pub(super) fn lasting(elapsed: Ns, chance: f64) -> Ns {
    (elapsed as f64 * chance / (1.0 - chance).max(1e-6)) as Ns
}
