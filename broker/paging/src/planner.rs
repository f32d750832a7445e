//! The planner: what was told, and the books of what was ordered. The choice of what to move is in
//! `choice`.
#![forbid(unsafe_code)]

use super::{
    Config, GRANULE, Link, Migration, Options, Order, OrderId, Outcome, Place, Range, Row, Turn, What, WorkingSet,
    choice::Choice,
    held::{Held, Moving, Slot},
    slice,
};
use weft_protocol::{Client, Ns};

/// Sums over all granules of all clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// On the device, those that are leaving among them.
    pub device: u64,
    /// On the way to it.
    pub arriving: u64,
    /// On the way off it.
    pub leaving: u64,
    /// Of those, what is copied.
    pub copying_out: u64,
    /// On the host.
    pub host: u64,
}

impl Totals {
    fn count(&mut self, slot: &Slot, by: impl Fn(u64, u64) -> u64) {
        let device = slot.place == Place::Device;
        let leaving = matches!(slot.moving, Moving::Out | Moving::Dropped);
        let one = |sum: &mut u64, what: bool| *sum = by(*sum, u64::from(what));
        one(&mut self.device, device);
        one(&mut self.arriving, slot.moving == Moving::In);
        one(&mut self.leaving, leaving);
        one(&mut self.copying_out, slot.moving == Moving::Out && !slot.copy);
        self.host = by(self.host, slot.on_host());
    }
}

/// So many parts of a whole, rounded down; nothing of nothing.
fn part(of: u64, parts: u64, whole: u64) -> u64 {
    match whole {
        0 => 0,
        whole => (u128::from(of) * u128::from(parts) / u128::from(whole)) as u64,
    }
}

/// Plans what memory lies on the device. See the module's documentation for how it is driven.
#[derive(Debug)]
pub struct Planner {
    pub(super) config: Config,
    /// By client.
    pub(super) clients: Vec<(Client, Held)>,
    pub(super) timeline: Vec<Turn>,
    pub(super) totals: Totals,
    pub(super) choice: Choice,
    /// Orders that are out.
    out: Vec<Order>,
    advice: Vec<(Client, Range, bool)>,
    next_id: u64,
    /// The time that all clients ran together, up to the last switch.
    pub(super) clock: Ns,
}

