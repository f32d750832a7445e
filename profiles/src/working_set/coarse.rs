//! Templates from evidence that is rounded outwards: granules, and what a driver's prefetcher
//! brought around them.
//!
//! Such evidence is sound in one direction: what a launch touched lies in what was seen, whatever
//! else was seen beside it. So, where launches of the same numbers (the finest key of
//! [`super::table`] whose launches come again) touch the same behind each pointer, what *all* of
//! them show is no less than the truth, and the more of them there are, each with its data
//! elsewhere, the closer it comes. Of that a pointer gets what lies before the next one. What was
//! learnt is never less than the truth for numbers that were seen; how much more it is, granules
//! and neighbours decide. For other numbers a rule is looked for that stays within what was seen,
//! close below it; where there is none, the union of what was seen stands, never a whole
//! allocation.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};

use super::{
    Access, Allocations, Formula, HostResidency, KernelWorkingSet, Launch, Template, Touched, WordTemplate,
    formula::{self, BoundedSample},
    ranges::{self, Span},
    samples::{LaunchSample, LaunchSamples, pointers},
    table,
    template::{MAX_PIECES, MAX_RECALLED},
};

/// Of launches with the same arguments so many are kept: with its data elsewhere, each shows other
/// neighbours.
const KEPT_ALIKE: usize = 4;

/// A rule needs so many groups of different sizes: within granules, any rule fits fewer.
const SIZES: usize = 4;

/// How coarse evidence is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grain {
    /// Ranges are rounded outwards to multiples of it.
    pub(super) granule: u64,
    /// Granules were widened inside aligned blocks of this size: see [`HostResidency::BLOCK`]. The
    /// granule's size if not.
    pub(super) block: u64,
}

impl Grain {
    /// Of a driver's pages.
    pub(super) fn of_residency() -> Grain {
        Grain {
            granule: HostResidency::GRANULE,
            block: HostResidency::BLOCK,
        }
    }

    /// By how much a range that was seen from one address to another may be too long at its end.
    fn slack(&self, begin: u64, end: u64) -> u64 {
        let mut part = self.granule;
        // The largest aligned part that it ends with may have been widened from just over half of
        // it.
        while part < self.block && end.is_multiple_of(part * 2) && end.saturating_sub(begin) >= part * 2 {
            part *= 2;
        }
        let granules = part / self.granule;
        // Of two granules more than half are both.
        let unneeded = granules.saturating_sub(granules / 2 + 1);
        self.granule - 1 + unneeded * self.granule
    }
}

/// What was seen of one kernel: of each launch what was touched, united.
pub(super) type CoarseSamples = LaunchSamples<SeenPointer, Vec<Span>>;

type CoarseSample = LaunchSample<SeenPointer, Vec<Span>>;

/// A word of a launch that was a pointer.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenPointer {
    value: u64,
    /// Its allocation.
    bounds: Span,
    /// The next pointer's value, or the allocation's end.
    next: u64,
    /// The pointer before it, 0 where its allocation has none.
    before: u64,
    /// Another word had the same value.
    shared: bool,
}

/// Of one word and some launches of the same numbers.
struct CommonUse {
    /// What all of them show, relative to the pointer and moved so that [`HERE`] is the pointer's
    /// own address.
    pieces: Vec<Span>,
    /// The least that was touched from the pointer on, bytes.
    least: u64,
    /// They did not touch the same: something else than the numbers decides, or a number that never
    /// comes again.
    torn: bool,
}

/// Where a pointer's own address stands in spans that are relative to it.
const HERE: u64 = 1 << 63;

impl CoarseSample {
    /// What was seen between two addresses, relative to a third.
    fn between(&self, from: u64, upto: u64, to: u64) -> Vec<Span> {
        let first = self.whole.partition_point(|(_, end)| *end <= from);
        let some = self.whole[first..].iter().take_while(|(begin, _)| *begin < upto);
        let relative = |address: u64| address.wrapping_sub(to).wrapping_add(HERE);
        some.map(|(begin, end)| (relative((*begin).max(from)), relative((*end).min(upto))))
            .collect()
    }

    /// What was seen behind a word before the next pointer: most likely its own.
    fn own(&self, word: &SeenPointer, grain: Grain) -> Vec<Span> {
        let mut own = Vec::new();
        if word.before == 0 {
            // What lies before it in its own block the prefetcher may have brought.
            own = self.between(word.bounds.0, word.value / grain.block * grain.block, word.value);
        }
        let mut behind = self.between(word.value, word.next, word.value);
        if word.next < word.bounds.1 {
            // The next pointer's own granule begins before it, and what the prefetcher brought for
            // its sake.
            let near = (word.next / grain.block * grain.block).max(word.value);
            let near = near.wrapping_sub(word.value).wrapping_add(HERE);
            behind.retain(|(begin, _)| *begin == HERE || *begin < near);
        }
        own.extend(behind);
        own
    }

