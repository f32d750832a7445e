// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keys under which tables recall the memory that equal arguments touched, for kernels without a
//! rule of [`super::formula`].
//!
//! A [`key`] is a few numbers of a launch: those that decide which memory it touches, and those
//! that follow from them. Other parameters (scalars, seeds, leftovers in gaps, host addresses)
//! would make each launch new, and reading them costs time.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::{LaunchArguments, Term};

/// Most numbers of a key.
pub(super) const MAX_KEY: usize = 16;

/// Most numbers that are tried, those with the fewest different values first.
const MAX_TRIED: usize = 512;

/// Upper halves of addresses of programs (0x5555…), libraries and stacks (0x7fff…) on x86-64 Linux.
/// With a great lower half such a number is an address, and is unrelated to the touched memory.
const HOST: std::ops::Range<u32> = 0x5000..0x8000;

/// Numbers from here on match outcomes only by chance: parts of addresses, floating point.
const SMALL: u64 = 0x0100_0000;

/// A key with the hashes of its entries.
#[derive(Debug)]
pub(super) struct TableKey {
    terms: Vec<Term>,
    /// Ascending.
    hashes: Vec<u64>,
}

impl TableKey {
    /// Makes a key with entries of these hashes.
    pub(super) fn new(terms: &[Term], hashes: impl Iterator<Item = u64>) -> TableKey {
        let mut hashes: Vec<u64> = hashes.collect();
        hashes.sort_unstable();
        hashes.dedup();
        TableKey {
            terms: terms.to_vec(),
            hashes,
        }
    }

    pub(super) fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether the key has these numbers.
    pub(super) fn is(&self, terms: &[Term]) -> bool {
        self.terms == terms
    }

    pub(super) fn entries(&self) -> usize {
        self.hashes.len()
    }

    /// Index of the entry with this hash.
    #[inline]
    pub(super) fn entry(&self, hash: u64) -> Option<usize> {
        self.hashes.binary_search(&hash).ok()
    }
}

/// A number of the launches that may join a key.
struct KeyCandidate {
    term: Term,
    values: Vec<u64>,
    different: usize,
    /// Whether all values are below [`SMALL`] and none may be half of a host address.
    small: bool,
}

/// Numbers that determine the memory that `launches` touched: launches that agree in them have
/// equal `outcomes`. `None` if something else decides. Words at `pointers` (offsets of 64-bit
/// words) are ignored.
pub(super) fn key(launches: &[LaunchArguments], outcomes: &[usize], pointers: &[u16]) -> Option<Vec<Term>> {
    let candidates = candidates(launches, pointers);
    let mut groups: Vec<usize> = vec![0; launches.len()];
    let mut chosen: Vec<Term> = Vec::new();
    // Number of launches whose outcome differs from the first of their group.
    let mut wrong = strays(&groups, outcomes);
    while wrong > 0 {
        let next = |one: &KeyCandidate| {
            let split = split(&groups, &one.values);
            (strays(&split, outcomes), !one.small, one.different, split)
        };
        let tried = candidates.iter().filter(|one| !chosen.contains(&one.term));
        // A great number is chosen only if no small one separates as well: half of an old address
        // in a gap differs in each process.
        let (found, (left, .., split)) = tried
            .map(|one| (one, next(one)))
            .min_by_key(|(_, (left, great, different, _))| (*left, *great, *different))?;
        if left >= wrong || chosen.len() >= MAX_KEY {
            return None;
        }
        chosen.push(found.term);
        (groups, wrong) = (split, left);
    }
    // Half of the launches must repeat; else the numbers separate them by chance.
    if 2 * come_again(&groups) < launches.len() {
        return None;
    }
    // Numbers that follow from the others separate unseen sizes from seen ones, and cost no launch
    // its entry.
    let count = groups.iter().max().map_or(0, |most| most + 1);
    for one in &candidates {
        let known = one.small && !chosen.contains(&one.term);
        if known && chosen.len() < MAX_KEY && one.different <= count && follows(&groups, &one.values) {
            chosen.push(one.term);
        }
    }
    chosen.sort_unstable();
    Some(chosen)
}

