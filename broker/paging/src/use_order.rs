// SPDX-License-Identifier: MIT OR Apache-2.0
//! Order of a client's next uses of its granules from some point of its time, and of its last uses
//! before it.
//!
//! A walk round the period, at a few nanoseconds a granule. A switch walks for the one client whose
//! position moved.
#![forbid(unsafe_code)]

use super::Access;
use weft_protocol::Ns;

/// Neighbouring slots used at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotUse {
    pub at: Ns,
    pub first: u32,
    pub count: u32,
    pub access: Access,
}

/// A slot and the distance of its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    pub slot: u32,
    /// Distance in the client's own time. [`NEVER_NS`] for an unused slot.
    pub distance: Ns,
}

/// Distance of slots without uses.
pub(super) const NEVER_NS: Ns = Ns::MAX;

/// Orders around one point of a client's time.
#[derive(Debug, Default)]
pub(super) struct UseOrder {
    /// Every slot: by next use, then unused ones.
    pub next: Vec<Due>,
    /// Access of each used slot's next use.
    pub access: Vec<Access>,
    /// Every used slot, the one last used first.
    pub last: Vec<Due>,
    /// Index of its next use. Between two uses only distances change, by less than a kernel.
    of: Option<usize>,
    /// Point that distances count from.
    position: Ns,
    /// Distance of each slot's next use.
    distance: Vec<Ns>,
    seen: Vec<bool>,
}

impl UseOrder {
    /// Whether it belongs to a point between the same two uses.
    pub fn is_of(&self, uses: &[SlotUse], position: Ns) -> bool {
        self.of == Some(next_use(uses, position))
    }

    /// Whether it belongs to this very point: its distances are exact.
    pub fn is_at(&self, uses: &[SlotUse], position: Ns) -> bool {
        self.position == position && self.is_of(uses, position)
    }

    pub fn forget(&mut self) {
        self.of = None;
    }

    pub fn distance(&self, slot: usize) -> Ns {
        self.distance.get(slot).copied().unwrap_or(NEVER_NS)
    }

    /// Computes the orders around `position` (inside the period) for `slots` slots; the last uses
    /// only if `last`.
    pub fn compute(&mut self, uses: &[SlotUse], period: Ns, position: Ns, slots: usize, last: bool) {
        let split = next_use(uses, position);
        self.of = Some(split);
        self.position = position;
        let (before, after) = uses.split_at(split);

        self.next.clear();
        self.access.clear();
        self.access.resize(slots, Access::ReadWrite);
        self.distance.clear();
        self.distance.resize(slots, NEVER_NS);
        self.seen.clear();
        self.seen.resize(slots, false);
        let forward = after.iter().map(|one| (one, one.at - position));
        let around = before.iter().map(|one| (one, one.at + (period - position)));
        for (one, distance) in forward.chain(around) {
            for slot in one.first..one.first + one.count {
                let at = slot as usize;
                if !self.seen[at] {
                    self.seen[at] = true;
                    self.access[at] = one.access;
                    self.distance[at] = distance;
                    self.next.push(Due { slot, distance });
                }
            }
        }
        let used = self.next.len();
        for (slot, seen) in (0u32..).zip(&self.seen) {
            if !seen {
                self.next.push(Due {
                    slot,
                    distance: NEVER_NS,
                });
            }
        }

        self.last.clear();
        if !last {
            return;
        }
        self.seen.fill(false);
        let backward = before.iter().rev().map(|one| (one, position - one.at));
        let around = after.iter().rev().map(|one| (one, position + (period - one.at)));
        for (one, distance) in backward.chain(around) {
            for slot in (one.first..one.first + one.count).rev() {
                let at = slot as usize;
                if !self.seen[at] {
                    self.seen[at] = true;
                    self.last.push(Due { slot, distance });
                }
            }
            if self.last.len() == used {
                break;
            }
        }
    }
}

fn next_use(uses: &[SlotUse], position: Ns) -> usize {
    uses.partition_point(|one| one.at < position)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(at: Ns, first: u32, count: u32, access: Access) -> SlotUse {
        SlotUse {
            at,
            first,
            count,
            access,
        }
    }

    fn slots(dues: &[Due]) -> Vec<u32> {
        dues.iter().map(|due| due.slot).collect()
    }

    #[test]
    fn orders_go_round_the_period() {
        let uses = [
            used(0, 0, 2, Access::Write),
            used(10, 2, 1, Access::Read),
            used(20, 0, 1, Access::Read),
            used(30, 3, 1, Access::Read),
        ];
        let mut order = UseOrder::default();
        order.compute(&uses, 40, 0, 5, true);
        assert_eq!(slots(&order.next), [0, 1, 2, 3, 4]);
        assert_eq!(order.next[2].distance, 10);
        assert_eq!(order.next[4].distance, NEVER_NS);
        assert_eq!(slots(&order.last), [3, 0, 2, 1]);
        assert_eq!(order.last[0].distance, 10);
        assert_eq!(order.access[0], Access::Write);

        order.compute(&uses, 40, 15, 5, true);
        assert!(order.is_of(&uses, 20) && !order.is_of(&uses, 21));
        assert!(
            order.is_at(&uses, 15) && !order.is_at(&uses, 20),
            "of 20 the distances differ"
        );
        assert_eq!(slots(&order.next), [0, 3, 1, 2, 4]);
        assert_eq!(order.next[0].distance, 5);
        assert_eq!(order.next[2].distance, 25);
        assert_eq!(order.access[0], Access::Read, "of the next use, not of the first");
        assert_eq!(slots(&order.last), [2, 1, 0, 3]);
    }
}
