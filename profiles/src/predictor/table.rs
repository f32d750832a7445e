// SPDX-License-Identifier: MIT OR Apache-2.0
//! Table of contexts: open addressing, a few adjacent places per name, no deletion.
//!
//! It doubles up to [`MOST_CONTEXTS`]. Then a new context takes the place of its least seen
//! neighbour, if that was seen at most twice. Otherwise the neighbour loses an eighth of its count,
//! so a context that never returns is replaced in the end.

use super::cell::Cell;

/// Most contexts of a job, 32 B each. A request of 3,000 launches at distinct places makes 9,000.
pub const MOST_CONTEXTS: usize = 16_384;

const FIRST: usize = 64;

/// Places searched for a name: three cache lines at most.
const NEAR: usize = 4;

#[derive(Debug, Clone, Copy, Default)]
struct ContextCell {
    /// 0: empty.
    name: u64,
    cell: Cell,
}

#[derive(Debug, Clone, Default)]
pub(super) struct ContextTable {
    places: Vec<ContextCell>,
    used: usize,
}

impl ContextTable {
    pub(super) fn len(&self) -> usize {
        self.used
    }

    fn near(&self, name: u64) -> std::ops::Range<usize> {
        // The multiplicative mix leaves a name's high bits best.
        let first = (name >> 32) as usize & (self.places.len() - 1);
        let first = first.min(self.places.len() - NEAR);
        first..first + NEAR
    }

    /// Index of a name.
    pub(super) fn find(&self, name: u64) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let near = self.near(name);
        self.places[near.clone()]
            .iter()
            .position(|place| place.name == name)
            .map(|at| near.start + at)
    }

    pub(super) fn at(&self, at: usize) -> &Cell {
        &self.places[at].cell
    }

    pub(super) fn at_mut(&mut self, at: usize) -> &mut Cell {
        &mut self.places[at].cell
    }

    /// Inserts or replaces.
    pub(super) fn put(&mut self, name: u64, cell: Cell) {
        match self.find(name) {
            Some(at) => self.places[at].cell = cell,
            None => self.insert(name, cell),
        }
    }

    /// Inserts a name that is absent.
    pub(super) fn insert(&mut self, name: u64, cell: Cell) {
        if self.used * 4 >= self.places.len() * 3 && self.places.len() < MOST_CONTEXTS {
            self.grow();
        }
        if !self.enter(ContextCell { name, cell }) && self.places.len() < MOST_CONTEXTS {
            self.grow();
            self.enter(ContextCell { name, cell });
        }
    }

    /// Returns `false` if the neighbourhood was full; then, in a table of the largest size, the
    /// least seen neighbour is replaced or fades.
    fn enter(&mut self, new: ContextCell) -> bool {
        let near = self.near(new.name);
        let largest = self.places.len() >= MOST_CONTEXTS;
        let places = &mut self.places[near];
        if let Some(free) = places.iter_mut().find(|place| place.name == 0) {
            *free = new;
            self.used += 1;
            return true;
        }
        if largest && let Some(least) = places.iter_mut().min_by_key(|place| place.cell.seen()) {
            if least.cell.seen() <= 2 {
                *least = new;
            } else {
                least.cell.fade();
            }
        }
        false
    }

    fn grow(&mut self) {
        let room = (self.places.len() * 2).max(FIRST);
        let old = std::mem::replace(&mut self.places, vec![ContextCell::default(); room]);
        self.used = 0;
        for place in old.into_iter().filter(|place| place.name != 0) {
            // One in thousands finds its new neighbourhood full and must be learnt again.
            self.enter(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
    }

    #[test]
    fn what_was_entered_is_found() {
        let mut table = ContextTable::default();
        assert_eq!(table.find(5), None);
        for number in 0..5_000 {
            table.insert(name(number), Cell::first(number, 0.0));
        }
        let found = (0..5_000).filter(|number| {
            table
                .find(name(*number))
                .is_some_and(|at| *table.at(at) == Cell::first(*number, 0.0))
        });
        let found = found.count();
        assert!(found > 4_950, "{found}: few were crowded out");
        assert_eq!(table.find(name(9_999)), None);
    }

    #[test]
    fn ceiling_of_contexts() {
        let mut table = ContextTable::default();
        let kept = name(1);
        let mut cell = Cell::first(7, 0.0);
        (0..250).for_each(|_| cell.learn(7, 0.0));
        table.insert(kept, cell);
        for number in 2..200_000 {
            table.insert(name(number), Cell::first(number, 0.0));
        }
        assert_eq!(table.places.len(), MOST_CONTEXTS);
        assert!(table.len() <= MOST_CONTEXTS);
        assert!(table.find(kept).is_some(), "what was seen often stays");
        let recent = (190_000..200_000).filter(|number| table.find(name(*number)).is_some());
        assert!(recent.count() > 5_000, "what is new gets in");
    }
}
