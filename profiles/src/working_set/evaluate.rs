// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accuracy of predictions for launches outside their evidence.
#![forbid(unsafe_code)]

use super::{Allocations, LaunchArguments, Region, Touched, WorkingSetPredictor, ranges};

/// Touched against predicted memory, in bytes of whole pages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct WorkingSetAccuracy {
    /// Number of launches.
    pub launches: u64,
    /// Launches of unobserved kernels, predicted by a guess; the other figures include them.
    pub unknown: u64,
    /// Bytes touched.
    pub touched_bytes: u64,
    /// Bytes predicted.
    pub predicted_bytes: u64,
    /// Bytes touched but not predicted.
    pub false_negative_bytes: u64,
    /// Bytes predicted but not touched.
    pub false_positive_bytes: u64,
    /// Sum over launches of the touched part that was not predicted, as in MSched's mean.
    negative_parts: f64,
    /// Sum over launches of the predicted part that was not touched.
    positive_parts: f64,
}

impl WorkingSetAccuracy {
    /// Part of all touched bytes that was not predicted, 0 to 1.
    pub fn false_negatives(&self) -> f64 {
        part(self.false_negative_bytes as f64, self.touched_bytes as f64)
    }

    /// Part of all predicted bytes that was not touched, 0 to 1.
    pub fn false_positives(&self) -> f64 {
        part(self.false_positive_bytes as f64, self.predicted_bytes as f64)
    }

    /// Mean over launches of the touched part that was not predicted.
    pub fn mean_false_negatives(&self) -> f64 {
        part(self.negative_parts, self.launches as f64)
    }

    /// Mean over launches of the predicted part that was not touched.
    pub fn mean_false_positives(&self) -> f64 {
        part(self.positive_parts, self.launches as f64)
    }

    /// Adds a launch.
    pub fn add(&mut self, known: bool, predicted: &[Region], touched: &[Touched], page: u64) {
        let mut will: Vec<(u64, u64)> = predicted
            .iter()
            .flat_map(|region| region.parts())
            .map(|part| (part.address, part.end()))
            .collect();
        let mut did = ranges::spans(touched);
        ranges::widen(&mut will, page);
        ranges::widen(&mut did, page);
        let both = ranges::size(&ranges::common(&will, &did));
        let (will, did) = (ranges::size(&will), ranges::size(&did));
        self.launches += 1;
        self.unknown += u64::from(!known);
        self.touched_bytes += did;
        self.predicted_bytes += will;
        self.false_negative_bytes += did - both;
        self.false_positive_bytes += will - both;
        self.negative_parts += part((did - both) as f64, did as f64);
        self.positive_parts += part((will - both) as f64, will as f64);
    }
}

fn part(some: f64, all: f64) -> f64 {
    if all == 0.0 { 0.0 } else { some / all }
}

/// Compares predictions with the memory that launches touched. Both are rounded outwards to pages
/// of `page` bytes (MSched: 4096), since a driver moves pages.
pub fn evaluate<'a>(
    predictor: &mut WorkingSetPredictor,
    live: &Allocations,
    page: u64,
    launches: impl IntoIterator<Item = (LaunchArguments<'a>, &'a [Touched])>,
) -> WorkingSetAccuracy {
    let mut evaluation = WorkingSetAccuracy::default();
    for (launch, touched) in launches {
        let predicted = predictor.predict(&launch, live);
        evaluation.add(predicted.known, predicted.regions, touched, page);
    }
    evaluation
}
