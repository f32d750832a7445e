// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed ranges that a job holds, by address.
//!
//! Calls that take memory, free it or ask about it lock the list. Launches call [`name`], which
//! takes no lock: it searches a sorted table and gives up if the table changes. Writers bump a
//! version before and after.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::abi::CuContext;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `cuMemAlloc` and its pitched sibling.
    Plain,
    /// Stream-ordered, from this pool (0 = the device's own).
    Pool(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManagedRange {
    /// Bytes that the job asked for.
    pub bytes: u64,
    /// Bytes taken from the driver.
    pub room: u64,
    pub origin: Origin,
    pub context: CuContext,
    pub device: i32,
}

static ALL: Mutex<BTreeMap<u64, ManagedRange>> = Mutex::new(BTreeMap::new());

/// Ranges that launches can look up; others fault. PyTorch makes some hundreds of blocks.
const PLACES: usize = 4096;

/// Sorted starts and ends. An odd version means a change under way.
struct LookupTable {
    version: AtomicU64,
    count: AtomicUsize,
    starts: [AtomicU64; PLACES],
    ends: [AtomicU64; PLACES],
    /// Last round that named each range, outside the version rule: a mark on the wrong range costs
    /// one needless move or fault.
    rounds: [AtomicU32; PLACES],
}

static TABLE: LookupTable = LookupTable::new();

impl LookupTable {
    const fn new() -> LookupTable {
        LookupTable {
            version: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            starts: [const { AtomicU64::new(0) }; PLACES],
            ends: [const { AtomicU64::new(0) }; PLACES],
            rounds: [const { AtomicU32::new(0) }; PLACES],
        }
    }

    /// Writes the entries from `from` on, under the lock of [`ALL`]: one writer.
    fn write(&self, all: &BTreeMap<u64, ManagedRange>, from: u64) {
        let marks: Vec<(u64, u32)> = self.marks().filter(|(start, _)| *start >= from).collect();
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let kept = all.range(..from).count();
        let places = self.starts.iter().zip(&self.ends).zip(&self.rounds).skip(kept);
        for (((start, end), round), (at, range)) in places.zip(all.range(from..)) {
            start.store(*at, Ordering::Relaxed);
            end.store(at.saturating_add(range.room), Ordering::Relaxed);
            let known = marks.binary_search_by_key(at, |(start, _)| *start);
            let known = known.ok().and_then(|at| marks.get(at));
            round.store(known.map_or(0, |(_, round)| *round), Ordering::Relaxed);
        }
        self.count.store(all.len().min(PLACES), Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Starts with their marks.
    fn marks(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let both = self.starts.iter().zip(&self.rounds);
        both.take(self.count.load(Ordering::Relaxed))
            .map(|(start, round)| (start.load(Ordering::Relaxed), round.load(Ordering::Relaxed)))
    }

    #[inline]
    fn name(&self, address: u64, round: u32) {
        if let Some((at, _, _)) = self.find(address)
            && let Some(mark) = self.rounds.get(at)
            && mark.load(Ordering::Relaxed) != round
        {
            mark.store(round, Ordering::Relaxed);
        }
    }

    /// Index, start and end of the range around an address.
    #[inline]
    fn find(&self, address: u64) -> Option<(usize, u64, u64)> {
        let before = self.version.load(Ordering::Acquire);
        if before % 2 == 1 {
            return None;
        }
        let count = self.count.load(Ordering::Relaxed);
        let starts = self.starts.get(..count)?;
        let at = starts
            .partition_point(|start| start.load(Ordering::Relaxed) <= address)
            .checked_sub(1)?;
        let start = starts.get(at)?.load(Ordering::Relaxed);
        let end = self.ends.get(at)?.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (self.version.load(Ordering::Relaxed) == before && (start..end).contains(&address)).then_some((at, start, end))
    }
}

fn locked() -> MutexGuard<'static, BTreeMap<u64, ManagedRange>> {
    // No code under the lock can leave the list half changed.
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn add(start: u64, range: ManagedRange) {
    let mut all = locked();
    all.insert(start, range);
    TABLE.write(&all, start);
}

pub fn remove(start: u64) -> Option<ManagedRange> {
    let mut all = locked();
    let range = all.remove(&start)?;
    TABLE.write(&all, start);
    drop(all);
    if super::evicted::any() {
        // Later memory at this address is not evicted.
        super::evicted::arrived(start, range.room);
    }
    Some(range)
}

/// Changes with every change of the list.
#[inline]
pub fn version() -> u64 {
    TABLE.version.load(Ordering::Acquire)
}

pub fn at(start: u64) -> Option<ManagedRange> {
    locked().get(&start).copied()
}

/// The range around an address, with its start.
pub fn of(address: u64) -> Option<(u64, ManagedRange)> {
    let all = locked();
    let (start, range) = all.range(..=address).next_back()?;
    (address - start < range.bytes.max(1)).then_some((*start, *range))
}

pub fn within(start: u64, end: u64) -> Vec<(std::ops::Range<u64>, ManagedRange)> {
    let all = locked();
    let before = all.range(..start).next_back();
    let later = all.range(start..end);
    let part = |(at, range): (&u64, &ManagedRange)| {
        let part = start.max(*at)..end.min(at.saturating_add(range.room));
        (!part.is_empty()).then_some((part, *range))
    };
    before.into_iter().chain(later).filter_map(part).collect()
}

pub fn all() -> Vec<(u64, ManagedRange)> {
    locked().iter().map(|(start, range)| (*start, *range)).collect()
}

/// Marks the range around an address as named in this round. Lock-free.
#[inline]
pub fn name(address: u64, round: u32) {
    TABLE.name(address, round);
}

/// Ranges last named in this round, or never named.
pub fn named_in(round: u32) -> Vec<u64> {
    // Locked, so that the table does not change.
    let all = locked();
    let named = TABLE.marks().filter(|(_, mark)| *mark == round || *mark == 0);
    let beyond = all.keys().skip(PLACES).copied();
    named.map(|(start, _)| start).chain(beyond).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(bytes: u64) -> ManagedRange {
        ManagedRange {
            bytes,
            room: bytes.next_multiple_of(512),
            origin: Origin::Plain,
            context: 1,
            device: 0,
        }
    }

    /// A test's own list and table: another test's change would make lookups give up.
    struct Own(&'static LookupTable, BTreeMap<u64, ManagedRange>);

    impl Own {
        fn new(table: &'static LookupTable) -> Own {
            Own(table, BTreeMap::new())
        }
        fn add(&mut self, start: u64) {
            self.1.insert(start, range(1000));
            self.0.write(&self.1, start);
        }
        fn remove(&mut self, start: u64) {
            self.1.remove(&start);
            self.0.write(&self.1, start);
        }
    }

    fn place(table: &LookupTable, address: u64) -> Option<(u64, u64)> {
        table.find(address).map(|(_, start, end)| (start, end))
    }

    #[test]
    fn marks_stay_with_their_ranges() {
        static TABLE: LookupTable = LookupTable::new();
        let mut own = Own::new(&TABLE);
        for n in [1, 3, 5, 7] {
            own.add(n * 0x1000);
        }
        TABLE.name(0x3000 + 1000, 4);
        TABLE.name(0x7000, 5);
        TABLE.name(0x7000 + 1024, 6);
        TABLE.name(0x9000, 6);
        own.add(0x2000);
        own.remove(0x5000);
        let marks: Vec<_> = TABLE.marks().collect();
        assert_eq!(marks, [(0x1000, 0), (0x2000, 0), (0x3000, 4), (0x7000, 5)]);
        own.remove(0x3000);
        own.add(0x3000);
        assert_eq!(TABLE.marks().nth(2), Some((0x3000, 0)), "another range");
    }

    #[test]
    fn the_table_follows_the_list() {
        static TABLE: LookupTable = LookupTable::new();
        let mut own = Own::new(&TABLE);
        let base = 0x7000_0000_0000;
        let starts: Vec<u64> = (0..64u64).map(|n| base + (n * 37 % 64) * 0x10_0000).collect();
        for start in &starts {
            own.add(*start);
        }
        for start in &starts {
            assert_eq!(place(&TABLE, start + 1023), Some((*start, start + 1024)));
            assert_eq!(TABLE.find(start + 1024), None);
        }
        assert_eq!(TABLE.find(base - 1), None);
        for start in starts.iter().step_by(2) {
            own.remove(*start);
            assert_eq!(TABLE.find(*start), None);
        }
        for start in starts.iter().skip(1).step_by(2) {
            assert_eq!(place(&TABLE, *start), Some((*start, start + 1024)));
        }
    }

    #[test]
    fn a_full_table_leaves_the_highest_out() {
        static TABLE: LookupTable = LookupTable::new();
        let mut own = Own::new(&TABLE);
        for n in 0..PLACES as u64 + 10 {
            own.1.insert(0x1000 * (n + 1), range(1000));
        }
        TABLE.write(&own.1, 0);
        assert_eq!(place(&TABLE, 0x1000), Some((0x1000, 0x1400)));
        assert_eq!(TABLE.find(0x1000 * (PLACES as u64 + 1)), None);
    }

    #[test]
    fn the_list_knows_what_was_asked_for() {
        let base = 0x5000_0000_0000;
        add(base, range(1000));
        assert_eq!(of(base + 999).map(|found| found.0), Some(base));
        assert_eq!(of(base + 1000), None, "the room behind it is not the job's");
        add(base + 0x1000, range(1000));
        let parts: Vec<_> = within(base + 100, base + 0x1010)
            .into_iter()
            .map(|found| found.0)
            .collect();
        assert_eq!(parts, [base + 100..base + 1024, base + 0x1000..base + 0x1010]);
        assert_eq!(within(base + 1024, base + 0x1000), []);
        remove(base + 0x1000);
        assert_eq!(remove(base), Some(range(1000)));
        assert_eq!((remove(base), at(base)), (None, None));
    }

    #[test]
    fn a_reader_beside_a_writer_sees_whole_ranges_or_none() {
        static TABLE: LookupTable = LookupTable::new();
        let base = 0x6000_0000_0000u64;
        let writer = std::thread::spawn(move || {
            let mut own = Own::new(&TABLE);
            for round in 0..20_000u64 {
                own.add(base + round % 7 * 0x1000);
                own.remove(base + (round + 3) % 7 * 0x1000);
            }
        });
        while !writer.is_finished() {
            for n in 0..7 {
                let at = base + n * 0x1000;
                if let Some(seen) = place(&TABLE, at + 5) {
                    assert_eq!(seen, (at, at + 1024));
                }
            }
        }
        writer.join().unwrap();
    }
}
