// SPDX-License-Identifier: MIT OR Apache-2.0
//! Templates from evidence that is rounded outwards: granules, and a prefetcher's neighbours.
//!
//! Such evidence is a superset of the memory that a launch touched. Launches are grouped by the
//! finest key of [`super::table`] that repeats. If a group's launches touch the same memory
//! relative to each pointer, the intersection of their evidence still contains the truth, and
//! narrows as data moves. Each pointer gets the part before the next one.
//!
//! For seen numbers, the result is never less than the truth. For other numbers a rule is searched
//! that stays within the evidence, close below it. Without such a rule the union of the evidence is
//! used, never a whole allocation.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};

use super::{
    Access, Allocations, Formula, HostResidency, KernelWorkingSet, LaunchArguments, Template, Touched, WordTemplate,
    formula::{self, BoundedSample},
    ranges::{self, Span},
    samples::{LaunchSample, LaunchSamples, pointers},
    table,
    template::{MAX_PIECES, MAX_RECALLED},
};

/// Launches kept per set of arguments: a launch with its data elsewhere shows other neighbours.
const KEPT_ALIKE: usize = 4;

/// Fewest groups of different sizes for a rule: within granules, any rule fits fewer groups.
const SIZES: usize = 4;

/// Coarseness of evidence, bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grain {
    /// Ranges are rounded outwards to multiples of this.
    pub(super) granule: u64,
    /// Aligned blocks within which granules were widened ([`HostResidency::BLOCK`]); else the
    /// granule's size.
    pub(super) block: u64,
}

impl Grain {
    /// Coarseness of a driver's pages.
    pub(super) fn of_residency() -> Grain {
        Grain {
            granule: HostResidency::GRANULE,
            block: HostResidency::BLOCK,
        }
    }

    /// Most bytes by which the range `begin..end` may be too long at its end.
    fn slack(&self, begin: u64, end: u64) -> u64 {
        let mut part = self.granule;
        // The largest aligned part at the end may have been widened from just over half of it.
        while part < self.block && end.is_multiple_of(part * 2) && end.saturating_sub(begin) >= part * 2 {
            part *= 2;
        }
        let granules = part / self.granule;
        // More than half of two granules is both.
        let unneeded = granules.saturating_sub(granules / 2 + 1);
        self.granule - 1 + unneeded * self.granule
    }
}

/// Evidence of one kernel: per launch the union of touched ranges.
pub(super) type CoarseSamples = LaunchSamples<SeenPointer, Vec<Span>>;

type CoarseSample = LaunchSample<SeenPointer, Vec<Span>>;

/// A word of a launch that was a pointer.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenPointer {
    value: u64,
    /// Range of its allocation.
    bounds: Span,
    /// Value of the next pointer, or the allocation's end.
    next: u64,
    /// Value of the pointer before it in its allocation, else 0.
    before: u64,
    /// Whether another word had the same value.
    shared: bool,
}

/// Evidence of one word over launches of the same numbers.
struct CommonUse {
    /// Intersection (union if `torn`) of the evidence, relative to the pointer, shifted by
    /// [`HERE`].
    pieces: Vec<Span>,
    /// Least bytes touched from the pointer on.
    least: u64,
    /// The launches differ in the memory that they touched. Other numbers decide, or a number that
    /// never repeats.
    torn: bool,
}

/// The pointer's own address in spans relative to it.
const HERE: u64 = 1 << 63;

impl CoarseSample {
    /// Evidence in `from..upto`, relative to `to`.
    fn between(&self, from: u64, upto: u64, to: u64) -> Vec<Span> {
        let first = self.whole.partition_point(|(_, end)| *end <= from);
        let some = self.whole[first..].iter().take_while(|(begin, _)| *begin < upto);
        let relative = |address: u64| address.wrapping_sub(to).wrapping_add(HERE);
        some.map(|(begin, end)| (relative((*begin).max(from)), relative((*end).min(upto))))
            .collect()
    }