/// Small numbers that separate launches as finely as launches repeat. For evidence that does not
/// show which numbers decide.
pub(super) fn finest(launches: &[LaunchArguments], pointers: &[u16]) -> Vec<Term> {
    let candidates = candidates(launches, pointers);
    let mut groups: Vec<usize> = vec![0; launches.len()];
    let mut chosen: Vec<Term> = Vec::new();
    let count = |groups: &[usize]| groups.iter().max().map_or(0, |most| most + 1);
    for one in candidates.iter().filter(|one| one.small) {
        let finer = split(&groups, &one.values);
        if chosen.len() < MAX_KEY && count(&finer) > count(&groups) && 2 * come_again(&finer) >= launches.len() {
            chosen.push(one.term);
            groups = finer;
        }
    }
    chosen.sort_unstable();
    chosen
}

/// Number of launches that share their group with another launch.
fn come_again(groups: &[usize]) -> usize {
    let mut sizes: HashMap<usize, usize> = HashMap::new();
    groups.iter().for_each(|group| *sizes.entry(*group).or_default() += 1);
    sizes.values().filter(|size| **size > 1).sum()
}

/// Hash of a launch's key. Profiles store it, so another algorithm needs another version of
/// profiles.
#[inline]
pub(super) fn hash(launch: &LaunchArguments, key: &[Term]) -> u64 {
    // rustc's FxHash: one multiplication per number. A key has few small numbers. There is no
    // attacker: the profile is the user's own.
    const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
    let mixed = key.iter().fold(0u64, |hash, term| {
        // An absent number differs from 0.
        let value = term.value(launch).unwrap_or(u64::MAX);
        (hash.rotate_left(5) ^ value).wrapping_mul(FACTOR)
    });
    mixed ^ (mixed >> 32)
}

/// Whether equal hashes mean equal outcomes.
pub(super) fn tells(hashes: &[u64], outcomes: &[usize]) -> bool {
    let mut first: HashMap<u64, usize> = HashMap::new();
    let mut pairs = hashes.iter().zip(outcomes);
    pairs.all(|(hash, outcome)| *first.entry(*hash).or_insert(*outcome) == *outcome)
}

/// Whether the upper half of the 64-bit word at `long` is that of a host address.
fn is_host(launch: &LaunchArguments, long: u16) -> bool {
    launch.word32(long + 4).is_some_and(|upper| HOST.contains(&upper))
}

/// Numbers that differ between the launches.
fn candidates(launches: &[LaunchArguments], pointers: &[u16]) -> Vec<KeyCandidate> {
    let Some(first) = launches.first() else {
        return Vec::new();
    };
    let shapes = (0..3).flat_map(|axis| [Term::Grid(axis), Term::Block(axis)]);
    let number = |offset: &u16| {
        let long = *offset / 8 * 8;
        // Two small numbers may look like an address; a real address with a small lower half is
        // rare.
        let lower = |launch: &LaunchArguments| launch.word32(long).is_some_and(|lower| u64::from(lower) >= SMALL);
        let host = |launch: &LaunchArguments| is_host(launch, long) && lower(launch);
        pointers.binary_search(&long).is_err() && !launches.iter().any(host)
    };
    let words = first.word_offsets().filter(number).map(Term::Word32);
    let mut found: Vec<KeyCandidate> = shapes
        .chain(words)
        .filter_map(|term| {
            let values: Vec<u64> = launches
                .iter()
                .map(|launch| term.value(launch))
                .collect::<Option<_>>()?;
            if values.iter().all(|value| *value == values[0]) {
                return None;
            }
            let mut sorted = values.clone();
            sorted.sort_unstable();
            sorted.dedup();
            let may_be_host = match term {
                Term::Word32(offset) => launches.iter().any(|launch| is_host(launch, offset / 8 * 8)),
                _ => false,
            };
            Some(KeyCandidate {
                term,
                different: sorted.len(),
                small: !may_be_host && sorted.last().is_some_and(|most| *most < SMALL),
                values,
            })
        })
        .collect();
    found.sort_by_key(|one| one.different);
    found.truncate(MAX_TRIED);
    found
}

/// Groups after splitting each by these values.
fn split(groups: &[usize], values: &[u64]) -> Vec<usize> {
    let mut numbers: HashMap<(usize, u64), usize> = HashMap::new();
    groups
        .iter()
        .zip(values)
        .map(|(group, value)| {
            let next = numbers.len();
            *numbers.entry((*group, *value)).or_insert(next)
        })
        .collect()
}

/// Number of launches whose outcome differs from the first of their group.
fn strays(groups: &[usize], outcomes: &[usize]) -> usize {
    let mut first: HashMap<usize, usize> = HashMap::new();
    let pairs = groups.iter().zip(outcomes);
    pairs
        .filter(|(group, outcome)| *first.entry(**group).or_insert(**outcome) != **outcome)
        .count()
}

