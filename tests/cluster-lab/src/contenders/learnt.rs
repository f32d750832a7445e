// SPDX-License-Identifier: MIT OR Apache-2.0
//! Learnt choices: a small network gives each of several rows of features a score, and the row with
//! the highest score is taken. A row is a node that a worker may go to
//! ([`meta_rl`](super::meta_rl)), or a job that may go first
//! ([`sched2_network`](super::sched2_network)). All rows go through the same weights, so their
//! number is free and their order does not matter.
//!
//! Training is not here: `scripts/learn` does it, with the lab as the environment. The folder
//! `networks` holds the trained networks and describes how they were made. A score is a sum of
//! products of `f32` in a fixed order. The only function between layers is "not below 0". So the
//! result has the same bits on every machine.

use std::fmt::{self, Debug, Display};
use std::str::FromStr;

/// The first line of a network's file.
const HEAD: &str = "weft-network 1";
/// Widest layer that a file may have. The shipped ones have 32.
const MOST_WIDE: usize = 1_024;

/// Rows of features, one for each thing that may be chosen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChoiceRows {
    /// Features of a row.
    pub width: usize,
    /// Row after row.
    pub values: Vec<f32>,
    /// Which rows may be chosen.
    pub allowed: Vec<bool>,
}

impl ChoiceRows {
    /// Creates an empty table whose rows have `width` features.
    pub fn new(width: usize) -> ChoiceRows {
        ChoiceRows {
            width,
            ..ChoiceRows::default()
        }
    }

    /// One more row.
    pub fn push(&mut self, features: &[f32], allowed: bool) {
        debug_assert_eq!(features.len(), self.width);
        self.values.extend_from_slice(features);
        self.allowed.push(allowed);
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.allowed.len()
    }

    /// The features of a row.
    pub fn row(&self, at: usize) -> &[f32] {
        &self.values[at * self.width..(at + 1) * self.width]
    }
}

/// Feature: a part of a whole, at most 1; 1 if the whole is 0.
pub(super) fn part(of: u64, whole: u64) -> f32 {
    if whole == 0 {
        1.0
    } else {
        of.min(whole) as f32 / whole as f32
    }
}

/// Feature: 1 if true, else 0.
pub(super) fn flag(is: bool) -> f32 {
    if is { 1.0 } else { 0.0 }
}

/// Feature: approximate logarithm of one more than a number, linear between powers of two. It does
/// not depend on the machine's libraries.
pub(super) fn rough_log2(number: u64) -> f32 {
    let more = number.saturating_add(1);
    let bits = more.ilog2();
    bits as f32 + ((more - (1 << bits)) as f64 / (1u64 << bits) as f64) as f32
}

/// Chooser of a row: a network, or a trainer of one.
pub trait RowChooser: Debug + Send + Sync {
    /// One of the rows that may be chosen; none if there is none.
    fn choose(&self, rows: &ChoiceRows) -> Option<usize>;
}

/// A layer: its outputs are its biases and sums over its inputs.
#[derive(Debug, Clone, PartialEq)]
struct Layer {
    inputs: usize,
    /// For each output the bias, then a weight for each input.
    weights: Vec<f32>,
}

/// A network that scores rows.
#[derive(Debug, Clone, PartialEq)]
pub struct RowNetwork {
    name: String,
    layers: Vec<Layer>,
}

/// Error: a network's file cannot be used. One line with the place and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenNetwork {
    /// The line of the file, from 1 on.
    pub line: usize,
    /// The error there.
    pub why: String,
}

impl Display for BrokenNetwork {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "a network's file is broken in line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for BrokenNetwork {}

impl RowNetwork {
    /// Reads a file whose network takes rows of this number of features. `what` names their
    /// subject.
    pub(super) fn for_rows(text: &str, features: usize, what: &str) -> Result<RowNetwork, BrokenNetwork> {
        let network: RowNetwork = text.parse()?;
        if network.width() != features {
            let why = format!("{} features, and {what} has {features}", network.width());
            return Err(BrokenNetwork { line: 3, why });
        }
        Ok(network)
    }

    /// Name of the choice that it was trained for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Features of a row.
    pub fn width(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.inputs)
    }

