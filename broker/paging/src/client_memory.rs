// SPDX-License-Identifier: MIT OR Apache-2.0
//! Granules, places and uses of one client.
#![forbid(unsafe_code)]

use super::{
    Access, GranulePlace, GranuleRange, PagingStats, Use, WorkingSet,
    use_order::{NEVER_NS, SlotUse, UseOrder},
};
use weft_protocol::Ns;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Movement {
    #[default]
    No,
    /// To the device.
    In,
    /// To the host.
    Out,
    /// Off the device without a copy.
    Dropped,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GranuleState {
    pub place: GranulePlace,
    pub moving: Movement,
    /// The host has a good copy.
    pub copy: bool,
    /// Whether the client uses it.
    pub used: bool,
    /// Used and never written.
    pub unwritten: bool,
    /// The driver was advised that it is mostly read.
    pub advised: bool,
    /// An order for it was refused since the last switch.
    pub refused: bool,
}

impl GranuleState {
    /// Granules of host memory that it takes.
    pub fn on_host(&self) -> u64 {
        match self.place {
            GranulePlace::Nowhere => 0,
            GranulePlace::Host => 1,
            GranulePlace::Device => u64::from(self.copy || self.moving == Movement::Out),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ClientMemory {
    /// Numbers of its granules, ascending.
    pub granules: Vec<u64>,
    /// Slots, in the order of `granules`.
    pub slots: Vec<GranuleState>,
    /// Allocations by address.
    allocations: Vec<GranuleRange>,
    set: WorkingSet,
    /// Uses of `set`, by slots.
    pub uses: Vec<SlotUse>,
    pub period: Ns,
    /// Number of used slots.
    pub used: u64,
    /// Number of written slots.
    pub written: u64,
    /// Position in the period at the last switch, ns.
    pub position: Ns,
    /// Its own time since then, ns.
    pub ran: Ns,
    /// Order around `position`.
    pub now: UseOrder,
    /// Order around the end of the running client's turn.
    pub after: UseOrder,
    pub pinned: bool,
    /// Granules of host memory.
    pub host: u64,
    pub host_limit: Option<u64>,
    /// End of the last run, in the clients' common time.
    pub ended: Ns,
    /// Bytes moved so far.
    pub stats: PagingStats,
    /// Granules copied since its turn began.
    pub moved: super::Migration,
    /// Granules copied in the round before.
    pub migration: super::Migration,
    /// Own time of this turn up to the present kernel, ns.
    pub turned: Ns,
    /// Own time of the turn before, ns.
    pub turn: Ns,
}

impl ClientMemory {
    pub fn count_host(&mut self) {
        self.host = self.slots.iter().map(GranuleState::on_host).sum();
    }

    pub fn host_is_full(&self) -> bool {
        self.host_limit.is_some_and(|limit| self.host >= limit)
    }

    pub fn slot(&self, granule: u64) -> Option<usize> {
        self.granules.binary_search(&granule).ok()
    }

    /// Existing slots of a range.
    pub fn slots_of(&self, range: GranuleRange) -> std::ops::Range<usize> {
        let first = self.granules.partition_point(|granule| *granule < range.first);
        let end = self.granules.partition_point(|granule| *granule < range.end());
        first..end
    }

    /// Adds missing slots of a range; false if there were none.
    pub fn add(&mut self, range: GranuleRange) -> bool {
        let there = self.slots_of(range);
        if there.len() as u64 == u64::from(range.count) {
            return false;
        }
        let known: Vec<GranuleState> = self.slots[there.clone()].to_vec();
        let numbers: Vec<u64> = self.granules[there.clone()].to_vec();
        let mut slots = vec![GranuleState::default(); range.count as usize];
        for (number, slot) in numbers.into_iter().zip(known) {
            slots[(number - range.first) as usize] = slot;
        }
        self.granules.splice(there.clone(), range.granules());
        self.slots.splice(there, slots);
        true
    }

    /// Remembers an allocation, for [`super::PlanOptions::whole_allocations`].
    pub fn note_allocation(&mut self, range: GranuleRange) {
        if let Err(at) = self.allocations.binary_search(&range) {
            self.allocations.insert(at, range);
        }
    }

    pub fn remove(&mut self, range: GranuleRange) {
        self.allocations
            .retain(|one| one.end() <= range.first || one.first >= range.end());
        let gone = self.slots_of(range);
        self.granules.drain(gone.clone());
        self.slots.drain(gone);
    }

    pub fn set_working_set(&mut self, set: WorkingSet, whole_allocations: bool) {
        self.set = set;
        if whole_allocations {
            let widened: Vec<Use> = self.set.uses.iter().flat_map(|one| self.widened(*one)).collect();
            self.set.uses = widened;
        }
        self.set.uses.retain(|one| one.range.count > 0);
        self.set.uses.sort_by_key(|one| one.at);
        for at in 0..self.set.uses.len() {
            let range = self.set.uses[at].range;
            self.add(range);
        }
        self.index();
    }

    /// The touched allocations, or the use itself if none is known.
    fn widened(&self, one: Use) -> Vec<Use> {
        let touched = |range: &&GranuleRange| range.first < one.range.end() && one.range.first < range.end();
        let mut wide: Vec<Use> = self
            .allocations
            .iter()
            .filter(touched)
            .map(|range| Use {
                range: *range,
                // A write covers only a part of the allocation.
                access: if one.access == Access::Read {
                    Access::Read
                } else {
                    Access::ReadWrite
                },
                ..one
            })
            .collect();
        if wide.is_empty() {
            wide.push(one);
        }
        wide
    }

    /// Recomputes the fields that depend on slot numbers.
    pub fn index(&mut self) {
        let mut uses = std::mem::take(&mut self.uses);
        uses.clear();
        let mut touched = vec![(false, false); self.slots.len()];
        for one in &self.set.uses {
            let slots = self.slots_of(one.range);
            if slots.is_empty() {
                continue;
            }
            for slot in slots.clone() {
                touched[slot].0 = true;
                touched[slot].1 |= one.access.writes();
            }
            uses.push(SlotUse {
                at: one.at,
                first: slots.start as u32,
                count: slots.len() as u32,
                access: one.access,
            });
        }
        let last = uses.last().map_or(0, |one| one.at);
        self.period = self.set.period.max(last + 1);
        self.position %= self.period;
        self.uses = uses;
        (self.used, self.written) = (0, 0);
        for (slot, (used, written)) in self.slots.iter_mut().zip(touched) {
            self.used += u64::from(used);
            self.written += u64::from(written);
            slot.used = used;
            slot.unwritten = used && !written;
            if used && written {
                slot.copy = false;
            }
        }
        self.now.forget();
        self.after.forget();
    }

    /// Whether a slot must stay on the device: a used one of a pinned client, each if no use is
    /// known.
    pub fn keeps(&self, slot: usize) -> bool {
        self.pinned && (self.used == 0 || self.slots[slot].used)
    }

    pub fn pinned_slots(&self) -> u64 {
        match (self.pinned, self.used) {
            (false, _) => 0,
            (true, 0) => self.slots.len() as u64,
            (true, used) => used,
        }
    }

    /// Granules used in `length` ns of own time: `max(average, next by the last plan)`.
    pub fn used_in(&self, length: Ns) -> u64 {
        let average = u128::from(self.used) * u128::from(length.min(self.period)) / u128::from(self.period.max(1));
        let next = self
            .now
            .next
            .partition_point(|due| due.distance != NEVER_NS && due.distance < length);
        (average as u64).max(next as u64).min(self.used)
    }

    /// `length` ns of own time, and the time to the end of the kernel that is then under way: a
    /// kernel is not taken off the device.
    pub fn to_kernel_end(&self, length: Ns) -> Ns {
        let at = self.position.saturating_add(length) % self.period.max(1);
        let next = self.uses.get(self.uses.partition_point(|one| one.at < at));
        let end = next.map_or(self.period, |next| next.at);
        length.saturating_add(end.saturating_sub(at))
    }

    /// Moves `position` to the start of the present kernel; the rest stays in `ran`. Returns the
    /// step, ns.
    pub fn run_on(&mut self) -> Ns {
        let period = self.period.max(1);
        let at = self.position.saturating_add(self.ran) % period;
        let begun = self.uses.partition_point(|one| one.at <= at);
        let into = begun.checked_sub(1).map_or(0, |last| at - self.uses[last].at);
        // Never back: `position` may be inside a kernel.
        let into = into.min(self.ran);
        let by = self.ran - into;
        self.turned = self.turned.saturating_add(by);
        self.position = (at + period - into % period) % period;
        self.ran = into;
        by
    }

    /// Updates `now`. `last`: also its order of last uses.
    pub fn order_now(&mut self, last: bool) {
        let known = |order: &UseOrder| order.is_of(&self.uses, self.position);
        if known(&self.now) && !(last && self.now.last.is_empty()) {
            return;
        }
        if known(&self.after) {
            std::mem::swap(&mut self.now, &mut self.after);
            self.after.forget();
            return;
        }
        self.now
            .compute(&self.uses, self.period, self.position, self.slots.len(), last);
    }

    /// Updates `after` for a turn of `length` ns.
    ///
    /// Its distances give the last use of each slot in the turn. If they were too early by a
    /// kernel, each slot would go just before its use.
    pub fn order_after(&mut self, length: Ns) {
        let end = self.position.saturating_add(length) % self.period;
        if !self.after.is_at(&self.uses, end) {
            self.after.compute(&self.uses, self.period, end, self.slots.len(), true);
        }
    }
}
