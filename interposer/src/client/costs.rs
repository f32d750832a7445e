// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel costs: identity hash -> predicted ns, read without a lock at every background launch.
//!
//! Open addressing over atomics; entries are never removed. A key is claimed before its value is
//! stored: a reader in between sees 0, unknown.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use weft_protocol::Ns;

/// Entries for kernels. A big model has some thousand identities.
const KERNEL_ENTRIES: usize = 16_384;

/// Entries of a small table, for example for graphs.
const SMALL_ENTRIES: usize = 1 << 11;

/// Places searched. At half load a longer run has a chance below one in a million.
const PROBES: usize = 64;

#[derive(Debug)]
pub struct Costs {
    entries: Box<[CostEntry]>,
}

#[derive(Debug, Default)]
struct CostEntry {
    key: AtomicU64,
    value: AtomicU64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs::of(KERNEL_ENTRIES)
    }
}

impl Costs {
    fn of(entries: usize) -> Costs {
        debug_assert!(entries.is_power_of_two());
        Costs {
            entries: (0..entries).map(|_| CostEntry::default()).collect(),
        }
    }

    pub fn few() -> Costs {
        Costs::of(SMALL_ENTRIES)
    }

    /// The entry `step` places after a hash's first. A mask: a division would be a launch's slowest
    /// instruction.
    #[inline]
    fn entry(&self, hash: u64, step: u64) -> Option<&CostEntry> {
        let mask = self.entries.len().wrapping_sub(1);
        self.entries.get(hash.wrapping_add(step) as usize & mask)
    }

    fn run(&self, hash: u64) -> impl Iterator<Item = &CostEntry> {
        (0..PROBES as u64).filter_map(move |step| self.entry(hash, step))
    }

    /// The predicted time, or `unknown` if there is none; `None` if the search takes longer.
    #[inline(always)]
    pub fn at_once(&self, hash: u64, unknown: Ns) -> Option<Ns> {
        let first = self.entry(hash, 0)?;
        // A hash of 0 finds an empty place or another's; an empty place has no value.
        match first.key.load(Ordering::Acquire) {
            key if key == hash => match first.value.load(Ordering::Relaxed) {
                0 => Some(unknown),
                cost => Some(cost),
            },
            0 => Some(unknown),
            _ => None,
        }
    }

    #[inline]
    pub fn get(&self, hash: u64) -> Option<Ns> {
        if hash == 0 {
            return None;
        }
        // Most hashes are in their first place.
        let first = self.entry(hash, 0)?;
        let key = first.key.load(Ordering::Acquire);
        if key == hash {
            let value = first.value.load(Ordering::Relaxed);
            return (value != 0).then_some(value);
        }
        if key == 0 {
            return None;
        }
        self.get_further(hash)
    }

    #[inline(never)]
    fn get_further(&self, hash: u64) -> Option<Ns> {
        for entry in self.run(hash) {
            match entry.key.load(Ordering::Acquire) {
                0 => return None,
                key if key == hash => {
                    let value = entry.value.load(Ordering::Relaxed);
                    return (value != 0).then_some(value);
                }
                _ => {}
            }
        }
        None
    }

    /// The word of an entry, added if missing, for tables that count. `None` if full.
    #[inline]
    pub fn word(&self, hash: u64) -> Option<&AtomicU64> {
        let first = self.entry(hash, 0)?;
        if first.key.load(Ordering::Acquire) == hash && hash != 0 {
            return Some(&first.value);
        }
        self.word_further(hash)
    }

    #[inline(never)]
    fn word_further(&self, hash: u64) -> Option<&AtomicU64> {
        if hash == 0 {
            return None;
        }
        self.run(hash).find_map(|entry| {
            let free = entry.key.compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire);
            (free.is_ok() || free == Err(hash)).then_some(&entry.value)
        })
    }

    pub fn words(&self) -> impl Iterator<Item = (u64, &AtomicU64)> {
        let all = self.entries.iter();
        all.map(|entry| (entry.key.load(Ordering::Acquire), &entry.value))
            .filter(|(key, _)| *key != 0)
    }

    pub fn forget(&self) {
        for entry in &self.entries {
            entry.value.store(0, Ordering::Relaxed);
        }
    }

    /// Sets a cost. False if full.
    pub fn set(&self, hash: u64, cost: Ns) -> bool {
        if hash == 0 {
            return false;
        }
        for entry in self.run(hash) {
            let taken = match entry.key.compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => hash,
                Err(other) => other,
            };
            if taken == hash {
                entry.value.store(cost.max(1), Ordering::Relaxed);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_comes_out_and_nothing_else() {
        let costs = Costs::default();
        // A big model's worth of mixed hashes, equal places modulo the table, and the largest hash.
        let hashes: Vec<u64> = (1..8000u64)
            .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .chain((0..20).map(|turn| 5 + turn * KERNEL_ENTRIES as u64))
            .chain([u64::MAX])
            .collect();
        for hash in &hashes {
            assert!(costs.set(*hash, hash.wrapping_mul(3) | 1));
        }
        for hash in &hashes {
            let cost = hash.wrapping_mul(3) | 1;
            assert_eq!(costs.get(*hash), Some(cost));
            assert!(costs.at_once(*hash, 5).is_none_or(|found| found == cost));
        }
        let at_once = hashes.iter().filter(|hash| costs.at_once(**hash, 5).is_some());
        assert!(at_once.count() > hashes.len() / 2);
        assert_eq!(Costs::few().at_once(7, 5), Some(5));
        assert_eq!(costs.get(999_999), None);
        assert_eq!(costs.get(0), None);
        assert!(!costs.set(0, 1));
        assert!(costs.set(7, 70));
        assert_eq!(costs.get(7), Some(70));
        costs.forget();
        assert_eq!(costs.get(7), None);
        assert!(hashes.iter().all(|hash| costs.get(*hash).is_none()));
        assert!(costs.set(7, 71));
        assert_eq!(costs.get(7), Some(71));
    }

    #[test]
    fn a_full_table_refuses_and_stays_right() {
        let costs = Costs::default();
        let taken = (1..=2 * KERNEL_ENTRIES as u64)
            .filter(|hash| costs.set(*hash, *hash))
            .count();
        assert_eq!(taken, KERNEL_ENTRIES);
        assert!((1..=KERNEL_ENTRIES as u64).all(|hash| costs.get(hash) == Some(hash)));
    }
}
