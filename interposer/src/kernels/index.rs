// SPDX-License-Identifier: MIT OR Apache-2.0
//! A concurrent table from handles to words: 1 or 2 ns per look-up, any number of threads.
//!
//! Open addressing; keys are only added. A key's slot never changes, so a reader needs no lock. The
//! value is the key's current meaning, since a driver reuses addresses of unloaded kernels; 0 is
//! the tombstone. A full table refuses new keys, and its users take a slower path.

// By this name: `tests/memory-model` compiles this file with loom's atomics.
use super::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Slots searched. A table three quarters full rarely needs ten.
const REACH: usize = 32;

#[derive(Debug)]
#[repr(align(32))]
pub struct Slot {
    key: AtomicUsize,
    /// Current meaning; 0: none.
    pub value: AtomicU64,
    /// The reader's word; zeroed whenever the value is set.
    pub note: AtomicU64,
}

/// A table of `N` slots; `N` is a power of two.
#[derive(Debug)]
pub struct Index<const N: usize> {
    slots: [Slot; N],
    used: AtomicUsize,
}

impl<const N: usize> Index<N> {
    /// An empty table. As a static it takes no memory until used.
    #[allow(clippy::new_without_default)] // Two megabytes do not belong on a stack: for statics.
    pub const fn new() -> Index<N> {
        const { assert!(N.is_power_of_two() && N > REACH) };
        Index {
            slots: [const {
                Slot {
                    key: AtomicUsize::new(0),
                    value: AtomicU64::new(0),
                    note: AtomicU64::new(0),
                }
            }; N],
            used: AtomicUsize::new(0),
        }
    }

    /// First place of a key. Handles are aligned addresses; multiplication spreads their upper
    /// bits.
    #[inline(always)]
    fn start(key: usize) -> usize {
        ((key as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
    }

    fn places(&self, key: usize) -> impl Iterator<Item = &Slot> {
        let start = Self::start(key);
        (0..REACH).filter_map(move |step| self.slots.get(start.wrapping_add(step) & (N - 1)))
    }

    /// Slot of a key, if it was ever set.
    #[inline(always)]
    pub fn find(&self, key: usize) -> Option<&Slot> {
        // Nearly every key is in its first place: only that look-up is inlined.
        let first = self.slots.get(Self::start(key) & (N - 1))?;
        if first.key.load(Ordering::Acquire) == key {
            return Some(first);
        }
        self.find_further(key)
    }

    #[inline(never)]
    fn find_further(&self, key: usize) -> Option<&Slot> {
        for slot in self.places(key) {
            let found = slot.key.load(Ordering::Acquire);
            if found == key {
                return Some(slot);
            }
            if found == 0 {
                return None;
            }
        }
        None
    }

    /// Slot of a key, made if necessary. `None` if full, and for key 0, which marks an empty slot.
    pub fn place(&self, key: usize) -> Option<&Slot> {
        if key == 0 {
            return None;
        }
        for slot in self.places(key) {
            let found = slot.key.load(Ordering::Acquire);
            if found == key {
                return Some(slot);
            }
            if found != 0 {
                continue;
            }
            // In a fuller table searches get long.
            if self.used.load(Ordering::Relaxed) >= N / 4 * 3 {
                return None;
            }
            match slot.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.used.fetch_add(1, Ordering::Relaxed);
                    return Some(slot);
                }
                Err(other) if other == key => return Some(slot),
                Err(_) => {}
            }
        }
        None
    }

    /// Sets a key's value. False if there is no room.
    pub fn set(&self, key: usize, value: u64) -> bool {
        let Some(slot) = self.place(key) else { return false };
        slot.note.store(0, Ordering::Relaxed);
        slot.value.store(value, Ordering::Release);
        true
    }

    pub fn forget(&self, key: usize) {
        if let Some(slot) = self.find(key) {
            slot.value.store(0, Ordering::Release);
            slot.note.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed() -> Box<Index<1024>> {
        Box::new(Index::new())
    }

    fn value(index: &Index<1024>, key: usize) -> Option<u64> {
        index.find(key).map(|slot| slot.value.load(Ordering::Relaxed))
    }

    #[test]
    fn what_is_set_is_found_and_what_is_forgotten_is_not() {
        let index = boxed();
        assert_eq!(value(&index, 0x7f00_1230), None);
        assert!(index.set(0x7f00_1230, 5));
        assert_eq!(value(&index, 0x7f00_1230), Some(5));
        index.forget(0x7f00_1230);
        assert_eq!(value(&index, 0x7f00_1230), Some(0));
        assert!(index.set(0x7f00_1230, 6), "an address that the driver reuses");
        assert_eq!(value(&index, 0x7f00_1230), Some(6));
        index.forget(0x7f00_9999);
        assert!(!index.set(0, 1));
    }

    #[test]
    fn a_full_table_refuses_and_keeps_what_it_has() {
        let index = boxed();
        let kept: Vec<usize> = (1..2000)
            .map(|at| at * 16)
            .filter(|key| index.set(*key, *key as u64))
            .collect();
        assert!(kept.len() >= 700 && kept.len() <= 768, "{}", kept.len());
        assert!(kept.iter().all(|key| value(&index, *key) == Some(*key as u64)));
    }

    #[test]
    fn threads_that_set_the_same_keys_agree_on_their_slots() {
        let index = boxed();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let index = &index;
                scope.spawn(move || {
                    for key in 1..=600usize {
                        assert!(index.set(key * 8, key as u64 * 10 + thread));
                        let found = value(index, key * 8).expect("just set");
                        assert_eq!(found / 10, key as u64);
                    }
                });
            }
        });
        let mut seen = std::collections::HashSet::new();
        for slot in &index.slots {
            let key = slot.key.load(Ordering::Relaxed);
            assert!(key == 0 || seen.insert(key), "{key} stands twice");
        }
        assert_eq!(seen.len(), 600);
    }
}
