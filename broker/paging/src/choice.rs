// SPDX-License-Identifier: MIT OR Apache-2.0
//! Choice of the next granules to move.
//!
//! "Aggressive" rule of Cao, Felten, Karlin, Li: "A study of integrated prefetching and caching
//! strategies", 1995. Whenever the link is free, the missing granule needed first replaces the
//! granule needed last, unless that one is needed earlier.
//!
//! Cursors find both, and move one way between two switches. A switch costs a walk over one
//! client's uses, an order what it moves.
#![forbid(unsafe_code)]

use std::collections::{BinaryHeap, VecDeque};

use super::{
    Access, GranulePlace, OrderKind, Overlap, PagingOrder, Planner, Victims,
    batch::Batch,
    client_memory::{ClientMemory, Movement},
    use_order::NEVER_NS,
};
use weft_protocol::{Client, Ns};

/// Next use by a client without a turn.
const AFTER_TIMELINE_NS: Ns = 1 << 62;

/// A planned turn.
#[derive(Debug, Clone, Copy)]
struct Visit {
    client: usize,
    /// ns since the plan's start.
    start: Ns,
    length: Ns,
    /// The running client's next turn, from the end of its present one.
    after: bool,
}

/// Cursor in one client's list of victims.
#[derive(Debug, Clone, Copy, Default)]
struct Tail {
    /// Entries not looked at yet.
    left: usize,
    /// LRU: `left` counts last uses, because the unused granules are done.
    used_ones: bool,
}

/// Granule that may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Victim {
    client: usize,
    slot: usize,
    /// The greatest key goes first.
    key: Ns,
}

/// Granule that must come.
#[derive(Debug, Clone, Copy)]
struct MissingGranule {
    client: usize,
    slot: usize,
    at: Ns,
    visit: usize,
}

/// Use of a slot by the running client in its turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum InTurn {
    #[default]
    Unused,
    /// The turn will use the slot again.
    Used,
    /// The turn used the slot for the last time: it may go, and is not fetched.
    Spent,
}

/// State of the choice between two switches.
#[derive(Debug, Default)]
pub(super) struct Choice {
    visits: Vec<Visit>,
    next_visit: Vec<Option<usize>>,
    cycle: Ns,
    /// The running client, the planned part of its turn (ns), whether more of the turn follows.
    planned: Option<(usize, Ns, bool)>,
    /// Cursor of the search for missing granules: visit, rank.
    at: (usize, usize),
    passed_leaving: bool,
    tails: Vec<Tail>,
    /// The running client's spent slots: key, slot.
    spent: BinaryHeap<(Ns, usize)>,
    /// Its last uses that are not in `spent` yet.
    unspent: usize,
    in_turn: Vec<InTurn>,
    /// Missing granules with room, present or being made.
    wanted: VecDeque<MissingGranule>,
    /// A missing granule of the running client has no victim.
    starved: bool,
    /// The search for victims may have passed an arrival.
    arrived: bool,
    /// Slots changed: plan again.
    stale: bool,
    pub any_refused: bool,
}

impl Choice {
    pub fn rewind(&mut self) {
        self.at = (0, 0);
        self.passed_leaving = false;
        self.starved = false;
        self.wanted.clear();
    }

    pub fn forget_plan(&mut self) {
        self.stale = true;
    }

    pub fn note_arrival(&mut self) {
        self.arrived = true;
    }

    pub fn note_departure(&mut self) {
        self.starved = false;
        if self.passed_leaving {
            self.rewind();
        }
    }

    /// Whether this client ran past the plan of its turn.
    pub fn outrun(&self, client: usize, ran: Ns) -> bool {
        self.planned
            .is_some_and(|(running, length, partial)| partial && running == client && ran >= length)
    }
}