/// Whether the groups determine these values, and a group of two launches shows it.
fn follows(groups: &[usize], values: &[u64]) -> bool {
    let mut known: HashMap<usize, u64> = HashMap::new();
    let mut shown = false;
    for (group, value) in groups.iter().zip(values) {
        match known.insert(*group, *value) {
            Some(before) if before != *value => return false,
            Some(_) => shown = true,
            None => {}
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(parameters: &[u8]) -> LaunchArguments<'_> {
        LaunchArguments {
            kernel: 1,
            parameters,
            grid: [1; 3],
            block: [1; 3],
        }
    }

    fn buffers(rows: &[&[u32]]) -> Vec<Vec<u8>> {
        let bytes = |row: &&[u32]| row.iter().flat_map(|word| word.to_le_bytes()).collect();
        rows.iter().map(bytes).collect()
    }

    #[test]
    fn the_key_is_what_decides_and_what_goes_along_and_no_noise() {
        // Rows, columns, a number that follows from them, noise, a host address in two halves.
        let rows = buffers(&[
            &[3, 7, 21, 900, 5, 0x7ffd],
            &[3, 9, 27, 901, 6, 0x7ffd],
            &[4, 7, 28, 902, 7, 0],
            &[3, 7, 21, 903, 8, 0x7ffd],
            &[4, 9, 36, 904, 9, 0x7ffe],
            &[4, 9, 36, 905, 9, 0x7ffe],
        ]);
        let launches: Vec<LaunchArguments> = rows.iter().map(|row| launch(row)).collect();
        let found = key(&launches, &[0, 1, 2, 0, 3, 3], &[]).unwrap();
        assert!(!found.contains(&Term::Word32(12)), "noise: {found:?}");
        assert!(!found.contains(&Term::Word32(16)) && !found.contains(&Term::Word32(20)));
        assert!(found.contains(&Term::Word32(8)), "{found:?}");
        let hashes: Vec<u64> = launches.iter().map(|launch| hash(launch, &found)).collect();
        assert_eq!(hashes[0], hashes[3]);
        assert_ne!(hashes[0], hashes[1]);
        // Equal arguments, other outcome: data decides.
        assert_eq!(key(&[launches[0], launches[0]], &[0, 1], &[]), None);
        assert_eq!(key(&[launches[0], launches[0]], &[0, 0], &[]), Some(Vec::new()));
        // No launch repeats: any number would separate them.
        assert_eq!(key(&launches[..3], &[0, 1, 2], &[]), None);
    }

    #[test]
    fn half_of_an_old_address_is_no_key_where_a_small_number_tells_as_much() {
        // A size, and a host address in a gap with an overwritten upper half: it differs by
        // process.
        let old = 0x64b0_7740;
        let rows = buffers(&[&[3, 9, old, 1], &[4, 9, 0, 1], &[5, 9, old, 1]]);
        let launches: Vec<LaunchArguments> = rows.iter().chain(&rows).map(|row| launch(row)).collect();
        assert_eq!(
            key(&launches, &[0, 1, 0, 0, 1, 0], &[]),
            Some(vec![Term::Word32(0)]),
            "not the one of fewer values"
        );
        // If no other number separates them, a great number is used.
        let rows = buffers(&[&[3, 9, old, 1], &[3, 9, 0, 1]]);
        let launches: Vec<LaunchArguments> = rows.iter().chain(&rows).map(|row| launch(row)).collect();
        assert_eq!(key(&launches, &[0, 1, 0, 1], &[]), Some(vec![Term::Word32(8)]));
    }

    #[test]
    fn two_sizes_that_look_like_an_address_are_sizes() {
        // A list of sizes: 27 744 is 0x6c60, a possible upper half of a host address.
        let rows = buffers(&[&[110_976, 27_744], &[55_488, 27_744], &[55_488, 9_000]]);
        let launches: Vec<LaunchArguments> = rows.iter().chain(&rows).map(|row| launch(row)).collect();
        let found = key(&launches, &[0, 1, 2, 0, 1, 2], &[]);
        assert_eq!(found, Some(vec![Term::Word32(0), Term::Word32(4)]));
        let rows = buffers(&[&[0x64b0_7740, 27_744], &[0x64b0_7740, 9_000]]);
        let launches: Vec<LaunchArguments> = rows.iter().chain(&rows).map(|row| launch(row)).collect();
        assert_eq!(key(&launches, &[0, 1, 0, 1], &[]), None, "an address");
    }
}
