// SPDX-License-Identifier: MIT OR Apache-2.0
//! The planner's inputs and books. `choice` chooses the granules to move.
#![forbid(unsafe_code)]

use super::{
    GRANULE, GranulePlace, GranuleRange, Link, Migration, OrderId, OrderKind, OrderStatus, PagingConfig, PagingOrder,
    PagingStats, PlanOptions, ResidencySlot, Round, TurnPlan, TurnRule, WorkingSet,
    choice::Choice,
    client_memory::{ClientMemory, GranuleState, Movement},
    turns,
};
use weft_protocol::{Client, Ns};

/// Sums over all granules of all clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// On the device, leaving granules included.
    pub device: u64,
    /// On the way to the device.
    pub arriving: u64,
    /// On the way off the device.
    pub leaving: u64,
    /// Leaving granules that are copied.
    pub copying_out: u64,
    /// On the host.
    pub host: u64,
}

impl Totals {
    fn count(&mut self, slot: &GranuleState, by: impl Fn(u64, u64) -> u64) {
        let device = slot.place == GranulePlace::Device;
        let leaving = matches!(slot.moving, Movement::Out | Movement::Dropped);
        let one = |sum: &mut u64, what: bool| *sum = by(*sum, u64::from(what));
        one(&mut self.device, device);
        one(&mut self.arriving, slot.moving == Movement::In);
        one(&mut self.leaving, leaving);
        one(&mut self.copying_out, slot.moving == Movement::Out && !slot.copy);
        self.host = by(self.host, slot.on_host());
    }
}

/// `of * parts / whole`, rounded down; 0 if `whole` is 0.
fn part(of: u64, parts: u64, whole: u64) -> u64 {
    match whole {
        0 => 0,
        whole => (u128::from(of) * u128::from(parts) / u128::from(whole)) as u64,
    }
}

/// Planner of the memory on the device.
#[derive(Debug)]
pub struct Planner {
    pub(super) config: PagingConfig,
    /// Sorted by client.
    pub(super) clients: Vec<(Client, ClientMemory)>,
    pub(super) timeline: Vec<ResidencySlot>,
    pub(super) totals: Totals,
    pub(super) choice: Choice,
    out: Vec<PagingOrder>,
    advice: Vec<(Client, GranuleRange, bool)>,
    next_id: u64,
    /// Total run time of all clients up to the last switch, ns.
    pub(super) clock: Ns,
}

impl Planner {
    /// A planner without clients.
    pub fn new(config: PagingConfig) -> Planner {
        Planner {
            config,
            clients: Vec::new(),
            timeline: Vec::new(),
            totals: Totals::default(),
            choice: Choice::default(),
            out: Vec::new(),
            advice: Vec::new(),
            next_id: 0,
            clock: 0,
        }
    }

    /// Lowers the capacity by this many granules.
    pub fn lower_capacity(&mut self, granules: u64) {
        self.config.capacity = self.config.capacity.saturating_sub(granules);
        self.replan();
    }

    /// Bounds granules on the host. Granules already there stay.
    pub fn set_host_limit(&mut self, granules: u64) {
        self.config.host_limit = granules;
    }

    /// Bounds this client's granules on the host; `None`: no bound of its own.
    pub fn set_client_host_limit(&mut self, client: Client, granules: Option<u64>) {
        if let Some(at) = self.index(client) {
            self.clients[at].1.host_limit = granules;
        }
    }

    /// Granules of host memory that a client takes.
    pub fn on_host_of(&self, client: Client) -> u64 {
        self.index(client).map_or(0, |at| self.clients[at].1.host)
    }

    /// Sets the measured rates of the link. `duplex` stays.
    pub fn set_link(&mut self, link: Link) {
        self.config.link = Link {
            duplex: self.config.link.duplex,
            ..link
        };
    }

    /// The configuration in force.
    pub fn config(&self) -> &PagingConfig {
        &self.config
    }

    pub(super) fn options(&self) -> PlanOptions {
        self.config.options
    }

    pub(super) fn index(&self, client: Client) -> Option<usize> {
        self.clients.binary_search_by_key(&client, |(known, _)| *known).ok()
    }

    /// Adds a client without memory; ignores a known one.
    pub fn join(&mut self, client: Client) {
        if let Err(at) = self.clients.binary_search_by_key(&client, |(known, _)| *known) {
            self.clients.insert(at, (client, ClientMemory::default()));
            self.replan();
        }
    }

