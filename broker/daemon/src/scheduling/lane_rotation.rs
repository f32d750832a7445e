// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lanes that an iteration reads: if a guest has many, [`AT_ONCE`] of them in rotation.
//!
//! A guest may have a thousand silent lanes, and each read delays the iteration. Invariant: a lane
//! is read once in as many iterations as its user has groups of [`AT_ONCE`]. A lane without a slot,
//! as in a private broker, is read in every iteration.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Most lanes of a guest that are read per iteration.
const AT_ONCE: u32 = 32;

/// All guests' lanes.
#[derive(Debug, Default)]
pub struct WatchRotation {
    of: BTreeMap<u32, Weak<Slots>>,
}

/// One guest's lanes.
#[derive(Debug, Default)]
struct Slots {
    taken: Mutex<Vec<bool>>,
    groups: AtomicU32,
}

/// A lane's place among its user's lanes; freed on drop.
#[derive(Debug)]
pub struct WatchSlot {
    of: Arc<Slots>,
    at: u32,
}

impl WatchRotation {
    /// Takes a slot for another lane of this guest.
    pub fn take(&mut self, uid: u32) -> WatchSlot {
        let known = self.of.get(&uid).and_then(Weak::upgrade);
        let slots = known.unwrap_or_else(|| {
            self.of.retain(|_, slots| slots.strong_count() > 0);
            let slots = Arc::<Slots>::default();
            self.of.insert(uid, Arc::downgrade(&slots));
            slots
        });
        let at = slots.change(|taken| match taken.iter().position(|taken| !taken) {
            Some(free) => {
                taken.iter_mut().skip(free).take(1).for_each(|slot| *slot = true);
                free
            }
            None => {
                taken.push(true);
                taken.len() - 1
            }
        });
        WatchSlot {
            of: slots,
            at: u32::try_from(at).unwrap_or(u32::MAX),
        }
    }
}

impl Slots {
    fn change<T>(&self, does: impl FnOnce(&mut Vec<bool>) -> T) -> T {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let done = does(&mut taken);
        while taken.last() == Some(&false) {
            taken.pop();
        }
        let groups = u32::try_from(taken.len()).unwrap_or(u32::MAX).div_ceil(AT_ONCE);
        self.groups.store(groups, Ordering::Relaxed);
        done
    }
}

impl WatchSlot {
    /// Whether the lane is read in this iteration.
    pub fn is_due(&self, turn: u64) -> bool {
        let groups = self.of.groups.load(Ordering::Relaxed).max(1);
        turn % u64::from(groups) == u64::from(self.at / AT_ONCE % groups)
    }
}

impl Drop for WatchSlot {
    fn drop(&mut self) {
        let at = self.at as usize;
        self.of
            .change(|taken| taken.iter_mut().skip(at).take(1).for_each(|slot| *slot = false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_lanes_some_are_due_in_a_turn_and_each_is_once_in_a_round() {
        let mut rotation = WatchRotation::default();
        let few: Vec<WatchSlot> = (0..AT_ONCE).map(|_| rotation.take(1)).collect();
        let mut many: Vec<WatchSlot> = (0..AT_ONCE * 3 - 5).map(|_| rotation.take(2)).collect();
        for turn in 0..10 {
            assert!(few.iter().all(|slot| slot.is_due(turn)), "all of who has few");
            let due = many.iter().filter(|slot| slot.is_due(turn)).count();
            assert!((1..=AT_ONCE as usize).contains(&due), "{due}");
        }
        for slot in &many {
            assert_eq!((0..3).filter(|turn| slot.is_due(*turn)).count(), 1);
        }
        // Ended lanes free their slots, and fewer lanes make a shorter round.
        many.truncate(AT_ONCE as usize);
        assert!(many.iter().all(|slot| slot.is_due(7)));
        drop(many.remove(0));
        assert_eq!(rotation.take(2).at, 0);
        drop((few, many));
        let _ = rotation.take(3);
        assert_eq!(rotation.of.len(), 1, "who has no lane is forgotten");
    }
}