impl Planner {
    pub(super) fn plan(&mut self) {
        let mut choice = std::mem::take(&mut self.choice);
        choice.stale = false;
        choice.rewind();
        choice.visits.clear();
        choice.next_visit.clear();
        choice.next_visit.resize(self.clients.len(), None);
        choice.spent.clear();
        choice.in_turn.clear();
        choice.unspent = 0;
        choice.planned = None;
        choice.cycle = self.timeline.iter().map(|turn| turn.length).sum();
        let last = self.options().victims == Victims::Lru;
        for (_, memory) in &mut self.clients {
            memory.order_now(last);
        }
        let mut start = 0;
        for (place, turn) in self.timeline.iter().enumerate() {
            let Some(client) = self.index(turn.client) else {
                continue;
            };
            if place == 0 {
                let room = self.room_for(client);
                let memory = &mut self.clients[client].1;
                let length = memory.to_kernel_end(planned_length(memory, turn.length, room));
                memory.order_after(length);
                choice.planned = Some((client, length, length < turn.length));
                choice.visits.push(Visit {
                    client,
                    start: 0,
                    length,
                    after: false,
                });
                if length < turn.length {
                    choice.next_visit[client] = Some(choice.visits.len());
                    choice.visits.push(Visit {
                        client,
                        start: length,
                        length: turn.length - length,
                        after: true,
                    });
                }
            } else if choice.next_visit[client].is_none() {
                choice.next_visit[client] = Some(choice.visits.len());
                choice.visits.push(Visit {
                    client,
                    start,
                    length: turn.length,
                    after: choice.planned.is_some_and(|(running, ..)| running == client),
                });
            }
            start += turn.length;
        }
        if let Some((client, length, _)) = choice.planned {
            let memory = &self.clients[client].1;
            choice.in_turn.resize(memory.slots.len(), InTurn::Unused);
            for due in &memory.after.last {
                if due.distance > length {
                    break;
                }
                choice.in_turn[due.slot as usize] = InTurn::Used;
                choice.unspent += 1;
            }
        }
        self.choice = choice;
        self.restart_search();
    }

    /// Restarts the search for victims.
    fn restart_search(&mut self) {
        self.choice.arrived = false;
        self.choice.tails.clear();
        self.choice.tails.extend(self.clients.iter().map(|(_, memory)| Tail {
            left: memory.slots.len(),
            used_ones: false,
        }));
    }

    /// Capacity less other clients' pins, granules.
    fn room_for(&self, client: usize) -> u64 {
        let others = self.clients.iter().enumerate().filter(|(other, _)| *other != client);
        let pinned: u64 = others.map(|(_, (_, memory))| memory.pinned_slots()).sum();
        self.config.capacity.saturating_sub(pinned)
    }

    /// Number of visits served by the link.
    fn visits_served(&self) -> usize {
        match self.options().overlap {
            Overlap::Ahead => self.choice.visits.len(),
            Overlap::Nothing => self.choice.visits.len().min(1),
            Overlap::AtSwitch => {
                let partial = self.choice.planned.is_some_and(|(_, _, partial)| partial);
                (1 + usize::from(partial)).min(self.choice.visits.len())
            }
        }
    }

    /// The missing granule needed first, until [`Planner::take_need`].
    fn next_need(&mut self) -> Option<MissingGranule> {
        loop {
            let (at, rank) = self.choice.at;
            if at >= self.visits_served() {
                return None;
            }
            let visit = self.choice.visits[at];
            let memory = &self.clients[visit.client].1;
            let order = if visit.after { &memory.after } else { &memory.now };
            let Some(due) = order.next.get(rank).filter(|due| due.distance < visit.length) else {
                self.choice.at = (at + 1, 0);
                continue;
            };
            let slot = &memory.slots[due.slot as usize];
            let spent = at == 0 && self.choice.in_turn.get(due.slot as usize) == Some(&InTurn::Spent);
            if slot.place != GranulePlace::Device && slot.moving == Movement::No && !slot.refused && !spent {
                return Some(MissingGranule {
                    client: visit.client,
                    slot: due.slot as usize,
                    at: visit.start + due.distance,
                    visit: at,
                });
            }
            self.choice.passed_leaving |= matches!(slot.moving, Movement::Out | Movement::Dropped);
            self.choice.at = (at, rank + 1);
        }
    }

    fn take_need(&mut self, need: MissingGranule) {
        self.choice.at.1 += 1;
        self.choice.wanted.push_back(need);
    }

    /// Next use of a slot, ns since the plan's start. A running client's `distance` counts from the
    /// end of its turn.
    fn future(&self, client: usize, distance: Ns) -> Ns {
        if distance == NEVER_NS {
            return NEVER_NS;
        }
        match self.choice.next_visit[client].map(|at| self.choice.visits[at]) {
            Some(visit) if distance < visit.length => visit.start + distance,
            Some(visit) => visit
                .start
                .saturating_add(self.choice.cycle)
                .saturating_add(distance)
                .min(AFTER_TIMELINE_NS),
            None if self.choice.planned.is_some_and(|(running, ..)| running == client) => {
                self.choice.cycle.saturating_add(distance).min(AFTER_TIMELINE_NS)
            }
            None => AFTER_TIMELINE_NS.saturating_add(distance.min(AFTER_TIMELINE_NS)),
        }
    }