    /// What it may have touched inside a range that is relative to it.
    fn may(&self, word: &SeenPointer, (from, upto): Span) -> Vec<Span> {
        let absolute = |at: u64| word.value.wrapping_add(at.wrapping_sub(HERE));
        let from = absolute(from).clamp(word.bounds.0, word.bounds.1);
        let upto = absolute(upto).clamp(word.bounds.0, word.bounds.1);
        self.between(from, upto, word.value)
    }

    /// The range that the word points into.
    fn range(&self, word: &SeenPointer) -> Option<Span> {
        let at = self.whole.partition_point(|(_, end)| *end <= word.value);
        self.whole.get(at).copied().filter(|(begin, _)| *begin <= word.value)
    }

    /// The range that it points into may be all the pointer's before it.
    fn is_explained(&self, word: &SeenPointer) -> bool {
        self.range(word).is_some_and(|(begin, _)| word.before >= begin)
    }

    /// The least that was touched from the pointer on, bytes: what neither the next pointer nor the
    /// prefetcher explains.
    fn least(&self, word: &SeenPointer, grain: Grain) -> u64 {
        let Some((begin, end)) = self.range(word) else {
            return 0;
        };
        let slack = if end <= word.next {
            grain.slack(begin, end)
        } else if grain.block > grain.granule {
            // In the next pointer's block any granule may have been brought for its sake.
            word.next - (word.next / grain.block * grain.block).max(word.value).min(word.next) + grain.granule
        } else {
            word.next % grain.granule + grain.granule
        };
        let upto = end.min(word.next);
        upto.saturating_sub(word.value).saturating_sub(slack)
    }
}

impl CoarseSamples {
    /// A launch, the allocations that were live, and what was seen to be touched.
    pub(super) fn observe(&mut self, launch: &Launch, live: &Allocations, touched: &[Touched], scratch: &mut Vec<u8>) {
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

    /// What was learnt of the kernel.
    pub(super) fn fit(&mut self, kernel: u64, grain: Grain) -> KernelWorkingSet {
        self.learnt(kernel, |seen| seen.words(kernel, grain))
    }

    /// The templates of the kernel's words.
    fn words(&self, kernel: u64, grain: Grain) -> Vec<WordTemplate> {
        let offsets = self.offsets();
        let launches: Vec<Launch> = self.kept.iter().map(|kept| kept.launch(kernel)).collect();
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
                    // Launch by launch: a number that never comes again is no key, and may be a
                    // factor.
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

    /// Words that were never used but where another one was the same pointer that is used by itself
    /// elsewhere: what is left over in gaps.
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

/// What launches of the same numbers touched behind a word, and one of them. `None` where the word
/// is no pointer in any.
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
    // What some launch touched for certain another one did not: it depends on something else than
    // numbers.
    let sure = some.iter().filter(|(kept, word)| !kept.is_explained(word));
    let sure = sure.map(|(kept, word)| kept.least(word, grain)).max().unwrap_or(0);
    let must = (HERE, HERE.saturating_add(sure));
    let torn = sure > 0 && ranges::common(&pieces, &[must]) != [must];
    if torn {
        pieces = own;
    }
    Some((some.first()?.0, CommonUse { pieces, least, torn }))
}

/// The template of one word; `None` where it is never used.
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

/// Offsets and bytes; where there are too many, the last ones as one.
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

/// A size that stays within what was seen for all numbers, and close to it. `torn`: nothing else
/// would tell these launches apart, so that it need not be as close.
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
    // Sizes of which more than half is certain: within granules, any rule fits small ones.
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

    /// Templates from launches that were given these pointers and a number, of which these ranges
    /// were seen: begin and KB.
    fn learnt(launches: &[Case<'_>]) -> Vec<WordTemplate> {
        let mut live = Allocations::new();
        live.add(BASE, 1 << 30);
        let mut seen = CoarseSamples::default();
        for (pointers, number, ranges) in launches {
            let words = pointers.iter().map(|at| BASE + at * KB).chain([*number]);
            let parameters: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            let launch = Launch {
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
        // 100 KB at 10, 40 KB at 110 and 64 KB far off, whose granule begins before it.
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
