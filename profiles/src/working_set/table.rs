//! What the same arguments touched before, for kernels whose sizes follow no rule that
//! [`super::formula`] finds.
//!
//! A launch is told from others by few numbers ([`key`]): those that decide what is touched, and
//! those that go along with them. What else stands in the parameters (scalars, seeds, what the
//! compiler left in gaps, addresses of the host, which differ from process to process) is not
//! looked at: it would make each launch a new one, and looking costs time.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::{Launch, Term};

/// Numbers that a key is made of at most.
pub(super) const MAX_KEY: usize = 16;

/// Numbers that are tried at most, those with the fewest different values first.
const MAX_TRIED: usize = 512;

/// Upper halves of addresses in programs (0x5555…), libraries and stacks (0x7fff…) on x86-64 Linux:
/// such a number says nothing about what is touched, if a great lower half shows that it is one.
const HOST: std::ops::Range<u32> = 0x5000..0x8000;

/// Numbers above this go along with what is touched by chance: parts of addresses, floating point.
const SMALL: u64 = 1 << 24;

/// A key with what is known by it.
#[derive(Debug)]
pub(super) struct TableKey {
    terms: Vec<Term>,
    /// Ascending.
    hashes: Vec<u64>,
}

impl TableKey {
    /// With entries of these hashes.
    pub(super) fn new(terms: &[Term], hashes: impl Iterator<Item = u64>) -> TableKey {
        let mut hashes: Vec<u64> = hashes.collect();
        hashes.sort_unstable();
        hashes.dedup();
        TableKey {
            terms: terms.to_vec(),
            hashes,
        }
    }

    /// Its numbers.
    pub(super) fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether it is of these.
    pub(super) fn is(&self, terms: &[Term]) -> bool {
        self.terms == terms
    }

    /// How many entries it has.
    pub(super) fn entries(&self) -> usize {
        self.hashes.len()
    }

    /// The entry of this hash.
    #[inline]
    pub(super) fn entry(&self, hash: u64) -> Option<usize> {
        self.hashes.binary_search(&hash).ok()
    }
}

/// One number of a key's launches.
struct KeyCandidate {
    term: Term,
    values: Vec<u64>,
    different: usize,
    /// All below [`SMALL`], and none may be half of a host's address.
    small: bool,
}