    /// Removes a client and all its memory.
    pub fn leave(&mut self, client: Client) {
        let Some(at) = self.index(client) else { return };
        let (_, memory) = self.clients.remove(at);
        for slot in &memory.slots {
            self.totals.count(slot, u64::saturating_sub);
        }
        self.out.retain(|order| order.client != client);
        self.advice.retain(|(whose, ..)| *whose != client);
        self.timeline.retain(|turn| turn.client != client);
        self.replan();
    }

    /// Notes the places of granules: new ones, and those that the driver moved. A granule on its
    /// way in stays so unless `place` is the device.
    pub fn placed(&mut self, client: Client, range: GranuleRange, place: GranulePlace) {
        let Some(at) = self.index(client) else { return };
        let memory = &mut self.clients[at].1;
        memory.note_allocation(range);
        if memory.add(range) {
            memory.index();
            self.choice.forget_plan();
        }
        for slot in self.clients[at].1.slots_of(range) {
            self.change(at, slot, |slot| {
                if slot.moving != Movement::In || place == GranulePlace::Device {
                    slot.copy &= slot.place == GranulePlace::Device && place == GranulePlace::Device;
                    slot.place = place;
                    slot.moving = Movement::No;
                }
            });
        }
        self.choice.rewind();
    }

    /// Notes granules that came by faults.
    pub fn faulted(&mut self, client: Client, range: GranuleRange) {
        let Some(at) = self.index(client) else { return };
        let memory = &mut self.clients[at].1;
        memory.stats.faulted += u64::from(range.count) * GRANULE;
        if memory.add(range) {
            memory.index();
            self.choice.forget_plan();
        }
        for slot in self.clients[at].1.slots_of(range) {
            self.change(at, slot, |slot| {
                slot.copy &= slot.place == GranulePlace::Device;
                slot.place = GranulePlace::Device;
                slot.moving = Movement::No;
            });
        }
        self.choice.note_arrival();
    }

    /// Notes freed granules.
    pub fn freed(&mut self, client: Client, range: GranuleRange) {
        let Some(at) = self.index(client) else { return };
        let memory = &mut self.clients[at].1;
        for slot in memory.slots_of(range) {
            self.totals.count(&memory.slots[slot], u64::saturating_sub);
        }
        memory.remove(range);
        memory.count_host();
        memory.index();
        self.replan();
    }

    /// Sets a client's uses in a period, and its position in it, ns.
    pub fn set_working_set(&mut self, client: Client, set: WorkingSet, position: Ns) {
        let options = self.options();
        let Some(at) = self.index(client) else { return };
        let memory = &mut self.clients[at].1;
        for slot in &memory.slots {
            self.totals.count(slot, u64::saturating_sub);
        }
        memory.set_working_set(set, options.whole_allocations);
        memory.position = position % memory.period;
        memory.ran = 0;
        for slot in &memory.slots {
            self.totals.count(slot, u64::wrapping_add);
        }
        memory.count_host();
        if options.read_duplication {
            self.advise(at);
        }
        self.replan();
    }

    fn advise(&mut self, at: usize) {
        let (client, memory) = &mut self.clients[at];
        let mut last: Option<(GranuleRange, bool)> = None;
        for (granule, slot) in memory.granules.iter().zip(&mut memory.slots) {
            if slot.advised == slot.unwritten {
                continue;
            }
            slot.advised = slot.unwritten;
            match &mut last {
                Some((range, advice)) if range.end() == *granule && *advice == slot.advised => range.count += 1,
                _ => {
                    let new = GranuleRange {
                        first: *granule,
                        count: 1,
                    };
                    if let Some((range, advice)) = last.replace((new, slot.advised)) {
                        self.advice.push((*client, range, advice));
                    }
                }
            }
        }
        if let Some((range, advice)) = last {
            self.advice.push((*client, range, advice));
        }
    }

    /// Pins a client: granules that it is known to use stay. For a foreground job that is not idle
    /// for long.
    pub fn pin(&mut self, client: Client, pinned: bool) {
        if let Some(at) = self.index(client)
            && self.clients[at].1.pinned != pinned
        {
            self.clients[at].1.pinned = pinned;
            self.replan();
        }
    }

