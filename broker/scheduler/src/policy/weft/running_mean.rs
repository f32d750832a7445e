// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running means in which a new value has a minimum weight.

/// Least weight of a new value in a mean that follows a slow change.
pub(super) const LEAST_GAIN: f64 = 1.0 / 64.0;

/// Running mean of all values.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RunningMean {
    pub mean: f64,
    pub seen: u32,
}

impl RunningMean {
    /// Takes in a value. `gain`: its least weight.
    pub(super) fn learn(&mut self, value: f64, gain: f64) {
        self.seen = self.seen.saturating_add(1);
        let gain = gain.max(1.0 / f64::from(self.seen));
        self.mean += (value - self.mean) * gain;
    }
}

/// Running mean that counts the largest value as the second largest. One value that a busy machine
/// or another process made far too long does not change it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RobustMean {
    seen: u32,
    /// All but the largest.
    rest: RunningMean,
    largest: f64,
    second: f64,
}

impl RobustMean {
    /// Takes in a value. [`LEAST_GAIN`] is its least weight.
    pub(super) fn learn(&mut self, value: f64) {
        self.seen = self.seen.saturating_add(1);
        if self.seen == 1 {
            self.largest = value;
            return;
        }
        let lower = value.min(self.largest);
        self.largest = self.largest.max(value);
        self.second = if self.seen == 2 { lower } else { self.second.max(lower) };
        self.rest.learn(lower, LEAST_GAIN);
    }

    /// The mean; 0 before the first value.
    pub(super) fn mean(&self) -> f64 {
        match self.seen {
            0 | 1 => self.largest,
            seen => self.rest.mean + (self.second - self.rest.mean) / f64::from(seen),
        }
    }

    /// Values so far.
    pub(super) fn seen(&self) -> u32 {
        self.seen
    }
}
