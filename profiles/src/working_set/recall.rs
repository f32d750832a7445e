// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables for a kernel's words without a rule: the memory that equal arguments touched before.
//!
//! All such words share one key, if one key determines the memory touched behind all of them. A
//! leftover word (a gap in a struct, the end of a list) follows no arguments, but may equal another
//! pointer by chance. Then the word that is used by itself gets the touched memory. Without a
//! common key, each word is tried by itself.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};

use super::{
    Access, LaunchArguments, Template, Term, WordTemplate,
    ranges::{self, Span, shifted},
    samples::{ExactSample, ExactSamples},
    table,
    template::{MAX_PIECES, MAX_RECALLED},
};

/// Most keys of a kernel: each key costs a launch one hash.
const KEYS: usize = 4;

/// Most words that are tried by themselves: with many launches a search takes milliseconds.
const ALONE: usize = 16;

/// A word's offset and its access.
type UsedWord = (u16, Access);

/// Pieces that one launch touched behind some words, each relative to its pointer.
type TouchedPieces<'a> = Vec<&'a [(i64, i64)]>;

/// Pieces that some launches touched behind each word.
struct PointerView<'a> {
    kept: Vec<&'a ExactSample>,
    /// Per launch: words that get no pieces.
    without: Vec<HashSet<u16>>,
}

impl<'a> PointerView<'a> {
    /// View without a choice: memory behind two equal pointers counts for both.
    fn plain(seen: &'a ExactSamples) -> PointerView<'a> {
        PointerView {
            kept: seen.kept.iter().collect(),
            without: vec![HashSet::new(); seen.kept.len()],
        }
    }

    /// View in which one of several equal pointers gets the pieces: the first one that some launch
    /// used by itself, since used words precede leftovers. `clear`: only launches in which no
    /// pointer has two such words.
    fn owned(seen: &'a ExactSamples, clear: bool) -> PointerView<'a> {
        let words = seen.kept.iter().flat_map(|kept| &kept.words);
        let alone: HashSet<u16> = words
            .filter(|(_, behind)| !behind.shared && !behind.pieces.is_empty())
            .map(|(offset, _)| *offset)
            .collect();
        let mut view = PointerView {
            kept: Vec::new(),
            without: Vec::new(),
        };
        for kept in &seen.kept {
            let mut owners: HashMap<u64, u16> = HashMap::new();
            let shared = kept.words.iter().filter(|(_, behind)| behind.shared);
            let shared: Vec<(u64, u16)> = shared
                .filter_map(|(offset, _)| Some((kept.value(*offset)?, *offset)))
                .collect();
            let mut is_clear = true;
            for (value, offset) in shared.iter().filter(|(_, offset)| alone.contains(offset)) {
                is_clear &= *owners.entry(*value).or_insert(*offset) == *offset;
            }
            if is_clear || !clear {
                let less = |(value, offset): &&(u64, u16)| owners.get(value).is_some_and(|owner| owner != offset);
                view.without
                    .push(shared.iter().filter(less).map(|(_, offset)| *offset).collect());
                view.kept.push(kept);
            }
        }
        view
    }

    fn launches(&self, kernel: u64) -> Vec<LaunchArguments<'a>> {
        self.kept.iter().map(|kept| kept.launch(kernel)).collect()
    }

    /// Each launch's pieces behind a word; none if the word was not a pointer.
    fn pieces(&self, offset: u16) -> impl Iterator<Item = &'a [(i64, i64)]> {
        self.kept.iter().zip(&self.without).map(move |(kept, without)| {
            let behind = kept.word(offset).filter(|_| !without.contains(&offset));
            behind.map_or(&[][..], |behind| &behind.pieces[..])
        })
    }

    /// Number per launch for its pieces behind these words; equal numbers mean equal pieces.
    fn outcomes(&self, words: &[UsedWord]) -> Vec<usize> {
        let mut each: Vec<TouchedPieces> = vec![Vec::with_capacity(words.len()); self.kept.len()];
        for (offset, _) in words {
            for (outcome, pieces) in each.iter_mut().zip(self.pieces(*offset)) {
                outcome.push(pieces);
            }
        }
        let mut numbers: HashMap<TouchedPieces, usize> = HashMap::new();
        let number = |outcome| {
            let next = numbers.len();
            *numbers.entry(outcome).or_insert(next)
        };
        each.into_iter().map(number).collect()
    }
}