    /// Evidence from a word to the next pointer: most likely its own.
    fn own(&self, word: &SeenPointer, grain: Grain) -> Vec<Span> {
        let mut own = Vec::new();
        if word.before == 0 {
            // The prefetcher may have brought the memory before it in its own block.
            own = self.between(word.bounds.0, word.value / grain.block * grain.block, word.value);
        }
        let mut behind = self.between(word.value, word.next, word.value);
        if word.next < word.bounds.1 {
            // The next pointer's granule, and its prefetched neighbours, begin before that pointer.
            let near = (word.next / grain.block * grain.block).max(word.value);
            let near = near.wrapping_sub(word.value).wrapping_add(HERE);
            behind.retain(|(begin, _)| *begin == HERE || *begin < near);
        }
        own.extend(behind);
        own
    }

    /// Evidence inside a range that is relative to the word.
    fn may(&self, word: &SeenPointer, (from, upto): Span) -> Vec<Span> {
        let absolute = |at: u64| word.value.wrapping_add(at.wrapping_sub(HERE));
        let from = absolute(from).clamp(word.bounds.0, word.bounds.1);
        let upto = absolute(upto).clamp(word.bounds.0, word.bounds.1);
        self.between(from, upto, word.value)
    }

    /// Seen range that contains the word's address.
    fn range(&self, word: &SeenPointer) -> Option<Span> {
        let at = self.whole.partition_point(|(_, end)| *end <= word.value);
        self.whole.get(at).copied().filter(|(begin, _)| *begin <= word.value)
    }

    /// Whether the pointer before may account for all of that range.
    fn is_explained(&self, word: &SeenPointer) -> bool {
        self.range(word).is_some_and(|(begin, _)| word.before >= begin)
    }

    /// Least bytes touched from the pointer on, beyond what the next pointer or the prefetcher
    /// explains.
    fn least(&self, word: &SeenPointer, grain: Grain) -> u64 {
        let Some((begin, end)) = self.range(word) else {
            return 0;
        };
        let slack = if end <= word.next {
            grain.slack(begin, end)
        } else if grain.block > grain.granule {
            // In the next pointer's block, any granule may be there for that pointer.
            word.next - (word.next / grain.block * grain.block).max(word.value).min(word.next) + grain.granule
        } else {
            word.next % grain.granule + grain.granule
        };
        let upto = end.min(word.next);
        upto.saturating_sub(word.value).saturating_sub(slack)
    }
}

impl CoarseSamples {
    /// Adds a launch, the live allocations and the evidence of touched memory.
    pub(super) fn observe(
        &mut self,
        launch: &LaunchArguments,
        live: &Allocations,
        touched: &[Touched],
        scratch: &mut Vec<u8>,
    ) {
        self.observed += 1;
        let signature = launch.signature(scratch, |_, word| live.find(word).is_some());
        if !self.has_room(launch, signature, KEPT_ALIKE) {
            return;
        }
        let pointers = pointers(launch, live);
        let word = |(value, offset, bounds): &(u64, u16, Span)| {
            let from = pointers.partition_point(|(other, ..)| other < value);
            let upto = pointers.partition_point(|(other, ..)| other <= value);
            let next = pointers.get(upto).map_or(bounds.1, |(next, ..)| (*next).min(bounds.1));
            let before = from.checked_sub(1).and_then(|at| pointers.get(at));
            let before = before.map(|(before, ..)| *before).filter(|before| *before >= bounds.0);
            let word = SeenPointer {
                value: *value,
                bounds: *bounds,
                next,
                before: before.unwrap_or(0),
                shared: upto - from > 1,
            };
            (*offset, word)
        };
        let mut words: Vec<(u16, SeenPointer)> = pointers.iter().map(word).collect();
        words.sort_unstable_by_key(|(offset, _)| *offset);
        let seen = ranges::spans(touched);
        let bytes = size_of_val(&words[..]) + size_of_val(&seen[..]);
        self.keep(launch, signature, words, seen, bytes);
    }

