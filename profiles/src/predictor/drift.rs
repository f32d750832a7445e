// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drift: the factor by which a job's values now exceed the forecasts of their contexts, one number
//! per job.
//!
//! The host causes all gaps. A slower host (another process, a lower clock, a colder cache)
//! lengthens all gaps by about the same part. A context that comes once per step learns that
//! slowly. So the ratio of the last dozen values to their forecasts scales the next forecast. Over
//! the recordings, the mean error without drift is 1.9 times below that of a mean per kernel. With
//! drift it is 2.0 times below (`scripts/lab --kind predictor`).
#![forbid(unsafe_code)]

use super::forecast::Forecast;
use crate::Ns;

/// Learning rate: about the last dozen values count.
const RATE: f32 = 0.08;

/// Largest change that one value shows, because a gap of another kind does not mean a slower host.
const CLIP: f32 = 0.3;

/// Bounds of the drift. Contexts follow larger changes by themselves.
const MOST: (f32, f32) = (-0.5, 1.0);

/// Current excess of values over their forecasts, as a part of the forecasts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Drift(f32);

impl Drift {
    /// Learns a value whose context had this middle (above 0).
    pub(super) fn learn(&mut self, value: f32, middle: f32) {
        let off = (value / self.scaled(middle) - 1.0).clamp(-CLIP, CLIP);
        self.0 = (self.0 + RATE * off).clamp(MOST.0, MOST.1);
    }

    /// Scales a context's forecast by the drift.
    pub(super) fn applied(self, forecast: Forecast) -> Forecast {
        let scaled = |value: Ns| self.scaled(value as f32) as Ns;
        Forecast {
            low: scaled(forecast.low),
            middle: scaled(forecast.middle),
            high: scaled(forecast.high),
            ..forecast
        }
    }

    fn scaled(self, value: f32) -> f32 {
        value * (1.0 + self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_a_host_that_slows_down_and_comes_back() {
        let mut drift = Drift::default();
        (0..80).for_each(|_| drift.learn(120e3, 100e3));
        assert!((drift.scaled(100e3) - 120e3).abs() < 1e3, "{drift:?}");
        (0..80).for_each(|_| drift.learn(100e3, 100e3));
        assert!((drift.scaled(100e3) - 100e3).abs() < 1e3, "{drift:?}");
    }

    #[test]
    fn one_value_of_another_kind_hardly_moves_it() {
        let mut drift = Drift::default();
        drift.learn(1e9, 1e5);
        assert!(drift.scaled(1.0) <= 1.04, "{drift:?}");
        drift = Drift::default();
        (0..1_000).for_each(|_| drift.learn(1e30, 1.0));
        assert!(drift.scaled(1.0) <= 2.0, "{drift:?}");
        (0..1_000).for_each(|_| drift.learn(0.0, 1e5));
        assert!(drift.scaled(1.0) >= 0.5, "{drift:?}");
    }
}
