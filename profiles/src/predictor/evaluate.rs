// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accuracy of forecasts for steps outside the training, against the mean by kernel.

use std::collections::HashMap;

use super::{History, MATERIAL_NS, Predictor};
use crate::Ns;

/// Accuracy of a predictor on new values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Evaluation {
    /// Values forecast as [`MATERIAL_NS`] or more.
    pub forecasts: u64,
    /// Part of these at or above the forecast's low value.
    pub covered: f64,
    /// Number of all values.
    pub values: u64,
    /// Mean distance between a forecast's middle and the value over all values, ns.
    pub error: f64,
    /// Mean error of the kernel's mean over the training values (FIKIT's prediction), ns.
    pub error_of_means: f64,
    /// As `error`, for a predictor that learnt only from the values behind the means, and from none
    /// of the judged values.
    pub error_frozen: f64,
    /// As `covered`, for that predictor, over its own forecasts of [`MATERIAL_NS`] or more.
    pub covered_frozen: f64,
    /// Number of those forecasts.
    pub forecasts_frozen: u64,
}

impl Evaluation {
    /// `error_of_means / error`; infinite without an error.
    pub fn gain(&self) -> f64 {
        self.error_of_means / self.error
    }

    /// `error_of_means / error_frozen`.
    pub fn gain_frozen(&self) -> f64 {
        self.error_of_means / self.error_frozen
    }

    /// Evaluation over all values together. A trace weighs as much as its gaps, which are the time
    /// to be filled. A mean of gains would overrate a short trace that repeats exactly.
    pub fn over<'a>(all: impl IntoIterator<Item = &'a Evaluation>) -> Evaluation {
        let mut sum = Evaluation::default();
        for one in all {
            let (values, forecasts) = (one.values as f64, one.forecasts as f64);
            sum.values += one.values;
            sum.forecasts += one.forecasts;
            sum.covered += one.covered * forecasts;
            sum.error += one.error * values;
            sum.error_of_means += one.error_of_means * values;
            sum.error_frozen += one.error_frozen * values;
            sum.forecasts_frozen += one.forecasts_frozen;
            sum.covered_frozen += one.covered_frozen * one.forecasts_frozen as f64;
        }
        let values = sum.values.max(1) as f64;
        sum.error /= values;
        sum.error_of_means /= values;
        sum.error_frozen /= values;
        sum.covered /= sum.forecasts.max(1) as f64;
        sum.covered_frozen /= sum.forecasts_frozen.max(1) as f64;
        sum
    }
}

/// Learns from `known` and forecasts `new`: (kernel, value) in order. The predictor keeps learning,
/// as in service. A second predictor learns only from `known`. The means are of `known`, as in
/// FIKIT; a new kernel gets the mean of all.
pub fn evaluate(known: &[(u64, Ns)], new: &[(u64, Ns)]) -> Evaluation {
    let mut history = History::default();
    let mut predictor = Predictor::default();
    let mut frozen = Predictor::default();
    let mut means: HashMap<u64, (u128, u128)> = HashMap::new();
    let mut all = (0, 0);
    for (kernel, value) in known {
        let context = history.push(*kernel);
        predictor.learn(&context, *value);
        frozen.learn(&context, *value);
        for (sum, count) in [means.entry(*kernel).or_default(), &mut all] {
            *sum += u128::from(*value);
            *count += 1;
        }
    }
    let mut evaluation = Evaluation::default();
    let (mut covered, mut covered_frozen) = (0u64, 0u64);
    for (kernel, value) in new {
        let context = history.push(*kernel);
        let forecast = predictor.forecast(&context);
        let middle = forecast.map_or(0, |forecast| forecast.middle);
        if let Some(forecast) = forecast.filter(|forecast| forecast.middle >= MATERIAL_NS) {
            evaluation.forecasts += 1;
            covered += u64::from(*value >= forecast.low);
        }
        let still = frozen.forecast(&context);
        if let Some(forecast) = still.filter(|forecast| forecast.middle >= MATERIAL_NS) {
            evaluation.forecasts_frozen += 1;
            covered_frozen += u64::from(*value >= forecast.low);
        }
        evaluation.error_frozen += still.map_or(0, |forecast| forecast.middle).abs_diff(*value) as f64;
        let (sum, count) = means.get(kernel).copied().unwrap_or(all);
        let mean = sum.checked_div(count).unwrap_or(0) as f64;
        evaluation.values += 1;
        evaluation.error += middle.abs_diff(*value) as f64;
        evaluation.error_of_means += (mean - *value as f64).abs();
        predictor.learn(&context, *value);
    }
    let values = evaluation.values.max(1) as f64;
    evaluation.error /= values;
    evaluation.error_of_means /= values;
    evaluation.error_frozen /= values;
    evaluation.covered_frozen = covered_frozen as f64 / evaluation.forecasts_frozen.max(1) as f64;
    evaluation.covered = covered as f64 / evaluation.forecasts.max(1) as f64;
    evaluation
}