    /// Working set learnt for the kernel.
    pub(super) fn fit(&mut self, kernel: u64, grain: Grain) -> KernelWorkingSet {
        self.learnt(kernel, |seen| seen.words(kernel, grain))
    }

    fn words(&self, kernel: u64, grain: Grain) -> Vec<WordTemplate> {
        let offsets = self.offsets();
        let launches: Vec<LaunchArguments> = self.kept.iter().map(|kept| kept.launch(kernel)).collect();
        let key = table::finest(&launches, &offsets);
        let mut groups: HashMap<u64, Vec<&CoarseSample>> = HashMap::new();
        for (kept, launch) in self.kept.iter().zip(&launches) {
            groups.entry(table::hash(launch, &key)).or_default().push(kept);
        }
        let mut groups: Vec<(u64, Vec<&CoarseSample>)> = groups.into_iter().collect();
        groups.sort_unstable_by_key(|(hash, _)| *hash);
        let left = self.left_over(&offsets, grain);
        let used = offsets.iter().copied().filter(|offset| !left.contains(offset));
        used.filter_map(|offset| {
            let each: Vec<(u64, &CoarseSample, CommonUse)> = groups
                .iter()
                .filter_map(|(hash, group)| {
                    let (kept, behind) = behind(group, offset, grain)?;
                    Some((*hash, kept, behind))
                })
                .collect();
            let torn = each.iter().any(|(.., behind)| behind.torn);
            let rule = match torn {
                false => rule(
                    kernel,
                    &offsets,
                    each.iter().map(|(_, kept, behind)| (*kept, behind)),
                    false,
                ),
                true => {
                    // Each launch by itself: a number that never repeats cannot be a key, but may
                    // be a factor.
                    let alone = self.kept.iter().filter_map(|kept| behind(&[kept], offset, grain));
                    let alone: Vec<(&CoarseSample, CommonUse)> = alone.collect();
                    let samples = alone.iter().map(|(kept, behind)| (*kept, behind));
                    rule(kernel, &offsets, samples, true)
                }
            };
            let template = template(rule, &key, each)?;
            Some(WordTemplate {
                offset,
                access: Access::ReadWrite,
                template,
            })
        })
        .collect()
    }

    /// Leftovers in gaps: words whose every use is explained by an equal word, which elsewhere is
    /// used by itself.
    fn left_over(&self, offsets: &[u16], grain: Grain) -> HashSet<u16> {
        let used = |kept: &CoarseSample, word: &SeenPointer| !kept.own(word, grain).is_empty();
        let mut alone: HashSet<u16> = HashSet::new();
        for kept in &self.kept {
            let words = kept.words.iter().filter(|(_, word)| !word.shared && used(kept, word));
            alone.extend(words.map(|(offset, _)| *offset));
        }
        let mut left: HashSet<u16> = offsets
            .iter()
            .copied()
            .filter(|offset| !alone.contains(offset))
            .collect();
        for kept in &self.kept {
            let owned: HashSet<u64> = kept
                .words
                .iter()
                .filter(|(offset, _)| alone.contains(offset))
                .map(|(_, word)| word.value)
                .collect();
            for (offset, word) in &kept.words {
                if left.contains(offset) && !owned.contains(&word.value) && used(kept, word) {
                    left.remove(offset);
                }
            }
        }
        left
    }
}

