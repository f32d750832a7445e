// SPDX-License-Identifier: MIT OR Apache-2.0
//! A number computed from a launch: a constant, or a rational multiple of a product of arguments.
//!
//! MSched's sizes are "proportional to the product of some launch arguments". The factor is
//! rational: a block of 32 quantised weights is 34 bytes. [`find`] takes bounds, because most
//! evidence rounds to pages, and returns the simplest factor within them.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::LaunchArguments;

/// Most factors in a product. MSched has up to three. Rows and columns are factors; the element
/// size is in the coefficient.
pub(super) const MAX_TERMS: usize = 3;

/// Most arguments that are tried: products of three are some thousands.
const MAX_CANDIDATES: usize = 24;

/// Most samples in the search for a rule, which takes milliseconds. The result is tested on all.
const LOOKED_AT: usize = 48;

/// A number of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Term {
    /// 32-bit word at this offset of the parameter buffer.
    Word32(u16),
    /// 64-bit word at this offset.
    Word64(u16),
    /// Blocks along this axis, 0 to 2.
    Grid(u8),
    /// Threads along this axis, 0 to 2.
    Block(u8),
}

impl Term {
    /// Value in a launch; `None` if the launch has no such parameter.
    pub fn value(self, launch: &LaunchArguments) -> Option<u64> {
        match self {
            Term::Word32(offset) => launch.word32(offset).map(u64::from),
            Term::Word64(offset) => launch.word64(offset),
            Term::Grid(axis) => launch.grid.get(usize::from(axis)).copied().map(u64::from),
            Term::Block(axis) => launch.block.get(usize::from(axis)).copied().map(u64::from),
        }
    }
}

/// `constant + numerator / denominator * product of terms`, rounded up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formula {
    /// Constant part.
    pub constant: i64,
    /// Numerator of the coefficient. Meaningless without terms.
    pub numerator: u64,
    /// Denominator of the coefficient. 0 counts as 1.
    pub denominator: u64,
    /// Factors, at most three. Without any, the formula is the constant.
    pub terms: Vec<Term>,
}

impl Formula {
    /// Makes a constant formula.
    pub fn constant(constant: i64) -> Formula {
        Formula {
            constant,
            numerator: 0,
            denominator: 1,
            terms: Vec::new(),
        }
    }

    /// Whether the formula is a constant.
    pub fn is_constant(&self) -> bool {
        self.terms.is_empty()
    }

    /// Value in a launch; `None` if a parameter is missing or the result overflows.
    #[inline]
    pub fn value(&self, launch: &LaunchArguments) -> Option<i64> {
        if self.terms.is_empty() {
            return Some(self.constant);
        }
        let mut product = u128::from(self.numerator);
        for term in &self.terms {
            product = product.checked_mul(u128::from(term.value(launch)?))?;
        }
        let scaled = match self.denominator {
            0 | 1 => product,
            denominator => product.div_ceil(u128::from(denominator)),
        };
        i64::try_from(scaled).ok()?.checked_add(self.constant)
    }
}

/// A launch and inclusive bounds of the number that a formula must give.
#[derive(Clone, Copy)]
pub(super) struct BoundedSample<'a> {
    pub launch: LaunchArguments<'a>,
    pub least: i64,
    pub most: i64,
}

