// SPDX-License-Identifier: MIT OR Apache-2.0
//! A figure over several seeds: the value of each seed, their mean, and its interval.
//!
//! **Interval**: for each seed the geometric mean over its cases is taken. The value after `+-` is
//! the half-width of the 95 % interval of the mean of those, by Student's t. There is one degree of
//! freedom less than there are seeds: for three of them it is 4.303 x s / sqrt(3), where s is their
//! standard deviation. It separates chance from a difference. It does not measure how correct
//! device times or models are.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::pairs::CaseRow;

/// 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom.
const STUDENT_T: [f64; 9] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];

/// The same quantile of the normal distribution, for more degrees of freedom.
const NORMAL: f64 = 1.96;

/// A figure over seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OverSeeds {
    /// By seed, the geometric mean over its cases.
    pub by_seed: BTreeMap<u64, f64>,
    /// Their mean.
    pub mean: f64,
    /// Half of its 95 % interval.
    pub half_width: f64,
}

impl OverSeeds {
    /// The figure of rows of one device, kind and rule. `None` unless each case was run with each
    /// of at least two seeds: different cases of the seeds would count as chance.
    pub fn of(rows: &[&CaseRow], value: fn(&CaseRow) -> f64) -> Option<OverSeeds> {
        let mut by_seed: BTreeMap<u64, (Vec<f64>, BTreeSet<String>)> = BTreeMap::new();
        for row in rows {
            let (values, cases) = by_seed.entry(row.figures.seed).or_default();
            values.push(value(row));
            cases.insert(row.jobs());
        }
        let mut cases = by_seed.values().map(|(_, cases)| cases);
        let first = cases.next()?;
        if by_seed.len() < 2 || cases.any(|cases| cases != first) {
            return None;
        }
        let by_seed = by_seed
            .into_iter()
            .map(|(seed, (values, _))| (seed, geometric(values)))
            .collect();
        Some(OverSeeds::over(by_seed))
    }

    fn over(by_seed: BTreeMap<u64, f64>) -> OverSeeds {
        let count = by_seed.len() as f64;
        let mean = by_seed.values().sum::<f64>() / count;
        let squares: f64 = by_seed.values().map(|value| (value - mean).powi(2)).sum();
        let spread = (squares / (count - 1.0)).sqrt();
        let quantile = STUDENT_T.get(by_seed.len() - 2).copied().unwrap_or(NORMAL);
        OverSeeds {
            mean,
            half_width: quantile * spread / count.sqrt(),
            by_seed,
        }
    }

    /// The value of each seed.
    pub fn each(&self) -> String {
        let values: Vec<String> = self.by_seed.values().map(|value| format!("{value:.3}")).collect();
        values.join(", ")
    }
}

impl std::fmt::Display for OverSeeds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} +- {:.3}", self.mean, self.half_width)
    }
}

/// The geometric mean; 1 if there are no values.
pub fn geometric(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for value in values {
        sum += value.max(1e-9).ln();
        count += 1;
    }
    if count == 0 {
        1.0
    } else {
        (sum / f64::from(count)).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        let over = OverSeeds::over([(1, 0.7), (2, 0.8), (3, 0.9)].into());
        // s = 0.1.
        assert!((over.half_width - 4.303 * 0.1 / 3f64.sqrt()).abs() < 1e-9);
        assert_eq!(over.to_string(), "0.800 +- 0.248");
        assert_eq!(over.each(), "0.700, 0.800, 0.900");
        let two = OverSeeds::over([(1, 1.0), (9, 1.0)].into());
        assert_eq!((two.mean, two.half_width), (1.0, 0.0));
    }
}