/// Common use of a word over launches of the same numbers, and one of these launches. `None` if the
/// word is a pointer in none of them.
fn behind<'a>(group: &[&'a CoarseSample], offset: u16, grain: Grain) -> Option<(&'a CoarseSample, CommonUse)> {
    let some: Vec<(&CoarseSample, &SeenPointer)> = group
        .iter()
        .filter_map(|kept| Some((*kept, kept.word(offset)?)))
        .collect();
    let mut own: Vec<Span> = some.iter().flat_map(|(kept, word)| kept.own(word, grain)).collect();
    ranges::unite(&mut own);
    let mut pieces = own.clone();
    for (kept, word) in &some {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
            break;
        };
        let may = kept.may(word, (first.0, last.1));
        pieces = ranges::common(&pieces, &may);
    }
    let least = some.iter().map(|(kept, word)| kept.least(word, grain)).max()?;
    // Bytes that one launch surely touched are absent in another: the numbers do not decide.
    let sure = some.iter().filter(|(kept, word)| !kept.is_explained(word));
    let sure = sure.map(|(kept, word)| kept.least(word, grain)).max().unwrap_or(0);
    let must = (HERE, HERE.saturating_add(sure));
    let torn = sure > 0 && ranges::common(&pieces, &[must]) != [must];
    if torn {
        pieces = own;
    }
    Some((some.first()?.0, CommonUse { pieces, least, torn }))
}

/// Template of one word; `None` if it is never used.
fn template(
    rule: Option<Formula>,
    key: &[super::Term],
    each: Vec<(u64, &CoarseSample, CommonUse)>,
) -> Option<Template> {
    let mut all: Vec<Span> = each
        .iter()
        .flat_map(|(.., behind)| behind.pieces.iter().copied())
        .collect();
    ranges::unite(&mut all);
    if all.is_empty() {
        return None;
    }
    let common = pieces(&all);
    let same = each
        .iter()
        .all(|(.., behind)| behind.pieces == all && !(behind.torn && rule.is_some()));
    match &common[..] {
        [(offset, bytes)] if same => {
            return Some(Template::Fixed {
                offset: *offset,
                bytes: *bytes,
            });
        }
        _ => {}
    }
    if let Some(bytes) = rule {
        return Some(Template::Linear {
            offset: Formula::constant(0),
            bytes,
        });
    }
    let mut seen: Vec<(u64, Vec<(i64, u64)>)> = each
        .iter()
        .map(|(hash, _, behind)| (*hash, pieces(&behind.pieces)))
        .collect();
    seen.truncate(MAX_RECALLED);
    Some(Template::Table {
        key: key.to_vec(),
        seen,
        common,
    })
}

/// Offsets and bytes; beyond `MAX_PIECES`, the last ones as one piece.
fn pieces(spans: &[Span]) -> Vec<(i64, u64)> {
    let piece = |(begin, end): &Span| (begin.wrapping_sub(HERE) as i64, end - begin);
    let mut pieces: Vec<(i64, u64)> = spans.iter().take(MAX_PIECES).map(piece).collect();
    if let (Some(last), Some((_, end))) = (pieces.last_mut(), spans.last())
        && spans.len() > MAX_PIECES
    {
        last.1 = (end.wrapping_sub(HERE) as i64).abs_diff(last.0);
    }
    pieces
}

