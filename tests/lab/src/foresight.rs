// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gap predictor on steps that it was not trained on, compared with the paper's mean by kernel.
#![forbid(unsafe_code)]

use serde::Serialize;
use weft_profiles::predictor::{self, Evaluation, MATERIAL_NS};
use weft_trace_format::timeline::{self, CallCosts};
use weft_trace_format::{Call, Trace};

use crate::Ns;

/// The accuracy of predictions of one trace's gaps.
#[derive(Debug, Clone, Serialize)]
pub struct GapForesight {
    /// The trace's name.
    pub trace: String,
    /// Number of training steps and of judged steps.
    pub steps: (usize, usize),
    /// Number of judged gaps. `material`: those with a forecast worth filling.
    pub gaps: u64,
    /// See `gaps`.
    pub material: u64,
    /// The part of them that are at or above the forecast's low value.
    pub covered: f64,
    /// Mean distance between forecast and gap, us.
    pub error_us: f64,
    /// The same for the mean of the kernel's earlier gaps.
    pub means_us: f64,
    /// Mean distance for a predictor that learns nothing from the judged steps, as the means do,
    /// us.
    pub frozen_us: f64,
    /// Its coverage.
    pub frozen_covered: f64,
    /// The evaluation itself.
    #[serde(skip)]
    pub found: Evaluation,
}

/// Trains on the first half of a trace's steps, judges by the second.
pub fn of(name: &str, trace: &Trace) -> GapForesight {
    let spans = timeline::alone(trace, CallCosts::default()).spans;
    let half = trace.steps.len() / 2;
    let gap = |span: &timeline::Span| -> Option<(u64, Ns)> {
        match trace.steps[span.step].operations[span.operation].call {
            Call::Launch { kernel, .. } => Some((trace.kernels[kernel as usize].hash, span.gap?)),
            _ => None,
        }
    };
    let part = |first: bool| -> Vec<(u64, Ns)> {
        let spans = spans.iter().filter(|span| (span.step < half) == first);
        spans.filter_map(gap).collect()
    };
    let judged = predictor::evaluate(&part(true), &part(false));
    GapForesight {
        trace: name.to_string(),
        steps: (half, trace.steps.len() - half),
        gaps: judged.values,
        material: judged.forecasts,
        covered: judged.covered,
        error_us: judged.error / 1e3,
        means_us: judged.error_of_means / 1e3,
        frozen_us: judged.error_frozen / 1e3,
        frozen_covered: judged.covered_frozen,
        found: judged,
    }
}

/// A gap shorter than this is not worth a forecast, us.
pub const LEAST_US: f64 = MATERIAL_NS as f64 / 1e3;
