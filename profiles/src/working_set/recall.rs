//! Tables for the words of a kernel that follow no rule: what the same arguments touched before.
//!
//! All such words of a kernel have one key if one tells what is touched behind all of them. A word
//! that holds whatever its memory held before (a gap in a struct, the end of a list) follows no
//! arguments, and where by chance it holds the same pointer as another one, it seems to be used:
//! then what was touched is given to the word that was seen to be used by itself. Where words still
//! have no key together, each is tried by itself.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};

use super::{
    Access, Launch, Template, Term, WordTemplate,
    ranges::{self, Span, shifted},
    samples::{ExactSample, ExactSamples},
    table,
    template::{MAX_PIECES, MAX_RECALLED},
};

/// Different keys of one kernel at most: each costs a launch a hash.
const KEYS: usize = 4;

/// Words that are tried by themselves at most: a look for a key takes milliseconds where there are
/// many launches.
const ALONE: usize = 16;

/// A word and how it is used.
type UsedWord = (u16, Access);

/// What one launch touched behind some words, each relative to its pointer.
type TouchedPieces<'a> = Vec<&'a [(i64, i64)]>;

/// What was touched behind each word of some launches.
struct PointerView<'a> {
    kept: Vec<&'a ExactSample>,
    /// By launch: words to which nothing is given.
    without: Vec<HashSet<u16>>,
}

impl<'a> PointerView<'a> {
    /// As it was seen: what lies behind two words that are the same pointer counts for both.
    fn plain(seen: &'a ExactSamples) -> PointerView<'a> {
        PointerView {
            kept: seen.kept.iter().collect(),
            without: vec![HashSet::new(); seen.kept.len()],
        }
    }

    /// Of words that are the same pointer, those that were seen to be used by themselves have it,
    /// and of those the first: what is used stands before what is left over. `clear`: only launches
    /// in which there is one.
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

    fn launches(&self, kernel: u64) -> Vec<Launch<'a>> {
        self.kept.iter().map(|kept| kept.launch(kernel)).collect()
    }

    /// Each launch's pieces behind a word: none where it was no pointer.
    fn pieces(&self, offset: u16) -> impl Iterator<Item = &'a [(i64, i64)]> {
        self.kept.iter().zip(&self.without).map(move |(kept, without)| {
            let behind = kept.word(offset).filter(|_| !without.contains(&offset));
            behind.map_or(&[][..], |behind| &behind.pieces[..])
        })
    }

    /// What each launch touched behind these words: equal for equal numbers.
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

/// The tables of these words.
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

/// Tables of words that have a key together; `None` where they have none.
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

/// Tables of words that have no key together.
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

fn hashes(launches: &[Launch], key: &[Term]) -> Vec<u64> {
    launches.iter().map(|launch| table::hash(launch, key)).collect()
}

/// One word's table, with the hash of each launch's key; without any, what all launches had in
/// common. `None` where nothing is known.
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

/// Offset and bytes of pieces that are given by begin and end.
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