/// Size rule within the evidence for all numbers, of at least 9/10 of its sum. If `torn`, 1/2 is
/// enough: no other number separates these launches.
fn rule<'a>(
    kernel: u64,
    pointers: &[u16],
    each: impl Iterator<Item = (&'a CoarseSample, &'a CommonUse)>,
    torn: bool,
) -> Option<Formula> {
    let mut samples: Vec<BoundedSample> = Vec::new();
    for (kept, behind) in each {
        let most = match &behind.pieces[..] {
            [] => 0,
            [(HERE, end)] => i64::try_from(end - HERE).ok()?,
            _ => return None,
        };
        samples.push(BoundedSample {
            launch: kept.launch(kernel),
            least: i64::try_from(behind.least).ok()?.max(1).min(most),
            most,
        });
    }
    let some = formula::some(&samples);
    let formula = formula::find(&some, pointers).filter(|formula| !formula.is_constant())?;
    if !formula::fits(&formula, &samples) {
        return None;
    }
    let told = samples
        .iter()
        .filter_map(|sample| Some((sample, formula.value(&sample.launch)?)));
    // Only sizes that are at least half certain: within granules, any rule fits small ones.
    let sure = told.clone().filter(|(sample, value)| sample.least >= value / 2);
    let sizes: HashSet<i64> = sure.map(|(_, value)| value).collect();
    let told: i64 = told.map(|(_, value)| value).sum();
    let seen: i64 = samples.iter().map(|sample| sample.most).sum();
    let close = if torn { seen / 2 } else { seen / 10 * 9 };
    (sizes.len() >= SIZES && told >= close).then_some(formula)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7f00_0000_0000;
    const KB: u64 = 1 << 10;

    type Case<'a> = (&'a [u64], u64, &'a [(u64, u64)]);

    /// Templates from launches with these pointers and a number, and the seen ranges: start and KB.
    fn learnt(launches: &[Case<'_>]) -> Vec<WordTemplate> {
        let mut live = Allocations::new();
        live.add(BASE, 1 << 30);
        let mut seen = CoarseSamples::default();
        for (pointers, number, ranges) in launches {
            let words = pointers.iter().map(|at| BASE + at * KB).chain([*number]);
            let parameters: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            let launch = LaunchArguments {
                kernel: 1,
                parameters: &parameters,
                grid: [1; 3],
                block: [1; 3],
            };
            let touched = |(at, kilobytes): &(u64, u64)| Touched {
                address: BASE + at * KB,
                bytes: kilobytes * KB,
                access: Access::ReadWrite,
            };
            let touched: Vec<Touched> = ranges.iter().map(touched).collect();
            seen.observe(&launch, &live, &touched, &mut Vec::new());
        }
        seen.fit(1, Grain::of_residency()).words
    }

    fn fixed(words: &[WordTemplate]) -> Vec<(u16, i64, u64)> {
        let each = words.iter().map(|word| match word.template {
            Template::Fixed { offset, bytes } => (word.offset, offset, bytes / KB),
            ref other => panic!("{other:?}"),
        });
        each.collect()
    }

    #[test]
    fn what_is_seen_goes_to_the_pointer_before_it() {
        // 100 KB at 10, 40 KB at 110, and 64 KB far away, whose granule begins before the pointer.
        let launch: (&[u64], u64, &[(u64, u64)]) = (&[10, 110, 8202], 7, &[(0, 192), (8192, 128)]);
        assert_eq!(fixed(&learnt(&[launch])), [(0, 0, 100), (8, 0, 82), (16, 0, 118)]);
    }

    #[test]
    fn a_launch_with_its_data_elsewhere_narrows_it() {
        // 100 KB each time.
        let first: (&[u64], u64, &[(u64, u64)]) = (&[10], 7, &[(0, 128)]);
        let second: (&[u64], u64, &[(u64, u64)]) = (&[64 + 20], 7, &[(64, 128)]);
        assert_eq!(fixed(&learnt(&[first, second])), [(0, 0, 108)]);
    }

    #[test]
    fn a_pointer_that_nobody_used_once_is_no_operand() {
        let beside: (&[u64], u64, &[(u64, u64)]) = (&[0, 64], 7, &[(0, 192)]);
        let far: (&[u64], u64, &[(u64, u64)]) = (&[0, 8192], 7, &[(0, 192)]);
        assert_eq!(fixed(&learnt(&[beside, far])), [(0, 0, 192)]);
    }

    #[test]
    fn sizes_that_were_seen_are_recalled_and_others_are_not_missed() {
        let small: (&[u64], u64, &[(u64, u64)]) = (&[0], 7, &[(0, 64)]);
        let large: (&[u64], u64, &[(u64, u64)]) = (&[0], 9, &[(0, 640)]);
        let words = learnt(&[small, large, small, large]);
        let [word] = &words[..] else { panic!("{words:?}") };
        let Template::Table { key, seen, common } = &word.template else {
            panic!("{words:?}")
        };
        assert_eq!(key[..], [super::super::Term::Word32(8)]);
        let mut sizes: Vec<_> = seen.iter().flat_map(|(_, pieces)| pieces.clone()).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [(0, 64 * KB), (0, 640 * KB)]);
        assert_eq!(common[..], [(0, 640 * KB)]);
    }
}