/// The numbers that tell what `launches` touched: two launches that agree in them have the same
/// `outcome`. `None` where there are none such, because what is touched depends on something else.
/// Words at `pointers` (offsets of 64-bit words) are not looked at.
pub(super) fn key(launches: &[Launch], outcomes: &[usize], pointers: &[u16]) -> Option<Vec<Term>> {
    let candidates = candidates(launches, pointers);
    let mut groups: Vec<usize> = vec![0; launches.len()];
    let mut chosen: Vec<Term> = Vec::new();
    // How many launches would not have the outcome of the first of their group.
    let mut wrong = strays(&groups, outcomes);
    while wrong > 0 {
        let next = |one: &KeyCandidate| {
            let split = split(&groups, &one.values);
            (strays(&split, outcomes), !one.small, one.different, split)
        };
        let tried = candidates.iter().filter(|one| !chosen.contains(&one.term));
        // A great number only where no small one tells as much: half of an old address in a gap
        // would be another one in each process.
        let (found, (left, .., split)) = tried
            .map(|one| (one, next(one)))
            .min_by_key(|(_, (left, great, different, _))| (*left, *great, *different))?;
        if left >= wrong || chosen.len() >= MAX_KEY {
            return None;
        }
        chosen.push(found.term);
        (groups, wrong) = (split, left);
    }
    // Most launches must have come again with the same numbers, and touched the same: else numbers
    // were found that tell these launches apart by chance.
    if 2 * come_again(&groups) < launches.len() {
        return None;
    }
    // What goes along with them tells sizes that were never seen from those that were, and costs no
    // launch its entry.
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

/// The small numbers that tell launches apart as finely as they come again: what differs from
/// launch to launch is not looked at. For evidence that does not show which of them decide.
pub(super) fn finest(launches: &[Launch], pointers: &[u16]) -> Vec<Term> {
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

/// How many launches are not alone in their group.
fn come_again(groups: &[usize]) -> usize {
    let mut sizes: HashMap<usize, usize> = HashMap::new();
    groups.iter().for_each(|group| *sizes.entry(*group).or_default() += 1);
    sizes.values().filter(|size| **size > 1).sum()
}

/// Hash of a launch's key. It stands in profiles: another way to make it is another version of
/// them.
#[inline]
pub(super) fn hash(launch: &Launch, key: &[Term]) -> u64 {
    // As rustc's FxHash: a multiplication a number. Keys are a few small numbers and nobody attacks
    // a profile of his own.
    const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
    let mixed = key.iter().fold(0u64, |hash, term| {
        // A number that is not there is not 0.
        let value = term.value(launch).unwrap_or(u64::MAX);
        (hash.rotate_left(5) ^ value).wrapping_mul(FACTOR)
    });
    mixed ^ (mixed >> 32)
}

/// Whether launches whose keys have the same hash have the same outcome.
pub(super) fn tells(hashes: &[u64], outcomes: &[usize]) -> bool {
    let mut first: HashMap<u64, usize> = HashMap::new();
    let mut pairs = hashes.iter().zip(outcomes);
    pairs.all(|(hash, outcome)| *first.entry(*hash).or_insert(*outcome) == *outcome)
}

/// Whether the 64-bit word there ends as an address of the host does.
fn is_host(launch: &Launch, long: u16) -> bool {
    launch.word32(long + 4).is_some_and(|upper| HOST.contains(&upper))
}

/// Numbers that differ between the launches.
fn candidates(launches: &[Launch], pointers: &[u16]) -> Vec<KeyCandidate> {
    let Some(first) = launches.first() else {
        return Vec::new();
    };
    let shapes = (0..3).flat_map(|axis| [Term::Grid(axis), Term::Block(axis)]);
    let number = |offset: &u16| {
        let long = *offset / 8 * 8;
        // Two small numbers of a list may look like it: an address whose lower half is small, too,
        // is rare.
        let lower = |launch: &Launch| launch.word32(long).is_some_and(|lower| u64::from(lower) >= SMALL);
        let host = |launch: &Launch| is_host(launch, long) && lower(launch);
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

/// The groups that are left when each is split by these values.
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

/// Launches whose outcome is another than that of the first of their group.
fn strays(groups: &[usize], outcomes: &[usize]) -> usize {
    let mut first: HashMap<usize, usize> = HashMap::new();
    let pairs = groups.iter().zip(outcomes);
    pairs
        .filter(|(group, outcome)| *first.entry(**group).or_insert(**outcome) != **outcome)
        .count()
}

/// Whether the groups tell these values, and some group has two launches that show it.
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

    fn launch(parameters: &[u8]) -> Launch<'_> {
        Launch {
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
        // Rows, columns, a number that goes along with them, noise, an address of the host in two
        // halves.
        let rows = buffers(&[
            &[3, 7, 21, 900, 5, 0x7ffd],
            &[3, 9, 27, 901, 6, 0x7ffd],
            &[4, 7, 28, 902, 7, 0],
            &[3, 7, 21, 903, 8, 0x7ffd],
            &[4, 9, 36, 904, 9, 0x7ffe],
            &[4, 9, 36, 905, 9, 0x7ffe],
        ]);
        let launches: Vec<Launch> = rows.iter().map(|row| launch(row)).collect();
        let found = key(&launches, &[0, 1, 2, 0, 3, 3], &[]).unwrap();
        assert!(!found.contains(&Term::Word32(12)), "noise: {found:?}");
        assert!(!found.contains(&Term::Word32(16)) && !found.contains(&Term::Word32(20)));
        assert!(found.contains(&Term::Word32(8)), "{found:?}");
        let hashes: Vec<u64> = launches.iter().map(|launch| hash(launch, &found)).collect();
        assert_eq!(hashes[0], hashes[3]);
        assert_ne!(hashes[0], hashes[1]);
        // The same arguments, another outcome: it depends on data.
        assert_eq!(key(&[launches[0], launches[0]], &[0, 1], &[]), None);
        assert_eq!(key(&[launches[0], launches[0]], &[0, 0], &[]), Some(Vec::new()));
        // Each by itself: any number would tell them.
        assert_eq!(key(&launches[..3], &[0, 1, 2], &[]), None);
    }

    #[test]
    fn half_of_an_old_address_is_no_key_where_a_small_number_tells_as_much() {
        // A size, and an address of the host in a gap, whose upper half something else overwrote:
        // the same in this process by chance, another one in the next.
        let old = 0x64b0_7740;
        let rows = buffers(&[&[3, 9, old, 1], &[4, 9, 0, 1], &[5, 9, old, 1]]);
        let launches: Vec<Launch> = rows.iter().chain(&rows).map(|row| launch(row)).collect();
        assert_eq!(
            key(&launches, &[0, 1, 0, 0, 1, 0], &[]),
            Some(vec![Term::Word32(0)]),
            "not the one of fewer values"
        );
        // Where nothing else tells, it may be a great number.
        let rows = buffers(&[&[3, 9, old, 1], &[3, 9, 0, 1]]);
        let launches: Vec<Launch> = rows.iter().chain(&rows).map(|row| launch(row)).collect();
        assert_eq!(key(&launches, &[0, 1, 0, 1], &[]), Some(vec![Term::Word32(8)]));
    }

    #[test]
    fn two_sizes_that_look_like_an_address_are_sizes() {
        // A list of sizes: 27 744 elements are 0x6c60, as the upper half of an address of the host
        // may be.
        let rows = buffers(&[&[110_976, 27_744], &[55_488, 27_744], &[55_488, 9_000]]);
        let launches: Vec<Launch> = rows.iter().chain(&rows).map(|row| launch(row)).collect();
        let found = key(&launches, &[0, 1, 2, 0, 1, 2], &[]);
        assert_eq!(found, Some(vec![Term::Word32(0), Term::Word32(4)]));
        let rows = buffers(&[&[0x64b0_7740, 27_744], &[0x64b0_7740, 9_000]]);
        let launches: Vec<Launch> = rows.iter().chain(&rows).map(|row| launch(row)).collect();
        assert_eq!(key(&launches, &[0, 1, 0, 1], &[]), None, "an address");
    }
}