/// Simplest formula that all samples allow: a constant, else the fewest terms, first without a
/// constant part. A product needs two different values, a constant part needs three and exact
/// samples. With fewer values any formula would fit.
///
/// `pointers` are offsets of 64-bit addresses, which cannot be factors.
pub(super) fn find(samples: &[BoundedSample], pointers: &[u16]) -> Option<Formula> {
    let least = samples.iter().map(|sample| sample.least).max()?;
    let most = samples.iter().map(|sample| sample.most).min()?;
    if least <= most {
        return Some(Formula::constant(least));
    }
    let candidates = candidates(samples, pointers);
    for terms in 1..=MAX_TERMS {
        let mut found: Option<Formula> = None;
        products(&candidates, terms, &mut Vec::new(), 0, &mut |chosen, values| {
            let Some(formula) = proportional(samples, chosen, values) else {
                return;
            };
            // A small denominator is likelier.
            if found
                .as_ref()
                .is_none_or(|best| (formula.denominator, formula.numerator) < (best.denominator, best.numerator))
            {
                found = Some(formula);
            }
        });
        if found.is_none() && terms < MAX_TERMS {
            products(&candidates, terms, &mut Vec::new(), 0, &mut |chosen, values| {
                if found.is_none() {
                    found = with_constant(samples, chosen, values);
                }
            });
        }
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Terms that differ between the samples and from each other; a constant argument is part of the
/// coefficient.
fn candidates(samples: &[BoundedSample], pointers: &[u16]) -> Vec<(Term, Vec<u64>)> {
    let Some(first) = samples.first() else {
        return Vec::new();
    };
    // 32-bit words, then 64-bit words, then shapes: an element count is likelier than a grid that
    // was rounded up from it.
    let number = |offset: &u16| !pointers.contains(&(*offset / 8 * 8));
    let words = first.launch.word_offsets().filter(number).map(Term::Word32);
    let longs = first.launch.pointer_offsets().filter(number).map(Term::Word64);
    let shapes = (0..3).flat_map(|axis| [Term::Grid(axis), Term::Block(axis)]);
    let mut found: Vec<(Term, Vec<u64>)> = Vec::new();
    for term in words.chain(longs).chain(shapes) {
        let values: Option<Vec<u64>> = samples.iter().map(|sample| term.value(&sample.launch)).collect();
        let Some(values) = values else { continue };
        let differ = values.iter().any(|value| *value != values[0]);
        // No count reaches 2^48: such words are pointers or floating point.
        let sane = values.iter().all(|value| *value > 0 && *value < 1 << 48);
        if differ && sane && found.len() < MAX_CANDIDATES && found.iter().all(|(_, other)| *other != values) {
            found.push((term, values));
        }
    }
    found
}

/// Calls `each` with every product of `terms` candidates (with repetition) and its values.
/// Overflowing products are left out.
fn products(
    candidates: &[(Term, Vec<u64>)],
    terms: usize,
    chosen: &mut Vec<(Term, Vec<u64>)>,
    from: usize,
    each: &mut impl FnMut(&[Term], &[u64]),
) {
    for (at, (term, values)) in candidates.iter().enumerate().skip(from) {
        let product: Option<Vec<u64>> = match chosen.last() {
            Some((_, before)) => before.iter().zip(values).map(|(a, b)| a.checked_mul(*b)).collect(),
            None => Some(values.clone()),
        };
        let Some(product) = product else { continue };
        chosen.push((*term, product));
        if chosen.len() == terms {
            let names: Vec<Term> = chosen.iter().map(|(term, _)| *term).collect();
            each(&names, &chosen[chosen.len() - 1].1);
        } else {
            products(candidates, terms, chosen, at, each);
        }
        chosen.pop();
    }
}

/// Multiple of these values that all samples allow.
fn proportional(samples: &[BoundedSample], terms: &[Term], values: &[u64]) -> Option<Formula> {
    // `max(least / value) <= coefficient <= min(most / value)`. Rounding up would allow more than
    // `least - 1`; the closed interval is stricter and holds for all known formats.
    let mut low: (u128, u128) = (0, 1);
    let mut high: (u128, u128) = (u128::from(u64::MAX), 1);
    for (sample, value) in samples.iter().zip(values) {
        let value = u128::from(*value);
        let least = (u128::try_from(sample.least.max(0)).ok()?, value);
        let most = (u128::try_from(sample.most).ok()?, value);
        if least.0 * low.1 > low.0 * least.1 {
            low = least;
        }
        if most.0 * high.1 < high.0 * most.1 {
            high = most;
        }
    }
    if low.0 == 0 || low.0 * high.1 > high.0 * low.1 {
        return None;
    }
    let (mut numerator, mut denominator) = simplest(low, high)?;
    // If evidence leaves the factor open, a factor among the largest causes hardly any miss.
    let near = (high.0.saturating_mul(15), high.1.saturating_mul(16));
    if u128::from(numerator).saturating_mul(near.1) < near.0.saturating_mul(u128::from(denominator)) {
        (numerator, denominator) = simplest(near, high)?;
    }
    let formula = Formula {
        constant: 0,
        numerator,
        denominator,
        terms: terms.to_vec(),
    };
    fits(&formula, samples).then_some(formula)
}

/// Constant and multiple, from exact samples.
fn with_constant(samples: &[BoundedSample], terms: &[Term], values: &[u64]) -> Option<Formula> {
    let mut different: Vec<u64> = values.to_vec();
    different.sort_unstable();
    different.dedup();
    if different.len() < 3 || samples.iter().any(|sample| sample.least != sample.most) {
        return None;
    }
    let (low, high) = (*different.first()?, *different.last()?);
    let at = |wanted: u64| {
        let place = values.iter().position(|value| *value == wanted)?;
        Some(samples[place].least)
    };
    let (first, last) = (at(low)?, at(high)?);
    let rise = u64::try_from(last.checked_sub(first)?).ok().filter(|rise| *rise > 0)?;
    let divisor = gcd(rise, high - low);
    let (numerator, denominator) = (rise / divisor, (high - low) / divisor);
    let part = u128::from(numerator) * u128::from(low) / u128::from(denominator);
    let formula = Formula {
        constant: first.checked_sub(i64::try_from(part).ok()?)?,
        numerator,
        denominator,
        terms: terms.to_vec(),
    };
    fits(&formula, samples).then_some(formula)
}

/// Some samples, evenly spread, because kernels run layer by layer; all if they are few.
pub(super) fn some<'a>(samples: &[BoundedSample<'a>]) -> Vec<BoundedSample<'a>> {
    if samples.len() <= LOOKED_AT {
        return samples.to_vec();
    }
    let each = (0..LOOKED_AT).map(|at| at * samples.len() / LOOKED_AT);
    each.map(|at| samples[at]).collect()
}