    fn may_go(&self, memory: &ClientMemory, slot: usize) -> bool {
        let it = &memory.slots[slot];
        it.place == GranulePlace::Device && it.moving == Movement::No && !it.refused && !memory.keeps(slot)
    }

    /// First victim left of one client.
    fn victim_of(&mut self, client: usize) -> Option<Victim> {
        let running = self.choice.planned.is_some_and(|(running, ..)| running == client);
        match self.options().victims {
            Victims::Opt if running => self.victim_of_running(client),
            Victims::Opt => {
                while let Some(rank) = self.choice.tails[client].left.checked_sub(1) {
                    let memory = &self.clients[client].1;
                    let due = memory.now.next[rank];
                    if self.may_go(memory, due.slot as usize) {
                        // After other clients' granules: a pinned client may know better than the
                        // planner.
                        return Some(Victim {
                            client,
                            slot: due.slot as usize,
                            key: self
                                .future(client, due.distance)
                                .saturating_sub(Ns::from(memory.pinned)),
                        });
                    }
                    self.choice.tails[client].left = rank;
                }
                None
            }
            Victims::Lru if running => None,
            Victims::Lru => self.victim_by_last_use(client),
        }
    }

    /// Marks the slots that the running client used for the last time in its turn. A use is over
    /// when the next has begun.
    fn spend(&mut self) {
        let Some((client, length, _)) = self.choice.planned else {
            return;
        };
        if self.options().victims == Victims::Lru {
            return;
        }
        let mut same_use: Option<(Ns, Ns)> = None;
        while let Some(at) = self.choice.unspent.checked_sub(1) {
            let memory = &self.clients[client].1;
            let last = &memory.after.last[..=at];
            let distance = last[at].distance;
            let over = match same_use {
                Some((of, over)) if of == distance => over,
                _ => {
                    // Slots of one use have one time; the next use is behind them.
                    let same = last.partition_point(|due| due.distance < distance);
                    let later = last[..same].last();
                    later.map_or(length, |later| length.saturating_sub(later.distance))
                }
            };
            same_use = Some((distance, over));
            if memory.ran < over {
                break;
            }
            let slot = memory.after.last[at].slot as usize;
            let distance = memory.after.distance(slot);
            let key = self.future(client, distance);
            self.choice.spent.push((key, slot));
            self.choice.in_turn[slot] = InTurn::Spent;
            self.choice.unspent = at;
        }
    }

    /// Victim of the running client: the slot needed last, of those that the rest of the turn does
    /// not use.
    fn victim_of_running(&mut self, client: usize) -> Option<Victim> {
        let memory = &self.clients[client].1;
        while let Some((_, slot)) = self.choice.spent.peek() {
            if self.may_go(memory, *slot) {
                break;
            }
            self.choice.spent.pop();
        }
        let spent = self.choice.spent.peek().map(|(key, slot)| Victim {
            client,
            slot: *slot,
            key: *key,
        });
        let mut idle = None;
        while let Some(rank) = self.choice.tails[client].left.checked_sub(1) {
            let memory = &self.clients[client].1;
            let due = memory.after.next[rank];
            let slot = due.slot as usize;
            if self.choice.in_turn[slot] == InTurn::Unused && self.may_go(memory, slot) {
                let key = self.future(client, due.distance);
                idle = Some(Victim { client, slot, key });
                break;
            }
            self.choice.tails[client].left = rank;
        }
        // `Option` orders `None` below `Some`.
        std::cmp::max_by_key(spent, idle, |victim| victim.map(|victim| victim.key))
    }

    /// Victim of a waiting client: the slot used longest ago.
    fn victim_by_last_use(&mut self, client: usize) -> Option<Victim> {
        loop {
            let tail = self.choice.tails[client];
            let memory = &self.clients[client].1;
            if let Some(rank) = tail.left.checked_sub(1) {
                let (slot, key) = if tail.used_ones {
                    let due = memory.now.last[rank];
                    let since = self.clock.saturating_sub(memory.ended);
                    (due.slot as usize, since.saturating_add(due.distance))
                } else {
                    let due = memory.now.next[rank];
                    if due.distance != NEVER_NS {
                        self.choice.tails[client] = Tail {
                            left: memory.now.last.len(),
                            used_ones: true,
                        };
                        continue;
                    }
                    (due.slot as usize, NEVER_NS)
                };
                if self.may_go(memory, slot) {
                    return Some(Victim { client, slot, key });
                }
                self.choice.tails[client].left = rank;
            } else {
                return None;
            }
        }
    }