    /// Sets the timeline: element 0 runs from now on, then element 1, and so on. Unknown clients
    /// are skipped.
    ///
    /// Call [`Planner::ran`] with the last client's time before.
    pub fn switch(&mut self, timeline: &[ResidencySlot]) {
        self.advance();
        let before = self.timeline.first().map(|turn| turn.client);
        self.timeline.clear();
        for turn in timeline {
            if let Some(at) = self.index(turn.client) {
                // From the start of its kernel in progress.
                let length = turn.length.saturating_add(self.clients[at].1.ran);
                self.timeline.push(ResidencySlot { length, ..*turn });
            }
        }
        let running = self.timeline.first().map(|turn| turn.client);
        if running != before
            && let Some(at) = running.and_then(|client| self.index(client))
        {
            let memory = &mut self.clients[at].1;
            memory.migration = std::mem::take(&mut memory.moved);
            memory.turn = std::mem::take(&mut memory.turned);
        }
        for (_, memory) in &mut self.clients {
            if self.choice.any_refused {
                memory.slots.iter_mut().for_each(|slot| slot.refused = false);
            }
        }
        self.choice.any_refused = false;
        self.plan();
    }

    /// Notes that the running client's turn is over in `left` ns by the clock at the latest. Its
    /// waits took own time from the timeline's length, so granules may go sooner.
    pub fn ends_in(&mut self, client: Client, left: Ns) {
        self.advance();
        if let Some(at) = self.index(client)
            && let Some(turn) = self.timeline.first_mut()
            && turn.client == client
        {
            // From the start of its kernel in progress.
            turn.length = turn.length.min(left.saturating_add(self.clients[at].1.ran));
        }
        self.plan();
    }

    /// Corrects a client's position, ns, from the next switch on.
    pub fn set_position(&mut self, client: Client, position: Ns) {
        if let Some(at) = self.index(client) {
            let memory = &mut self.clients[at].1;
            memory.position = position % memory.period.max(1);
            memory.ran = 0;
        }
    }

    /// Whether clients have more granules than the device holds.
    pub fn is_short(&self) -> bool {
        self.clients
            .iter()
            .map(|(_, memory)| memory.slots.len() as u64)
            .sum::<u64>()
            > self.config.capacity
    }

    /// Adds `by` ns to the running client's run time.
    pub fn ran(&mut self, client: Client, by: Ns) {
        let Some(at) = self.index(client) else { return };
        let memory = &mut self.clients[at].1;
        memory.ran = memory.ran.saturating_add(by);
        if self.choice.outrun(at, memory.ran) {
            self.replan();
        }
    }

    pub(super) fn replan(&mut self) {
        self.advance();
        self.plan();
    }

    /// Moves positions on by the run time, and shortens the present turn by it. A kernel in
    /// progress counts from its start: it needs its granules to its end.
    fn advance(&mut self) {
        let mut ran = 0;
        let running = self.timeline.first().map(|turn| turn.client);
        for (client, memory) in &mut self.clients {
            let by = memory.run_on();
            if by == 0 {
                continue;
            }
            ran += by;
            memory.ended = self.clock + ran;
            if running == Some(*client)
                && let Some(turn) = self.timeline.first_mut()
            {
                turn.length = turn.length.saturating_sub(by);
            }
        }
        self.clock += ran;
    }

    /// Changes one slot and the totals.
    pub(super) fn change(&mut self, client: usize, slot: usize, how: impl FnOnce(&mut GranuleState)) {
        let memory = &mut self.clients[client].1;
        let slot = &mut memory.slots[slot];
        self.totals.count(slot, u64::saturating_sub);
        let before = slot.on_host();
        how(slot);
        self.totals.count(slot, u64::wrapping_add);
        memory.host = (memory.host + slot.on_host()).saturating_sub(before);
    }

    /// Granules beyond the capacity, as faults do not request room.
    pub(super) fn beyond(&self) -> u64 {
        (self.totals.device + self.totals.arriving).saturating_sub(self.config.capacity)
    }

    /// Free granules that are not promised.
    pub(super) fn room(&self) -> u64 {
        self.config
            .capacity
            .saturating_sub(self.totals.device + self.totals.arriving)
    }

    /// Appends the orders that may begin now, in order.
    pub fn orders(&mut self, into: &mut Vec<PagingOrder>) {
        for (client, range, advice) in std::mem::take(&mut self.advice) {
            let id = self.number();
            into.push(PagingOrder {
                id,
                client,
                kind: OrderKind::Advise(advice),
                range,
            });
        }
        self.choose(into);
    }

    /// Numbers and remembers an order.
    pub(super) fn give(&mut self, client: Client, kind: OrderKind, range: GranuleRange, into: &mut Vec<PagingOrder>) {
        let order = PagingOrder {
            id: self.number(),
            client,
            kind,
            range,
        };
        self.out.push(order);
        into.push(order);
    }