impl Planner {
    /// With no client.
    pub fn new(config: Config) -> Planner {
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

    /// Plans with so many granules less from now on.
    pub fn leave_free(&mut self, granules: u64) {
        self.config.capacity = self.config.capacity.saturating_sub(granules);
        self.replan();
    }

    /// Of the host so many granules may be taken from now on. What lies there stays.
    pub fn host_may_take(&mut self, granules: u64) {
        self.config.host_limit = granules;
    }

    /// Of the host so many granules of this client may lie there at most; `None`: as many as of all
    /// together. What lies there stays.
    pub fn client_may_take(&mut self, client: Client, granules: Option<u64>) {
        if let Some(at) = self.index(client) {
            self.clients[at].1.host_limit = granules;
        }
    }

    /// Granules of the host that a client's take.
    pub fn on_host_of(&self, client: Client) -> u64 {
        self.index(client).map_or(0, |at| self.clients[at].1.host)
    }

    /// What the link carries, as is known now. Whether it carries both ways at once stays as it
    /// was.
    pub fn carries(&mut self, link: Link) {
        self.config.link = Link {
            duplex: self.config.link.duplex,
            ..link
        };
    }

    /// What it is set to.
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn options(&self) -> Options {
        self.config.options
    }

    pub(super) fn index(&self, client: Client) -> Option<usize> {
        self.clients.binary_search_by_key(&client, |(known, _)| *known).ok()
    }

    /// A client that has nothing yet. One that is there already is left as it is.
    pub fn join(&mut self, client: Client) {
        if let Err(at) = self.clients.binary_search_by_key(&client, |(known, _)| *known) {
            self.clients.insert(at, (client, Held::default()));
            self.replan();
        }
    }

    /// A client is gone and all its memory with it.
    pub fn leave(&mut self, client: Client) {
        let Some(at) = self.index(client) else { return };
        let (_, held) = self.clients.remove(at);
        for slot in &held.slots {
            self.totals.count(slot, u64::saturating_sub);
        }
        self.out.retain(|order| order.client != client);
        self.advice.retain(|(whose, ..)| *whose != client);
        self.timeline.retain(|turn| turn.client != client);
        self.replan();
    }

    /// Says where granules lie: newly allocated ones, and those that the driver moved by itself.
    /// What is on its way in stays on its way, unless it is said to have arrived.
    pub fn placed(&mut self, client: Client, range: Range, place: Place) {
        let Some(at) = self.index(client) else { return };
        let held = &mut self.clients[at].1;
        held.note_allocation(range);
        if held.add(range) {
            held.index();
            self.choice.forget_plan();
        }
        for slot in self.clients[at].1.slots_of(range) {
            self.change(at, slot, |slot| {
                if slot.moving != Moving::In || place == Place::Device {
                    slot.copy &= slot.place == Place::Device && place == Place::Device;
                    slot.place = place;
                    slot.moving = Moving::No;
                }
            });
        }
        self.choice.rewind();
    }

    /// Granules came to the device by faults.
    pub fn faulted(&mut self, client: Client, range: Range) {
        let Some(at) = self.index(client) else { return };
        let held = &mut self.clients[at].1;
        held.row.faulted += u64::from(range.count) * GRANULE;
        if held.add(range) {
            held.index();
            self.choice.forget_plan();
        }
        for slot in self.clients[at].1.slots_of(range) {
            self.change(at, slot, |slot| {
                slot.copy &= slot.place == Place::Device;
                slot.place = Place::Device;
                slot.moving = Moving::No;
            });
        }
        self.choice.something_came();
    }

    /// Granules were freed.
    pub fn freed(&mut self, client: Client, range: Range) {
        let Some(at) = self.index(client) else { return };
        let held = &mut self.clients[at].1;
        for slot in held.slots_of(range) {
            self.totals.count(&held.slots[slot], u64::saturating_sub);
        }
        held.remove(range);
        held.count_host();
        held.index();
        self.replan();
    }

    /// What a client touches, from the begin of its period on. `position` is how far in it is.
    pub fn learn(&mut self, client: Client, set: WorkingSet, position: Ns) {
        let options = self.options();
        let Some(at) = self.index(client) else { return };
        let held = &mut self.clients[at].1;
        // What writes a granule for the first time makes its copy on the host stale, and the sum
        // changes with it.
        for slot in &held.slots {
            self.totals.count(slot, u64::saturating_sub);
        }
        held.learn(set, options.whole_allocations);
        held.position = position % held.period;
        held.ran = 0;
        for slot in &held.slots {
            self.totals.count(slot, u64::wrapping_add);
        }
        held.count_host();
        if options.read_duplication {
            self.advise(at);
        }
        self.replan();
    }

    fn advise(&mut self, at: usize) {
        let (client, held) = &mut self.clients[at];
        let mut last: Option<(Range, bool)> = None;
        for (granule, slot) in held.granules.iter().zip(&mut held.slots) {
            if slot.advised == slot.unwritten {
                continue;
            }
            slot.advised = slot.unwritten;
            match &mut last {
                Some((range, advice)) if range.end() == *granule && *advice == slot.advised => range.count += 1,
                _ => {
                    let new = Range {
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

    /// What a pinned client is known to use is not evicted: the foreground job's, unless it is idle
    /// for long.
    pub fn pin(&mut self, client: Client, pinned: bool) {
        if let Some(at) = self.index(client)
            && self.clients[at].1.pinned != pinned
        {
            self.clients[at].1.pinned = pinned;
            self.replan();
        }
    }

    /// The timeline: element 0 runs from now on, then element 1, and so on. Where the client that
    /// ran until now stands was told by [`Planner::ran`]. Turns of clients that never joined are
    /// passed over.
    pub fn switch(&mut self, timeline: &[Turn]) {
        self.advance();
        let before = self.timeline.first().map(|turn| turn.client);
        self.timeline.clear();
        for turn in timeline {
            if let Some(at) = self.index(turn.client) {
                // From the begin of the kernel that its last turn ended in.
                let length = turn.length.saturating_add(self.clients[at].1.ran);
                self.timeline.push(Turn { length, ..*turn });
            }
        }
        let running = self.timeline.first().map(|turn| turn.client);
        if running != before
            && let Some(at) = running.and_then(|client| self.index(client))
        {
            let held = &mut self.clients[at].1;
            held.migration = std::mem::take(&mut held.moved);
            held.turn = std::mem::take(&mut held.turned);
        }
        for (_, held) in &mut self.clients {
            if self.choice.any_refused {
                held.slots.iter_mut().for_each(|slot| slot.refused = false);
            }
        }
        self.choice.any_refused = false;
        self.plan();
    }

    /// Where in its period a client stands, if the last word of it was wrong. It counts from the
    /// next switch on.
    pub fn stands(&mut self, client: Client, position: Ns) {
        if let Some(at) = self.index(client) {
            let held = &mut self.clients[at].1;
            held.position = position % held.period.max(1);
            held.ran = 0;
        }
    }

    /// Whether clients have more than the device holds.
    pub fn is_short(&self) -> bool {
        self.clients
            .iter()
            .map(|(_, held)| held.slots.len() as u64)
            .sum::<u64>()
            > self.config.capacity
    }

    /// The running client has spent so much more of its own time.
    pub fn ran(&mut self, client: Client, by: Ns) {
        let Some(at) = self.index(client) else { return };
        let held = &mut self.clients[at].1;
        held.ran = held.ran.saturating_add(by);
        if self.choice.outrun(at, held.ran) {
            self.replan();
        }
    }

    /// Starts the choice anew, from where everybody stands.
    pub(super) fn replan(&mut self) {
        self.advance();
        self.plan();
    }

    /// Moves everybody's position on by what it ran, and shortens the present turn by it: to the
    /// begin of the kernel in progress, which needs its granules to its end.
    fn advance(&mut self) {
        let mut ran = 0;
        let running = self.timeline.first().map(|turn| turn.client);
        for (client, held) in &mut self.clients {
            let by = held.run_on();
            if by == 0 {
                continue;
            }
            ran += by;
            held.ended = self.clock + ran;
            if running == Some(*client)
                && let Some(turn) = self.timeline.first_mut()
            {
                turn.length = turn.length.saturating_sub(by);
            }
        }
        self.clock += ran;
    }

    /// Books one slot anew.
    pub(super) fn change(&mut self, client: usize, slot: usize, how: impl FnOnce(&mut Slot)) {
        let held = &mut self.clients[client].1;
        let slot = &mut held.slots[slot];
        self.totals.count(slot, u64::saturating_sub);
        let before = slot.on_host();
        how(slot);
        self.totals.count(slot, u64::wrapping_add);
        held.host = (held.host + slot.on_host()).saturating_sub(before);
    }

    /// Granules beyond the capacity that lie on the device or are on their way to it: faults ask
    /// nobody.
    pub(super) fn beyond(&self) -> u64 {
        (self.totals.device + self.totals.arriving).saturating_sub(self.config.capacity)
    }

    /// Granules of the device that nothing lies in and nothing is on its way to.
    pub(super) fn room(&self) -> u64 {
        self.config
            .capacity
            .saturating_sub(self.totals.device + self.totals.arriving)
    }

    /// What is to be done now, in this order, appended to `into`.
    pub fn orders(&mut self, into: &mut Vec<Order>) {
        for (client, range, advice) in std::mem::take(&mut self.advice) {
            let id = self.number();
            into.push(Order {
                id,
                client,
                what: What::Advise(advice),
                range,
            });
        }
        self.choose(into);
    }

    /// Orders have changed the books already; this numbers one and remembers it.
    pub(super) fn give(&mut self, client: Client, what: What, range: Range, into: &mut Vec<Order>) {
        let order = Order {
            id: self.number(),
            client,
            what,
            range,
        };
        self.out.push(order);
        into.push(order);
    }

    fn number(&mut self) -> OrderId {
        self.next_id += 1;
        OrderId(self.next_id)
    }

    /// An order has ended. One that is not out is ignored.
    pub fn done(&mut self, id: OrderId, outcome: Outcome) {
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
                let fits = match order.what {
                    What::Prefetch | What::Populate => slot.moving == Moving::In,
                    What::Evict | What::Release => slot.moving == Moving::Out,
                    What::Discard => slot.moving == Moving::Dropped,
                    What::Advise(_) => false,
                };
                if !fits {
                    return;
                }
                slot.moving = Moving::No;
                if outcome == Outcome::Refused {
                    slot.refused = true;
                    refused += 1;
                    return;
                }
                moved += 1;
                match order.what {
                    What::Prefetch => {
                        slot.copy = duplicate && slot.unwritten && slot.place == Place::Host && room;
                        slot.place = Place::Device;
                    }
                    What::Populate => {
                        slot.copy = false;
                        slot.place = Place::Device;
                    }
                    What::Evict | What::Release => {
                        slot.copy = false;
                        slot.place = Place::Host;
                    }
                    What::Discard => {
                        slot.copy = false;
                        slot.place = Place::Nowhere;
                    }
                    What::Advise(_) => {}
                }
            });
        }
        self.choice.any_refused |= refused > 0;
        if matches!(order.what, What::Prefetch | What::Populate) {
            self.choice.something_came();
        } else {
            self.choice.something_left();
        }
        let held = &mut self.clients[at].1;
        let bytes = moved * GRANULE;
        held.row.refused += u64::from(refused > 0);
        match order.what {
            What::Prefetch => {
                held.row.prefetched += bytes;
                held.moved.inward += moved;
            }
            What::Evict => {
                held.row.evicted += bytes;
                held.moved.outward += moved;
            }
            What::Release => held.row.released += bytes,
            What::Discard => held.row.discarded += bytes,
            What::Populate | What::Advise(_) => {}
        }
    }

    /// Whether the running client may start its turn: always with pipelining, else when everything
    /// that it needs in the turn is there.
    pub fn may_start(&mut self, client: Client) -> bool {
        self.ready(client)
    }

    /// Whether this granule is, or will be without anybody's doing, on its way to the device in
    /// this turn: a launch that needs it had better wait than fault.
    pub fn promised(&self, client: Client, granule: u64) -> bool {
        let Some(at) = self.index(client) else { return false };
        let held = &self.clients[at].1;
        let Some(slot) = held.slot(granule) else { return false };
        match held.slots[slot].moving {
            Moving::In => true,
            Moving::Out | Moving::Dropped => false,
            Moving::No => held.slots[slot].place != Place::Device && self.intends(at, slot),
        }
    }

    /// Whether the planner believes that this granule is on the device.
    pub fn is_there(&self, client: Client, granule: u64) -> bool {
        self.index(client).is_some_and(|at| {
            let held = &self.clients[at].1;
            held.slot(granule)
                .is_some_and(|slot| held.slots[slot].place == Place::Device)
        })
    }

    /// Granules that these clients are known to use, all together.
    pub fn needs(&self, clients: &[Client]) -> u64 {
        let known = clients.iter().filter_map(|client| self.index(*client));
        known.map(|at| self.clients[at].1.used).sum()
    }

    /// What each client of the timeline moves in a round of turns of this length: what it moved in
    /// the last one, of which a shorter turn moves its part, and no less than is to be expected.
    pub fn migrations(&self, length: Ns) -> Vec<Migration> {
        self.migrations_of(length, |moved| moved)
    }

    /// As [`Planner::migrations`], the last round's weighed.
    fn migrations_of(&self, length: Ns, weighed: impl Fn(u64) -> u64) -> Vec<Migration> {
        let mut clients: Vec<Client> = self.timeline.iter().map(|turn| turn.client).collect();
        clients.sort_unstable();
        clients.dedup();
        let all = self.needs(&clients);
        clients
            .into_iter()
            .filter_map(|client| Some(&self.clients[self.index(client)?].1))
            .map(|held| {
                let expected = self.expected(held, all, length);
                let last = |moved: u64| weighed(part(moved, length.min(held.turn), held.turn));
                Migration {
                    inward: last(held.migration.inward).max(expected.inward),
                    outward: last(held.migration.outward).max(expected.outward),
                }
            })
            .collect()
    }

    /// Of what a client uses in a turn of this length, what is not on the device when its turn
    /// comes: while it ran last, it left the others' sets room for a part of them, and so they for
    /// its own (`facts/papers.md` section 2.4, the derived model). What nobody writes leaves
    /// without a copy.
    fn expected(&self, held: &Held, all: u64, length: Ns) -> Migration {
        let others = all.saturating_sub(held.used);
        let left = self.config.capacity.saturating_sub(held.used).min(others);
        let used = held.used_in(length);
        let missing = |of: u64| part(part(of, others - left, others), used, held.used);
        let kept = self.options().read_duplication;
        Migration {
            inward: missing(held.used),
            outward: missing(if kept { held.written } else { held.used }),
        }
    }

    /// How long turns should be for what they move: see [`slice`].
    pub fn slice(&self, efficiency: f64, least: Ns, away: Ns) -> Ns {
        let overlap = self.options().overlap;
        // Where the link has time it moves more than must be, so that the last round says what is
        // sure to be moved only where it is far beyond what is to be expected (what came in several
        // times, say).
        let sure = |length| self.migrations_of(length, |moved| moved / 2);
        let whole = self.migrations(Ns::MAX);
        slice(&self.config.link, overlap, &whole, sure, efficiency, least, away)
    }

    /// Granules on the device and on their way to it; never more than the capacity by the planner's
    /// own doing.
    pub fn taken(&self) -> u64 {
        self.totals.device + self.totals.arriving
    }

    /// Granules of host memory that are taken.
    pub fn on_host(&self) -> u64 {
        self.totals.host
    }

    /// What is shown of each client.
    pub fn rows(&self) -> Vec<Row> {
        let count =
            |held: &Held, what: fn(&Slot) -> bool| GRANULE * held.slots.iter().filter(|slot| what(slot)).count() as u64;
        self.clients
            .iter()
            .map(|(client, held)| Row {
                client: Some(*client),
                allocated: held.slots.len() as u64 * GRANULE,
                working_set: held.used * GRANULE,
                resident: count(held, |slot| slot.place == Place::Device),
                arriving: count(held, |slot| slot.moving == Moving::In),
                leaving: count(held, |slot| matches!(slot.moving, Moving::Out | Moving::Dropped)),
                ..held.row
            })
            .collect()
    }

    /// Checks the books against the slots: for tests.
    #[cfg(test)]
    pub(super) fn recounted(&self) -> Totals {
        let mut totals = Totals::default();
        for (_, held) in &self.clients {
            let host = held.slots.iter().map(Slot::on_host).sum::<u64>();
            assert_eq!(held.host, host, "each client's part of the host");
            held.slots.iter().for_each(|slot| totals.count(slot, u64::wrapping_add));
        }
        totals
    }

    /// The totals as they are kept.
    #[cfg(test)]
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }
}