    /// The score of one row.
    pub fn score(&self, features: &[f32]) -> f32 {
        let mut values = features.to_vec();
        let mut next = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let last = at + 1 == self.layers.len();
            next.clear();
            for weights in layer.weights.chunks_exact(layer.inputs + 1) {
                let mut sum = weights[0];
                for (weight, value) in weights[1..].iter().zip(&values) {
                    sum += weight * value;
                }
                next.push(if last { sum } else { sum.max(0.0) });
            }
            std::mem::swap(&mut values, &mut next);
        }
        values.first().copied().unwrap_or(0.0)
    }
}

impl RowChooser for RowNetwork {
    /// The highest score; of equal ones the first.
    fn choose(&self, rows: &ChoiceRows) -> Option<usize> {
        let mut best: Option<(f32, usize)> = None;
        for at in (0..rows.len()).filter(|at| rows.allowed[*at]) {
            let score = self.score(rows.row(at));
            if best.is_none_or(|(highest, _)| score > highest) {
                best = Some((score, at));
            }
        }
        best.map(|(_, at)| at)
    }
}

/// FNV-1a, 64 bits.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl FromStr for RowNetwork {
    type Err = BrokenNetwork;

    /// Reads a file: the head, `name NAME`, for each layer `layer INPUTS OUTPUTS` and a line for
    /// each output (its bias, then its weights), at last `sum` with the checksum of all before.
    fn from_str(text: &str) -> Result<RowNetwork, BrokenNetwork> {
        let broken = |line: usize, why: &str| BrokenNetwork {
            line,
            why: why.to_string(),
        };
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        let whole = text.lines().count();
        if lines.next().map(|(_, line)| line) != Some(HEAD) {
            return Err(broken(1, "it does not begin with \"weft-network 1\""));
        }
        let Some((last, sum)) = text.trim_end().rsplit_once('\n') else {
            return Err(broken(whole, "it ends too early"));
        };
        let found = checksum(last);
        let sum = sum
            .strip_prefix("sum ")
            .and_then(|sum| u64::from_str_radix(sum, 16).ok());
        match sum {
            None => return Err(broken(whole, "it ends too early: no checksum")),
            Some(sum) if sum != found => return Err(broken(whole, "its checksum is another")),
            Some(_) => {}
        }
        let mut lines = last.lines().enumerate().skip(1).map(|(at, line)| (at + 1, line));
        let name = lines.next().and_then(|(_, line)| line.strip_prefix("name "));
        let name = name.ok_or_else(|| broken(2, "no name"))?.to_string();
        let mut layers: Vec<Layer> = Vec::new();
        while let Some((at, line)) = lines.next() {
            let sizes = line.strip_prefix("layer ").and_then(|sizes| sizes.split_once(' '));
            let sizes = sizes.and_then(|(inputs, outputs)| Some((inputs.parse().ok()?, outputs.parse().ok()?)));
            let fits = |size: &usize| (1..=MOST_WIDE).contains(size);
            let sizes = sizes.filter(|(inputs, outputs)| fits(inputs) && fits(outputs));
            let (inputs, outputs) = sizes.ok_or_else(|| broken(at, "no layer with its sizes"))?;
            let before = layers.last().map(|layer| layer.weights.len() / (layer.inputs + 1));
            if before.is_some_and(|before| before != inputs) {
                return Err(broken(at, "a layer that does not fit the one before it"));
            }
            let mut weights = Vec::with_capacity(outputs * (inputs + 1));
            for _ in 0..outputs {
                let (at, line) = lines.next().ok_or_else(|| broken(whole, "a layer ends too early"))?;
                let row: Vec<f32> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
                if row.len() != inputs + 1 || !row.iter().all(|value| value.is_finite()) {
                    return Err(broken(at, "not a bias and a weight for each input"));
                }
                weights.extend(row);
            }
            layers.push(Layer { inputs, weights });
        }
        let one = layers
            .last()
            .is_some_and(|layer| layer.weights.len() == layer.inputs + 1);
        if !one {
            return Err(broken(whole, "it does not end in one score"));
        }
        Ok(RowNetwork { name, layers })
    }
}