    fn number(&mut self) -> OrderId {
        self.next_id += 1;
        OrderId(self.next_id)
    }

    /// Ends an order; ignores an unknown one.
    pub fn done(&mut self, id: OrderId, outcome: OrderStatus) {
        let Some(at) = self.out.iter().position(|order| order.id == id) else {
            return;
        };
        let order = self.out.swap_remove(at);
        let Some(at) = self.index(order.client) else { return };
        let duplicate = self.options().read_duplication;
        let (mut moved, mut refused) = (0, 0);
        for slot in self.clients[at].1.slots_of(order.range) {
            let room = self.config.host_limit > self.totals.host && !self.clients[at].1.host_is_full();
            self.change(at, slot, |slot| {
                let fits = match order.kind {
                    OrderKind::Prefetch | OrderKind::Populate => slot.moving == Movement::In,
                    OrderKind::Evict | OrderKind::Release => slot.moving == Movement::Out,
                    OrderKind::Discard => slot.moving == Movement::Dropped,
                    OrderKind::Advise(_) => false,
                };
                if !fits {
                    return;
                }
                slot.moving = Movement::No;
                if outcome == OrderStatus::Refused {
                    slot.refused = true;
                    refused += 1;
                    return;
                }
                moved += 1;
                match order.kind {
                    OrderKind::Prefetch => {
                        slot.copy = duplicate && slot.unwritten && slot.place == GranulePlace::Host && room;
                        slot.place = GranulePlace::Device;
                    }
                    OrderKind::Populate => {
                        slot.copy = false;
                        slot.place = GranulePlace::Device;
                    }
                    OrderKind::Evict | OrderKind::Release => {
                        slot.copy = false;
                        slot.place = GranulePlace::Host;
                    }
                    OrderKind::Discard => {
                        slot.copy = false;
                        slot.place = GranulePlace::Nowhere;
                    }
                    OrderKind::Advise(_) => {}
                }
            });
        }
        self.choice.any_refused |= refused > 0;
        if matches!(order.kind, OrderKind::Prefetch | OrderKind::Populate) {
            self.choice.note_arrival();
        } else {
            self.choice.note_departure();
        }
        let memory = &mut self.clients[at].1;
        let bytes = moved * GRANULE;
        memory.stats.refused += u64::from(refused > 0);
        match order.kind {
            OrderKind::Prefetch => {
                memory.stats.prefetched += bytes;
                memory.moved.inward += moved;
            }
            OrderKind::Evict => {
                memory.stats.evicted += bytes;
                memory.moved.outward += moved;
            }
            OrderKind::Release => memory.stats.released += bytes,
            OrderKind::Discard => memory.stats.discarded += bytes,
            OrderKind::Populate | OrderKind::Advise(_) => {}
        }
    }

    /// Whether the running client may start: always with pipelining, else once its turn's granules
    /// are there.
    pub fn may_start(&mut self, client: Client) -> bool {
        self.ready(client)
    }

    /// Whether this granule surely comes in this turn: a launch should wait rather than fault.
    pub fn promised(&self, client: Client, granule: u64) -> bool {
        let Some(at) = self.index(client) else { return false };
        let memory = &self.clients[at].1;
        let Some(slot) = memory.slot(granule) else { return false };
        match memory.slots[slot].moving {
            Movement::In => true,
            Movement::Out | Movement::Dropped => false,
            Movement::No => memory.slots[slot].place != GranulePlace::Device && self.intends(at, slot),
        }
    }

    /// Whether this granule is on the device, as far as known.
    pub fn is_there(&self, client: Client, granule: u64) -> bool {
        self.index(client).is_some_and(|at| {
            let memory = &self.clients[at].1;
            memory
                .slot(granule)
                .is_some_and(|slot| memory.slots[slot].place == GranulePlace::Device)
        })
    }

    /// Granules that these clients use together.
    pub fn needs(&self, clients: &[Client]) -> u64 {
        let known = clients.iter().filter_map(|client| self.index(*client));
        known.map(|at| self.clients[at].1.used).sum()
    }

    /// Migration of a round of turns of `length` ns: `max(expected, last round's part)`.
    pub fn round(&self, length: Ns) -> Round {
        self.round_of(length, |moved| moved)
    }