/// Whether a formula agrees with all samples.
pub(super) fn fits(formula: &Formula, samples: &[BoundedSample]) -> bool {
    samples.iter().all(|sample| {
        formula
            .value(&sample.launch)
            .is_some_and(|value| (sample.least..=sample.most).contains(&value))
    })
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// Fraction of the smallest denominator in a closed interval (Stern-Brocot tree, by continued
/// fractions).
fn simplest(low: (u128, u128), high: (u128, u128)) -> Option<(u64, u64)> {
    let whole = low.0 / low.1;
    if whole * low.1 == low.0 {
        return Some((u64::try_from(whole).ok()?, 1));
    }
    if whole < high.0 / high.1 {
        return Some((u64::try_from(whole + 1).ok()?, 1));
    }
    // Both bounds lie between the same integers: recurse on the inverted fractional parts.
    let turned = |it: (u128, u128)| (it.1, it.0 - whole * it.1);
    let (numerator, denominator) = simplest(turned(high), turned(low))?;
    let top = whole
        .checked_mul(u128::from(numerator))?
        .checked_add(u128::from(denominator))?;
    Some((u64::try_from(top).ok()?, numerator))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn found(rows: &[(&[u32], i64, i64)]) -> Option<Formula> {
        let buffers: Vec<Vec<u8>> = rows.iter().map(|(row, ..)| words(row)).collect();
        let samples: Vec<BoundedSample> = rows
            .iter()
            .zip(&buffers)
            .map(|((_, least, most), parameters)| BoundedSample {
                launch: LaunchArguments {
                    kernel: 1,
                    parameters,
                    grid: [1, 1, 1],
                    block: [128, 1, 1],
                },
                least: *least,
                most: *most,
            })
            .collect();
        find(&samples, &[])
    }

    fn terms(formula: &Formula) -> (i64, u64, u64, &[Term]) {
        (formula.constant, formula.numerator, formula.denominator, &formula.terms)
    }

    #[test]
    fn the_simplest_fraction_between_two() {
        assert_eq!(simplest((1, 3), (1, 2)), Some((1, 2)));
        assert_eq!(simplest((34, 32), (34, 32)), Some((17, 16)));
        assert_eq!(simplest((4, 1), (4, 1)), Some((4, 1)));
        assert_eq!(simplest((314, 100), (315, 100)), Some((22, 7)));
        assert_eq!(simplest((399, 100), (405, 100)), Some((4, 1)));
    }

    #[test]
    fn products_of_arguments_are_found() {
        let exact = |row: &'static [u32], value: i64| (row, value, value);
        assert_eq!(
            found(&[exact(&[3], 100), exact(&[5], 100)]),
            Some(Formula::constant(100))
        );
        let linear = found(&[exact(&[3, 9], 12), exact(&[5, 9], 20)]).unwrap();
        assert_eq!(terms(&linear), (0, 4, 1, &[Term::Word32(0)][..]));
        let area = found(&[exact(&[3, 7], 84), exact(&[5, 7], 140), exact(&[5, 2], 40)]).unwrap();
        assert_eq!(terms(&area), (0, 4, 1, &[Term::Word32(0), Term::Word32(4)][..]));
        // Blocks of 32 weights in 34 bytes.
        let packed = found(&[exact(&[64], 68), exact(&[4096], 4352)]).unwrap();
        assert_eq!(terms(&packed), (0, 17, 16, &[Term::Word32(0)][..]));
        let affine = found(&[exact(&[10], 27), exact(&[20], 47), exact(&[35], 77)]).unwrap();
        assert_eq!(terms(&affine), (7, 2, 1, &[Term::Word32(0)][..]));
    }

    #[test]
    fn pages_hide_the_size_and_not_the_rule() {
        // The true size is 4 bytes per element; the evidence has pages of 4096.
        let rows: Vec<(Vec<u32>, i64)> = [5_000u32, 70_001, 300_123]
            .iter()
            .map(|n| (vec![*n], i64::from(*n) * 4))
            .collect();
        let seen: Vec<(&[u32], i64, i64)> = rows
            .iter()
            .map(|(row, bytes)| (&row[..], bytes / 4096 * 4096 + 1, (bytes + 4095) / 4096 * 4096))
            .collect();
        let formula = found(&seen).unwrap();
        assert_eq!(terms(&formula), (0, 4, 1, &[Term::Word32(0)][..]));
    }

    #[test]
    fn what_follows_no_rule_has_none() {
        let exact = |row: &'static [u32], value: i64| (row, value, value);
        assert_eq!(found(&[exact(&[3], 10), exact(&[3], 20)]), None);
        assert_eq!(found(&[exact(&[3], 7), exact(&[5], 1), exact(&[7], 100)]), None);
    }

    #[test]
    fn absurd_arguments_are_no_panic() {
        let formula = Formula {
            constant: i64::MAX,
            numerator: u64::MAX,
            denominator: 0,
            terms: vec![Term::Word64(0), Term::Word64(8), Term::Grid(9)],
        };
        let parameters = [0xff; 16];
        let launch = LaunchArguments {
            kernel: 1,
            parameters: &parameters,
            grid: [1; 3],
            block: [1; 3],
        };
        assert_eq!(formula.value(&launch), None);
    }
}
