// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fit of templates to launches and the memory that they touched.
//!
//! A touched piece belongs to the greatest pointer at or before its start in the allocation, and is
//! cut at the next pointer. Each pointer word gets the simplest template that *all* launches agree
//! with: fixed, linear, strided, else a table by arguments ([`super::table`]).
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{
    Access, Allocations, Certainty, Formula, KernelWorkingSet, LaunchArguments, Template, Touched, WordTemplate,
    WorkingSets,
    coarse::{self, Grain},
    formula::{self, BoundedSample},
    ranges::{self, Span, shifted},
    recall,
    samples::{ExactSample, ExactSamples, PointerUse, pointers},
};

/// Launches kept per set of arguments: two show whether they differ.
const KEPT_ALIKE: usize = 2;

/// Launches kept per set of touched sizes: enough to see which numbers do not matter.
const KEPT_EQUAL: usize = 4;

/// Most rules that are tried on all launches; each contradiction leaves fewer.
const ROUNDS: usize = 8;

/// Collector of launches and their touched memory, which finds the templates.
#[derive(Debug)]
pub struct Fitter {
    /// Set if evidence comes in granules; samples are then in `coarse`.
    grain: Option<Grain>,
    /// Whether evidence names operands one by one: see [`Fitter::default`].
    apart: bool,
    kernels: HashMap<u64, ObservedKernel>,
    coarse: HashMap<u64, coarse::CoarseSamples>,
    scratch: Vec<u8>,
}

#[derive(Debug, Default)]
struct ObservedKernel {
    /// Whether the kept evidence is exact.
    exact: bool,
    seen: ExactSamples,
    /// Number of kept launches by outcome.
    equal: HashMap<u64, usize>,
}

impl Default for Fitter {
    /// For exact evidence that names each operand, as a ledger does, even adjoining operands. A
    /// pointer into an operand does not divide it: gaps in parameters are full of unused pointers.
    fn default() -> Fitter {
        let mut fitter = Fitter::new(1);
        fitter.apart = true;
        fitter
    }
}