    /// The granule to give up for this one, and how. `None`: all are needed sooner or must stay.
    fn victim_for(&mut self, need: MissingGranule) -> Option<(Victim, OrderKind)> {
        loop {
            let mut best: Option<Victim> = None;
            for client in 0..self.clients.len() {
                let nearer = self.options().victims == Victims::Lru
                    && self.choice.next_visit[client].is_some_and(|visit| visit <= need.visit);
                if nearer || (self.options().victims == Victims::Lru && client == need.client) {
                    continue;
                }
                if let Some(victim) = self.victim_of(client)
                    && best.is_none_or(|best| victim.key > best.key)
                {
                    best = Some(victim);
                }
            }
            let Some(victim) = best else {
                // Look again for the running client: a cursor may have passed an arrival.
                if !(self.choice.arrived && need.visit == 0) {
                    return None;
                }
                self.restart_search();
                continue;
            };
            if self.options().victims == Victims::Opt && victim.key <= need.at {
                return None;
            }
            let kind = self.way_out(victim);
            let full = self.totals.host >= self.config.host_limit || self.clients[victim.client].1.host_is_full();
            if kind == OrderKind::Evict && full {
                // No room on the host: skip it until the next switch.
                self.pass_over(victim);
                continue;
            }
            return Some((victim, kind));
        }
    }

    fn pass_over(&mut self, victim: Victim) {
        let running = self
            .choice
            .planned
            .is_some_and(|(running, ..)| running == victim.client);
        if running && self.choice.spent.peek().is_some_and(|(_, slot)| *slot == victim.slot) {
            self.choice.spent.pop();
        } else if let Some(left) = self.choice.tails[victim.client].left.checked_sub(1) {
            self.choice.tails[victim.client].left = left;
        }
    }

    fn way_out(&self, victim: Victim) -> OrderKind {
        let memory = &self.clients[victim.client].1;
        let running = self
            .choice
            .planned
            .is_some_and(|(running, ..)| running == victim.client);
        let order = if running { &memory.after } else { &memory.now };
        let dead = order.distance(victim.slot) != NEVER_NS && order.access[victim.slot] == Access::Write;
        if dead && self.options().discard {
            OrderKind::Discard
        } else if memory.slots[victim.slot].copy {
            OrderKind::Release
        } else {
            OrderKind::Evict
        }
    }

    fn way_in(&self, need: MissingGranule) -> OrderKind {
        let memory = &self.clients[need.client].1;
        let order = if self.choice.visits[need.visit].after {
            &memory.after
        } else {
            &memory.now
        };
        let dead = self.options().discard && order.access[need.slot] == Access::Write;
        if dead || memory.slots[need.slot].place == GranulePlace::Nowhere {
            OrderKind::Populate
        } else {
            OrderKind::Prefetch
        }
    }

    fn link_takes_out(&self) -> bool {
        let out = self.totals.copying_out;
        let busy = if self.config.link.duplex {
            out
        } else {
            out + self.totals.arriving
        };
        busy < u64::from(self.config.in_flight)
    }

    fn link_takes_in(&self) -> bool {
        let busy = if self.config.link.duplex {
            self.totals.arriving
        } else {
            self.totals.arriving + self.totals.copying_out
        };
        busy < u64::from(self.config.in_flight)
    }

    /// Gives orders while any are possible and the link takes them.
    pub(super) fn choose(&mut self, into: &mut Vec<PagingOrder>) {
        if self.choice.stale {
            self.replan();
        }
        self.make_room(into);
        let serial = self.options().overlap == Overlap::Nothing;
        if !(serial && self.totals.leaving > 0) {
            self.fetch(into);
        }
    }

    fn make_room(&mut self, into: &mut Vec<PagingOrder>) {
        let ahead = match self.options().overlap {
            Overlap::Nothing => usize::MAX,
            Overlap::Ahead | Overlap::AtSwitch => self.config.in_flight as usize,
        };
        self.spend();
        let mut batch = Batch::default();
        self.give_back(&mut batch, into);
        while self.choice.wanted.len() < ahead {
            let Some(need) = self.next_need() else { break };
            // Granules beyond the capacity go first.
            let claimed = self.choice.wanted.len() as u64 + self.beyond();
            if self.room() + self.totals.leaving > claimed {
                self.take_need(need);
                continue;
            }
            let Some((victim, kind)) = self.victim_for(need) else {
                self.choice.starved |=
                    need.visit == 0 && (self.choice.wanted.is_empty() || self.options().overlap == Overlap::Nothing);
                break;
            };
            if !self.send_out(victim, kind, &mut batch, into) {
                break;
            }
        }
        self.flush(&mut batch, into);
    }