    fn round_of(&self, length: Ns, weighed: impl Fn(u64) -> u64) -> Round {
        let mut clients: Vec<Client> = self.timeline.iter().map(|turn| turn.client).collect();
        clients.sort_unstable();
        clients.dedup();
        let all = self.needs(&clients);
        let members: Vec<(&ClientMemory, u64)> = clients
            .into_iter()
            .filter_map(|client| Some(&self.clients[self.index(client)?].1))
            .map(|memory| (memory, memory.used_in(length)))
            .collect();
        let in_turns: u64 = members.iter().map(|(_, used)| used).sum();
        let others = (members.len() as u64).saturating_sub(1).max(1);
        let mut round = Round::default();
        for (memory, used) in members {
            let next = (in_turns - used) / others;
            let last = |moved: u64| weighed(part(moved, length.min(memory.turn), memory.turn));
            let expected = self.expected(memory, all, used, 0);
            let least = Migration {
                inward: last(memory.migration.inward).max(expected.inward),
                outward: last(memory.migration.outward).max(expected.outward),
            };
            let ahead = self.expected(memory, all, used, next);
            let late = (used + next).saturating_sub(self.config.capacity).min(least.inward);
            round.least.push(least);
            round.ahead.push(Migration {
                inward: ahead.inward.max(least.inward),
                outward: ahead.outward.max(least.outward),
            });
            round.late.push(Migration {
                inward: late,
                outward: part(least.outward, late, least.inward),
            });
            round.last_uses += memory.period.min(length);
        }
        round
    }

    /// Expected migration of a turn that uses `used` granules, while `next` granules of the next
    /// turn are held at the same time.
    ///
    /// `missing = used * (1 - left / others)`: while a client runs, `left` granules of room are
    /// left to the sets of all others but the next one. It is negative if not even these two
    /// fit. Unwritten granules leave without a copy. From MSched's figures (arXiv 2512.24637).
    fn expected(&self, memory: &ClientMemory, all: u64, used: u64, next: u64) -> Migration {
        let others = all.saturating_sub(used + next);
        let missing = |of: u64| -> u64 {
            let of = part(of, used, memory.used);
            if others == 0 {
                return if next == 0 { 0 } else { of };
            }
            let left = (i128::from(self.config.capacity) - i128::from(used + next)).min(i128::from(others));
            (i128::from(of) * (i128::from(others) - left) / i128::from(others)) as u64
        };
        let duplicate = self.options().read_duplication;
        Migration {
            inward: missing(memory.used),
            outward: missing(if duplicate { memory.written } else { memory.used }),
        }
    }

    /// Turns for the expected migration: see [`fn@turns`].
    pub fn turns(&self, rule: &TurnRule) -> TurnPlan {
        let overlap = self.options().overlap;
        // An idle link moves more than it must. So the last round counts only far above the
        // expectation, for example if granules came several times.
        let sure = |length| self.round_of(length, |moved| moved / 2);
        turns(&self.config.link, overlap, rule, &self.round(Ns::MAX), sure)
    }

    /// Granules on the device and on their way to it.
    pub fn taken(&self) -> u64 {
        self.totals.device + self.totals.arriving
    }

    /// Granules of host memory that are taken.
    pub fn on_host(&self) -> u64 {
        self.totals.host
    }

    /// Statistics of each client.
    pub fn rows(&self) -> Vec<PagingStats> {
        let count = |memory: &ClientMemory, what: fn(&GranuleState) -> bool| {
            GRANULE * memory.slots.iter().filter(|slot| what(slot)).count() as u64
        };
        self.clients
            .iter()
            .map(|(client, memory)| PagingStats {
                client: Some(*client),
                allocated: memory.slots.len() as u64 * GRANULE,
                working_set: memory.used * GRANULE,
                resident: count(memory, |slot| slot.place == GranulePlace::Device),
                arriving: count(memory, |slot| slot.moving == Movement::In),
                leaving: count(memory, |slot| matches!(slot.moving, Movement::Out | Movement::Dropped)),
                ..memory.stats
            })
            .collect()
    }

    /// Recounts the totals from the slots.
    #[cfg(test)]
    pub(super) fn recounted(&self) -> Totals {
        let mut totals = Totals::default();
        for (_, memory) in &self.clients {
            let host = memory.slots.iter().map(GranuleState::on_host).sum::<u64>();
            assert_eq!(memory.host, host, "each client's part of the host");
            memory
                .slots
                .iter()
                .for_each(|slot| totals.count(slot, u64::wrapping_add));
        }
        totals
    }

    #[cfg(test)]
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }
}