/// Makes the tables of these words.
pub(super) fn tables(kernel: u64, seen: &ExactSamples, pointers: &[u16], words: &[UsedWord]) -> Vec<WordTemplate> {
    if words.is_empty() {
        return Vec::new();
    }
    if let Some(found) = together(kernel, &PointerView::plain(seen), pointers, words) {
        return found;
    }
    let view = PointerView::owned(seen, false);
    let used = |(offset, _): &&UsedWord| view.pieces(*offset).any(|pieces| !pieces.is_empty());
    let words: Vec<UsedWord> = words.iter().filter(used).copied().collect();
    let clear = || Some(PointerView::owned(seen, true)).filter(|clear| 2 * clear.kept.len() >= seen.kept.len());
    together(kernel, &view, pointers, &words)
        .or_else(|| together(kernel, &clear()?, pointers, &words))
        .unwrap_or_else(|| one_by_one(kernel, &view, pointers, &words))
}

/// Tables of words with a common key; `None` without one.
fn together(kernel: u64, view: &PointerView, pointers: &[u16], words: &[UsedWord]) -> Option<Vec<WordTemplate>> {
    let launches = view.launches(kernel);
    let key = table::key(&launches, &view.outcomes(words), pointers)?;
    let hashes = hashes(&launches, &key);
    Some(
        words
            .iter()
            .filter_map(|word| table(view, *word, &key, &hashes))
            .collect(),
    )
}

/// Tables of words without a common key.
fn one_by_one(kernel: u64, view: &PointerView, pointers: &[u16], words: &[UsedWord]) -> Vec<WordTemplate> {
    let launches = view.launches(kernel);
    let mut found = Vec::new();
    let mut keys: Vec<(Vec<Term>, Vec<u64>)> = Vec::new();
    for (tried, word) in words.iter().enumerate() {
        let outcomes = view.outcomes(&[*word]);
        let mut known = keys.iter().position(|(_, hashes)| table::tells(hashes, &outcomes));
        if known.is_none()
            && tried < ALONE
            && keys.len() < KEYS
            && let Some(key) = table::key(&launches, &outcomes, pointers)
        {
            let hashes = hashes(&launches, &key);
            keys.push((key, hashes));
            known = Some(keys.len() - 1);
        }
        found.extend(match known.and_then(|at| keys.get(at)) {
            Some((key, hashes)) => table(view, *word, key, hashes),
            None => table(view, *word, &[], &[]),
        });
    }
    found
}

fn hashes(launches: &[LaunchArguments], key: &[Term]) -> Vec<u64> {
    launches.iter().map(|launch| table::hash(launch, key)).collect()
}

/// One word's table, with each launch's key hash; without hashes, the part common to all launches.
/// `None` if nothing is known.
fn table(view: &PointerView, (offset, access): UsedWord, key: &[Term], hashes: &[u64]) -> Option<WordTemplate> {
    let mut entries: Vec<(u64, Vec<(i64, u64)>)> = Vec::new();
    let mut common: Option<Vec<(i64, i64)>> = None;
    for (number, (pieces, kept)) in view.pieces(offset).zip(&view.kept).enumerate() {
        if kept.word(offset).is_some() {
            common = Some(match common {
                Some(before) => overlap(&before, pieces),
                None => pieces.to_vec(),
            });
        }
        if let Some(hash) = hashes.get(number).filter(|_| pieces.len() <= MAX_PIECES) {
            entries.push((*hash, sizes(pieces)));
        }
    }
    entries.sort();
    entries.dedup_by_key(|(hash, _)| *hash);
    entries.truncate(MAX_RECALLED);
    let mut common = sizes(&common?);
    common.truncate(MAX_PIECES);
    (!entries.is_empty() || !common.is_empty()).then(|| WordTemplate {
        offset,
        access,
        template: Template::Table {
            key: key.to_vec(),
            seen: entries,
            common,
        },
    })
}

/// Converts pieces from (start, end) to (offset, bytes).
fn sizes(pieces: &[(i64, i64)]) -> Vec<(i64, u64)> {
    pieces.iter().map(|(a, b)| (*a, b.abs_diff(*a))).collect()
}

fn overlap(one: &[(i64, i64)], other: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let all = |pieces: &[(i64, i64)]| -> Vec<Span> { pieces.iter().map(|piece| shifted(*piece)).collect() };
    let down = |at: u64| at.wrapping_sub(1 << 63) as i64;
    ranges::common(&all(one), &all(other))
        .iter()
        .map(|(a, b)| (down(*a), down(*b)))
        .collect()
}