    /// Evicts granules that faults brought in beyond the capacity, the one needed last first.
    ///
    /// The driver would evict the least recently used one, which a service that loops over its
    /// memory needs next.
    fn give_back(&mut self, batch: &mut Batch, into: &mut Vec<PagingOrder>) {
        let nobody = MissingGranule {
            client: usize::MAX,
            slot: 0,
            at: 0,
            visit: 0,
        };
        while self.beyond() > self.totals.leaving
            && let Some((victim, kind)) = self.victim_for(nobody)
            && self.send_out(victim, kind, batch, into)
        {}
    }

    /// Orders a victim out. False: the link is busy.
    fn send_out(&mut self, victim: Victim, kind: OrderKind, batch: &mut Batch, into: &mut Vec<PagingOrder>) -> bool {
        if kind == OrderKind::Evict && !self.link_takes_out() {
            return false;
        }
        self.change(victim.client, victim.slot, |slot| {
            slot.moving = if kind == OrderKind::Discard {
                Movement::Dropped
            } else {
                Movement::Out
            };
        });
        self.add_to(batch, victim.client, victim.slot, kind, into);
        true
    }

    fn fetch(&mut self, into: &mut Vec<PagingOrder>) {
        let mut batch = Batch::default();
        while let Some(need) = self.choice.wanted.front().copied() {
            let slot = &self.clients[need.client].1.slots[need.slot];
            if slot.place == GranulePlace::Device || slot.moving != Movement::No {
                // A fault brought it in the meantime.
                self.choice.wanted.pop_front();
                continue;
            }
            if self.room() == 0 || !self.link_takes_in() {
                break;
            }
            self.choice.wanted.pop_front();
            let kind = self.way_in(need);
            self.change(need.client, need.slot, |slot| slot.moving = Movement::In);
            self.add_to(&mut batch, need.client, need.slot, kind, into);
        }
        self.flush(&mut batch, into);
    }

    fn add_to(&mut self, batch: &mut Batch, client: usize, slot: usize, kind: OrderKind, into: &mut Vec<PagingOrder>) {
        let (whose, memory) = &self.clients[client];
        let (whose, granule) = (*whose, memory.granules[slot]);
        if !batch.take(whose, kind, granule, self.config.per_order) {
            self.flush(batch, into);
            batch.take(whose, kind, granule, self.config.per_order);
        }
    }

    fn flush(&mut self, batch: &mut Batch, into: &mut Vec<PagingOrder>) {
        if let Some((client, kind, range)) = batch.0.take() {
            self.give(client, kind, range, into);
        }
    }

    pub(super) fn ready(&mut self, client: Client) -> bool {
        let Some(at) = self.index(client) else { return true };
        if self.options().overlap != Overlap::Nothing {
            return true;
        }
        if self.choice.planned.is_none_or(|(running, ..)| running != at) {
            return false;
        }
        let quiet = self.choice.wanted.is_empty() && self.totals.arriving == 0;
        quiet && (self.choice.starved || self.next_need().is_none())
    }

    /// Whether a missing slot of the running client will come in this turn.
    pub(super) fn intends(&self, client: usize, slot: usize) -> bool {
        let Some((running, length, _)) = self.choice.planned else {
            return false;
        };
        let memory = &self.clients[client].1;
        let spent = self.choice.in_turn.get(slot) == Some(&InTurn::Spent);
        running == client
            && !spent
            && !self.choice.starved
            && !memory.slots[slot].refused
            && memory.now.distance(slot) < length
    }
}

/// Part of a turn that is planned at once, ns.
///
/// A client whose set exceeds its room evicts its own granules. A part ends when half of its room
/// is used, so that the other half can be under way. Time is not a measure: the forward half of a
/// training step uses most granules in a third of it.
fn planned_length(memory: &ClientMemory, length: Ns, room: u64) -> Ns {
    if memory.used <= room {
        return length;
    }
    let next = &memory.now.next;
    let rank = usize::try_from(room / 2).unwrap_or(usize::MAX);
    let half = next.get(rank).map_or(length, |due| due.distance);
    // At least the kernel in progress.
    let kernel = next.partition_point(|due| due.distance == 0);
    let first = next.get(kernel).map_or(length, |due| due.distance);
    length.min(half.max(first).max(1))
}