impl Fitter {
    /// For evidence rounded outwards to `granule` bytes (1: exact), which may join adjoining
    /// operands.
    pub fn new(granule: u64) -> Fitter {
        let granule = granule.max(1);
        Fitter {
            grain: (granule > 1).then_some(Grain {
                granule,
                block: granule,
            }),
            apart: false,
            kernels: HashMap::new(),
            coarse: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    /// For evidence of [`super::HostResidency`]: granules, widened by the driver's prefetcher. If
    /// evidence leaves a size open, it is the largest possible: excess costs bandwidth, a miss
    /// costs a fault.
    pub fn of_residency() -> Fitter {
        let mut fitter = Fitter::new(1);
        fitter.grain = Some(Grain::of_residency());
        fitter
    }

    /// Adds a launch, the live allocations and the ranges that the launch touched.
    pub fn observe(&mut self, launch: &LaunchArguments, live: &Allocations, touched: &[Touched]) {
        self.observe_as(Certainty::Exact, launch, live, touched);
    }

    /// As [`Fitter::observe`], with the evidence's certainty: guesses count only for kernels
    /// without exact evidence.
    pub fn observe_as(
        &mut self,
        certainty: Certainty,
        launch: &LaunchArguments,
        live: &Allocations,
        touched: &[Touched],
    ) {
        if self.grain.is_some() {
            let seen = self.coarse.entry(launch.kernel).or_default();
            seen.observe(launch, live, touched, &mut self.scratch);
            return;
        }
        let exact = certainty == Certainty::Exact;
        let ObservedKernel {
            exact: known,
            seen,
            equal,
        } = self.kernels.entry(launch.kernel).or_default();
        seen.observed += 1;
        if *known && !exact {
            return;
        }
        if exact && !*known {
            *known = true;
            seen.forget();
            equal.clear();
        }
        let signature = launch.signature(&mut self.scratch, |_, word| live.find(word).is_some());
        if !seen.has_room(launch, signature, KEPT_ALIKE) {
            return;
        }
        let words = deal(launch, live, touched, self.apart);
        let equal = equal.entry(outcome(launch, &words)).or_default();
        if *equal < KEPT_EQUAL {
            *equal += 1;
            seen.keep(launch, signature, words, (), 0);
        }
    }

    /// Number of observed kernels.
    pub fn kernels(&self) -> usize {
        self.kernels.len() + self.coarse.len()
    }

    /// Templates learnt. Only kernels with new evidence are fitted anew.
    pub fn fit(&mut self) -> WorkingSets {
        let each = self.kernels.iter_mut();
        let mut kernels: Vec<KernelWorkingSet> = each
            .map(|(kernel, of)| of.seen.learnt(*kernel, |seen| words(*kernel, seen)))
            .collect();
        if let Some(grain) = self.grain {
            let fitted = self.coarse.iter_mut().map(|(kernel, seen)| seen.fit(*kernel, grain));
            kernels.extend(fitted);
        }
        kernels.sort_unstable_by_key(|kernel| kernel.kernel);
        WorkingSets { kernels }
    }
}

/// Hash of the ranges that a launch touched, without addresses.
fn outcome(launch: &LaunchArguments, words: &[(u16, PointerUse)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (launch.grid, launch.block).hash(&mut hasher);
    for (offset, behind) in words.iter().filter(|(_, behind)| !behind.pieces.is_empty()) {
        (offset, &behind.pieces).hash(&mut hasher);
    }
    hasher.finish()
}

/// Assigns the touched ranges to the launch's pointers.
fn deal(launch: &LaunchArguments, live: &Allocations, touched: &[Touched], apart: bool) -> Vec<(u16, PointerUse)> {
    let pointers = pointers(launch, live);
    let mut values: Vec<u64> = pointers.iter().map(|(value, ..)| *value).collect();
    values.dedup();
    let mut behind = vec![(Vec::<Span>::new(), None::<Access>); values.len()];
    for one in touched {
        let Some((begin, end)) = live.find(one.address) else {
            continue;
        };
        // No access exceeds its allocation.
        let (mut at, last) = (one.address, one.end().min(end));
        while at < last {
            let after = values.partition_point(|value| *value <= at);
            let before = after.checked_sub(1).filter(|owner| values[*owner] >= begin);
            // Before the first pointer into this allocation: a negative offset.
            let owner = before.or_else(|| values.get(after).is_some_and(|value| *value < end).then_some(after));
            let Some(owner) = owner else { break };
            let until = values.get(owner + 1).copied().filter(|_| !apart).unwrap_or(u64::MAX);
            let cut = last.min(until);
            let (pieces, access) = &mut behind[owner];
            pieces.push((at, cut));
            *access = Some(access.map_or(one.access, |before| before.and(one.access)));
            at = cut;
        }
    }
    let mut words: Vec<(u16, PointerUse)> = pointers
        .iter()
        .filter_map(|(value, offset, _)| {
            let owner = values.binary_search(value).ok()?;
            let (mut pieces, access) = behind[owner].clone();
            ranges::unite(&mut pieces);
            let relative = |address: u64| address.wrapping_sub(*value) as i64;
            let behind = PointerUse {
                pieces: pieces.iter().map(|(a, b)| (relative(*a), relative(*b))).collect(),
                access,
                shared: pointers.iter().filter(|(other, ..)| other == value).count() > 1,
            };
            Some((*offset, behind))
        })
        .collect();
    words.sort_unstable_by_key(|(offset, _)| *offset);
    words
}

fn words(kernel: u64, seen: &ExactSamples) -> Vec<WordTemplate> {
    let offsets = seen.offsets();
    let owned = owned(seen);
    let mut found: Vec<WordTemplate> = Vec::new();
    // Words without a rule, and their access.
    let mut others: Vec<(u16, Access)> = Vec::new();
    for offset in offsets.iter().copied() {
        let all: Vec<(&ExactSample, &PointerUse)> = seen
            .kept
            .iter()
            .filter_map(|kept| Some((kept, kept.word(offset)?)))
            .collect();
        // If the word's value was unique, the memory behind it is its own.
        let own: Vec<(&ExactSample, &PointerUse)> = all.iter().copied().filter(|(_, behind)| !behind.shared).collect();
        if own.is_empty() {
            let mut shared = seen.kept.iter().zip(&owned).filter_map(|(kept, owned)| {
                kept.word(offset).filter(|behind| !behind.pieces.is_empty())?;
                Some(owned.contains(&kept.value(offset)?))
            });
            // A leftover in a gap: it always equalled a word that is used by itself.
            if shared.all(|owned| owned) {
                continue;
            }
        }
        let samples = if own.is_empty() { all } else { own };
        let Some(access) = ranges::access_of(samples.iter().filter_map(|(_, behind)| behind.access)) else {
            continue;
        };
        match contiguous(kernel, &offsets, &samples).or_else(|| strided(kernel, &offsets, &samples)) {
            Some(template) => found.push(WordTemplate {
                offset,
                access,
                template,
            }),
            None => others.push((offset, access)),
        }
    }
    // A rule found from launches with a unique value must also hold for launches with two equal
    // words.
    for offset in contradicted(kernel, seen, &found, &others) {
        found.retain(|word| word.offset != offset);
        let all = seen.kept.iter().filter_map(|kept| kept.word(offset)?.access);
        if let Some(access) = ranges::access_of(all) {
            others.push((offset, access));
        }
    }
    others.sort_unstable_by_key(|(offset, _)| *offset);
    others.dedup_by_key(|(offset, _)| *offset);
    found.extend(recall::tables(kernel, seen, &offsets, &others));
    found.sort_unstable_by_key(|word| word.offset);
    found
}

/// Per launch: pointers in words that some launch used by themselves.
fn owned(seen: &ExactSamples) -> Vec<HashSet<u64>> {
    let words = seen.kept.iter().flat_map(|kept| &kept.words);
    let alone: HashSet<u16> = words
        .filter(|(_, behind)| !behind.shared && !behind.pieces.is_empty())
        .map(|(offset, _)| *offset)
        .collect();
    let pointers = |kept: &ExactSample| {
        let words = kept.words.iter().filter(|(offset, _)| alone.contains(offset));
        words.filter_map(|(offset, _)| kept.value(*offset)).collect()
    };
    seen.kept.iter().map(pointers).collect()
}

/// Words whose rules contradict a launch, with all equal words: evidence does not show which rule
/// is wrong.
fn contradicted(kernel: u64, seen: &ExactSamples, found: &[WordTemplate], others: &[(u16, Access)]) -> Vec<u16> {
    let mut wrong: Vec<u16> = Vec::new();
    for kept in &seen.kept {
        let launch = kept.launch(kernel);
        let mut same: HashMap<u64, Vec<(u16, &PointerUse)>> = HashMap::new();
        for (offset, behind) in &kept.words {
            if let Some(value) = launch.word64(*offset) {
                same.entry(value).or_default().push((*offset, behind));
            }
        }
        for words in same.values() {
            let Some((_, behind)) = words.first() else { continue };
            let has_table = words
                .iter()
                .any(|(offset, _)| others.iter().any(|(other, _)| other == offset));
            let mut told: Vec<Span> = Vec::new();
            for (offset, _) in words {
                if let Ok(at) = found.binary_search_by_key(offset, |word| word.offset) {
                    told.extend(pieces(&found[at].template, &launch).iter().map(|piece| shifted(*piece)));
                }
            }
            ranges::unite(&mut told);
            let mut truth: Vec<Span> = behind.pieces.iter().map(|piece| shifted(*piece)).collect();
            ranges::unite(&mut truth);
            let holds = if has_table {
                ranges::common(&told, &truth) == told
            } else {
                told == truth
            };
            if !holds {
                wrong.extend(words.iter().map(|(offset, _)| *offset));
            }
        }
        wrong.sort_unstable();
        wrong.dedup();
    }
    wrong
}

/// Pieces that a rule predicts for a launch: start and end, relative to the pointer.
fn pieces(template: &Template, launch: &LaunchArguments) -> Vec<(i64, i64)> {
    let piece = |begin: i64, bytes: i64| (begin, begin.saturating_add(bytes.max(0)));
    match template {
        Template::Fixed { offset, bytes } => vec![piece(*offset, i64::try_from(*bytes).unwrap_or(i64::MAX))],
        Template::Linear { offset, bytes } => match (offset.value(launch), bytes.value(launch)) {
            (Some(offset), Some(bytes)) => vec![piece(offset, bytes)],
            _ => Vec::new(),
        },
        Template::Strided {
            offset,
            bytes,
            stride,
            chunks,
        } => match [offset, bytes, stride, chunks].map(|formula| formula.value(launch)) {
            [Some(offset), Some(bytes), Some(stride), Some(chunks)] => (0..chunks.clamp(0, 1 << 20))
                .map(|chunk| piece(offset.saturating_add(chunk.saturating_mul(stride)), bytes))
                .collect(),
            _ => Vec::new(),
        },
        Template::Recalled { .. } | Template::Table { .. } => Vec::new(),
    }
}

/// Finds a formula for a number that each sample bounds.
fn rule(
    kernel: u64,
    pointers: &[u16],
    samples: &[(&ExactSample, &PointerUse)],
    bounds: impl Fn(&PointerUse) -> Option<(i64, i64)>,
) -> Option<Formula> {
    let samples: Option<Vec<BoundedSample>> = samples
        .iter()
        .map(|(kept, behind)| {
            let (least, most) = bounds(behind)?;
            Some(BoundedSample {
                launch: kept.launch(kernel),
                least,
                most,
            })
        })
        .collect();
    let samples = samples?;
    let mut some = formula::some(&samples);
    if some.len() == samples.len() {
        return formula::find(&some, pointers);
    }
    // A formula may hold for a few samples by chance; a sample that contradicts it joins them.
    for _ in 0..ROUNDS {
        let formula = formula::find(&some, pointers)?;
        match samples.iter().find(|sample| !formula::fits(&formula, &[**sample])) {
            None => return Some(formula),
            Some(other) => some.push(*other),
        }
    }
    None
}

fn contiguous(kernel: u64, pointers: &[u16], samples: &[(&ExactSample, &PointerUse)]) -> Option<Template> {
    if samples.iter().any(|(_, behind)| behind.pieces.len() > 1) {
        return None;
    }
    // A launch that touched nothing shows that the size is 0, and shows nothing about the offset.
    let some: Vec<_> = samples
        .iter()
        .copied()
        .filter(|(_, behind)| !behind.pieces.is_empty())
        .collect();
    let begin = |behind: &PointerUse| behind.pieces.first().map(|piece| (piece.0, piece.0));
    let size = |behind: &PointerUse| match behind.pieces.first() {
        Some((begin, end)) => Some((end - begin, end - begin)),
        None => Some((0, 0)),
    };
    let offset = rule(kernel, pointers, &some, begin)?;
    let bytes = rule(kernel, pointers, samples, size)?;
    if offset.is_constant() && bytes.is_constant() {
        return Some(Template::Fixed {
            offset: offset.constant,
            bytes: u64::try_from(bytes.constant).ok()?,
        });
    }
    Some(Template::Linear { offset, bytes })
}

fn strided(kernel: u64, pointers: &[u16], samples: &[(&ExactSample, &PointerUse)]) -> Option<Template> {
    // Adjoining chunks look like one chunk. The rule comes from separate chunks and must explain
    // the others.
    let apart: Vec<_> = samples
        .iter()
        .copied()
        .filter(|(_, behind)| behind.pieces.len() > 1)
        .collect();
    let regular = apart.iter().all(|(_, behind)| {
        let (first, second) = (behind.pieces[0], behind.pieces[1]);
        let stride = second.0 - first.0;
        let same = |(at, piece): (usize, &(i64, i64))| {
            piece.0 == first.0 + stride * at as i64 && piece.1 - piece.0 == first.1 - first.0
        };
        behind.pieces.iter().enumerate().all(same)
    });
    if !regular {
        return None;
    }
    let fixed = |value: i64| Some((value, value));
    let offset = rule(kernel, pointers, &apart, |behind| fixed(behind.pieces[0].0))?;
    let bytes = rule(kernel, pointers, &apart, |behind| {
        fixed(behind.pieces[0].1 - behind.pieces[0].0)
    })?;
    let stride = rule(kernel, pointers, &apart, |behind| {
        fixed(behind.pieces[1].0 - behind.pieces[0].0)
    })?;
    let chunks = rule(kernel, pointers, &apart, |behind| fixed(behind.pieces.len() as i64))?;
    let explains = |(kept, behind): &(&ExactSample, &PointerUse)| {
        let launch = kept.launch(kernel);
        let values = [&offset, &bytes, &stride, &chunks].map(|formula| formula.value(&launch));
        let [Some(offset), Some(bytes), Some(stride), Some(chunks)] = values else {
            return false;
        };
        let mut pieces: Vec<(i64, i64)> = Vec::new();
        for chunk in 0..chunks.clamp(0, 1 << 20) {
            let begin = offset + chunk * stride;
            match pieces.last_mut() {
                Some(last) if last.1 >= begin => last.1 = last.1.max(begin + bytes),
                _ => pieces.push((begin, begin + bytes)),
            }
        }
        pieces == behind.pieces
    };
    samples.iter().all(explains).then_some(Template::Strided {
        offset,
        bytes,
        stride,
        chunks,
    })
}
