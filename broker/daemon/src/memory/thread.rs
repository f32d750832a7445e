// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread's loop: takes messages, runs the planner, sends its orders to clients.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use super::client::{ManagedClient, Out};
use super::granules::{confirms, granules, joined, page_op};
use super::link_rates::{LinkRates, MoveDirection};
use super::residency::Residency;
use super::room::{config, holds, link};
use super::turns::Turns;
use super::{MemoryMessage, MemorySettings, WAIT_RATIO};
use crate::base::clock;
use crate::base::trace::{MemoryFigures, Trace};
use crate::scheduler_mailbox::{Notice, SchedulerHandle};
use weft_paging::{
    GRANULE, GranulePlace, GranuleRange, NEAREST_END_NS, OrderKind, OrderStatus, PagingOrder, Planner, ResidencySlot,
    TurnRule,
};
use weft_protocol::Ns;
use weft_protocol::host;
use weft_protocol::page_ops::{self, PageOpEnd};
use weft_scheduler::Client;

/// Interval of checks while page operations are under way: the duration of the shortest one.
const LOOK: Duration = Duration::from_micros(500);

/// Interval while jobs take turns. Memory that the running job will not use again in its turn may
/// be evicted, a granule in 0.1 ms.
const WATCH: Duration = Duration::from_millis(2);

/// Interval without page operations under way.
const REST: Duration = Duration::from_millis(250);

/// Longest page operation before it is given up: a full lane of them takes some 20 ms.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Time for which a client gets no page operations after some were given up.
pub(super) const PENANCE: Duration = Duration::from_secs(5);

/// Most devices whose rates are kept.
const LINKS: usize = 64;

/// Interval at which the whole known memory of an active client without a period counts as touched:
/// that of its reports.
const ROUND: Duration = Duration::from_millis(500);

/// Interval between reads of the host's spare memory, from a few small files.
pub(super) const SURVEY: Duration = Duration::from_secs(1);

/// Interval of trace lines about a client's memory: fine enough for a turn of a tenth of a second.
const DRAWN: Duration = Duration::from_millis(20);

const LARGEST_DEVICE_BYTES: u64 = 1 << 40;

/// Assumed size of a device if none was reported, bytes.
const UNKNOWN_DEVICE_BYTES: u64 = 192 << 30;

/// Bound on all of a guest's managed ranges together, as a multiple of device + host.
const TIMES_OF_A_GUEST: u64 = 2;

/// Bound on a guest's kept forecast uses: those of sixteen clients.
const USES_OF_A_GUEST: usize = 1 << 18;

/// Bound on a client's kept ranges. Further ones move on demand.
const RANGES: usize = 65_536;

/// The thread's state. See the module above.
pub(super) struct MemoryThread {
    settings: MemorySettings,
    trace: Trace,
    /// Time of the last trace of memory.
    traced: Instant,
    to_scheduler: Option<SchedulerHandle>,
    pub turns: Turns,
    pub planner: Option<Planner>,
    /// The planned device: the first that a managed client uses.
    device: Option<String>,
    pub clients: BTreeMap<u64, ManagedClient>,
    running: Option<(u64, Instant)>,
    /// Time until the running client first made progress in its period, ns.
    got_on: Option<Ns>,
    /// Time at which the planner last got a timeline.
    switched: Instant,
    /// Remaining length of the turn in the last report to the planner, ns.
    announced: Ns,
    /// Host memory, bytes.
    pub host: u64,
    /// Memory that the planner's capacity leaves free: number of contexts, unmanaged bytes.
    beside: (usize, u64),
    orders: Vec<PagingOrder>,
    /// Time at which the host's spare memory was last read.
    surveyed: Instant,
    pub residency: Residency,
    /// Rates of links by device.
    links: HashMap<String, LinkRates>,
}

impl MemoryThread {
    pub fn new(settings: MemorySettings, trace: Trace) -> MemoryThread {
        MemoryThread {
            settings,
            trace,
            traced: Instant::now(),
            to_scheduler: None,
            turns: Turns::new(TurnRule::new(settings.max_swapped_out, settings.swapped_out_limit)),
            switched: Instant::now(),
            announced: 0,
            planner: None,
            device: None,
            clients: BTreeMap::new(),
            running: None,
            got_on: None,
            host: host::total(),
            beside: (0, 0),
            orders: Vec::new(),
            surveyed: Instant::now(),
            residency: Residency::default(),
            links: HashMap::new(),
        }
    }

    pub fn run(mut self, incoming: &Receiver<MemoryMessage>) {
        loop {
            let busy = self.clients.values().any(|known| !known.out.is_empty());
            let watch = self.planner.as_ref().is_some_and(Planner::is_short);
            let rest = if watch { WATCH } else { REST };
            match incoming.recv_timeout(if busy { LOOK } else { rest }) {
                Ok(MemoryMessage::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(tell) => {
                    self.take(tell);
                    // All waiting messages count as one change.
                    while let Ok(tell) = incoming.try_recv() {
                        if matches!(tell, MemoryMessage::Stop) {
                            return;
                        }
                        self.take(tell);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.learn();
            self.progress();
            self.share(Instant::now());
            self.announce_end(Instant::now());
            let positions = self.positions();
            self.hear();
            self.touches(positions, Instant::now());
            self.limit();
            self.order();
            self.show();
            self.draw();
            self.survey(Instant::now());
        }
    }

    pub fn take(&mut self, tell: MemoryMessage) {
        match tell {
            MemoryMessage::Scheduler(to_scheduler) => self.to_scheduler = Some(to_scheduler),
            MemoryMessage::Joined(entry) => {
                self.clients.insert(entry.client, ManagedClient::new(entry));
            }
            MemoryMessage::Left(client) => self.left(client),
            MemoryMessage::Device(client, uuid, bytes) => self.uses_device(client, uuid, bytes),
            MemoryMessage::Backed(client, start, bytes) => self.backed(client, start, bytes),
            MemoryMessage::Forecast {
                client,
                number,
                period,
                mut uses,
                ends,
            } => {
                uses.truncate(self.uses_left(client));
                if let Some(known) = self.clients.get_mut(&client) {
                    known.dirty |= known.forecast.take(number, period, uses, ends);
                }
            }
            MemoryMessage::Touched(client, starts) => {
                if let Some(known) = self.clients.get_mut(&client) {
                    known.touched(starts);
                }
            }
            MemoryMessage::Unbacked(client, start) => self.unbacked(client, start),
            MemoryMessage::Runs(client) => self.runs(client),
            MemoryMessage::Holds(client, holds) => {
                if let Some(known) = self.clients.get_mut(&client) {
                    known.pinned = holds;
                    if holds {
                        known.active_at = Instant::now();
                    }
                    if let Some(planner) = &mut self.planner {
                        planner.pin(Client(client), holds);
                    }
                }
                if holds {
                    self.runs(client);
                }
            }
            MemoryMessage::Stop => {}
        }
    }

    fn left(&mut self, client: u64) {
        self.clients.remove(&client);
        self.residency.left(client);
        self.turns.forget(client);
        if let Some(planner) = &mut self.planner {
            planner.leave(Client(client));
        }
        if self.running.is_some_and(|(running, _)| running == client) {
            self.running = None;
        }
        let managed = self.clients.values().any(|known| !known.ranges.is_empty());
        if !managed {
            // The next managed client may use another device, or find more or less free memory.
            (self.planner, self.device, self.running) = (None, None, None);
        }
    }

    fn unbacked(&mut self, client: u64, start: u64) {
        let Some(known) = self.clients.get_mut(&client) else {
            return;
        };
        let Some((bytes, _)) = known.ranges.remove(&start) else {
            return;
        };
        known.dirty = true;
        known.granules -= count(start, bytes);
        let gone = granules(start, bytes);
        // Granules at the ends may be shared with other ranges.
        let taken = |granule: u64| {
            let (from, to) = (granule * GRANULE, (granule + 1) * GRANULE);
            let before = known.ranges.range(..to).next_back();
            before.is_some_and(|(start, (bytes, _))| start + bytes > from)
        };
        let mut first = gone.first;
        let mut end = gone.end();
        if first < end && taken(first) {
            first += 1;
        }
        if first < end && taken(end - 1) {
            end -= 1;
        }
        for granule in first..end {
            known.told.remove(&granule);
        }
        self.residency.gone(client, first..end);
        if let (Some(planner), Ok(count)) = (&mut self.planner, u32::try_from(end.saturating_sub(first))) {
            planner.freed(Client(client), GranuleRange { first, count });
        }
    }

    /// Gives the device to a client.
    fn runs(&mut self, client: u64) {
        let now = Instant::now();
        if self.running.is_some_and(|(running, _)| running == client) {
            return;
        }
        if self.clients.get(&client).is_none_or(|known| known.ranges.is_empty()) {
            return;
        }
        self.progress();
        if let (Some(planner), Some((before, since))) = (&mut self.planner, self.running)
            && self.clients.get(&before).is_none_or(|known| !known.forecast.is_there())
        {
            planner.ran(Client(before), (now - since).as_nanos() as Ns);
        }
        if let Some((before, since)) = self.running {
            let first = self.got_on.take().unwrap_or(0);
            self.turns.took(before, (now - since).as_nanos() as Ns, first);
            if let Some(before) = self.clients.get_mut(&before) {
                before.ran_at = Some(now);
            }
        }
        if self.turns.of(client).is_some()
            && let Some(known) = self.clients.get(&client)
        {
            known.entry.figures.turns.fetch_add(1, Ordering::Relaxed);
        }
        self.running = Some((client, now));
        if let (Some(planner), Some(known)) = (&mut self.planner, self.clients.get_mut(&client))
            && let Some(at) = known.forecast.position(&known.entry.lane.page_ops)
        {
            known.forecast.stands(at, now);
            planner.set_position(Client(client), at);
            if planner.is_short() {
                let there = |granule| planner.is_there(Client(client), granule);
                known.confirms = confirms(known.forecast.granules_from(at), there);
            }
        }
        self.switch();
        if let Some(planner) = self.planner.as_ref().filter(|_| self.turns.is_short()) {
            self.turns.measure(planner);
        }
    }

    /// Reports the running client's progress to the planner.
    fn progress(&mut self) {
        let (Some(planner), Some((running, since))) = (&mut self.planner, self.running) else {
            return;
        };
        if let Some(known) = self.clients.get_mut(&running)
            && let Some(at) = known.forecast.position(&known.entry.lane.page_ops)
        {
            let ran = known.forecast.progress(at, Instant::now());
            if ran > 0 {
                self.got_on.get_or_insert_with(|| since.elapsed().as_nanos() as Ns);
                planner.ran(Client(running), ran);
            }
        }
    }

    /// Gives the planner a timeline: the running client, foreground jobs (they may run again at any
    /// time), then the longest waiting. While jobs take turns, it has only active clients.
    fn switch(&mut self) {
        let Some(planner) = &mut self.planner else { return };
        let Some((running, _)) = self.running else { return };
        let short = self.turns.is_short();
        let takes_part = |client: &u64, known: &ManagedClient| {
            !known.ranges.is_empty()
                && (*client == running || !short || known.pinned || self.turns.of(*client).is_some())
        };
        let mut order: Vec<(u64, &ManagedClient)> = self
            .clients
            .iter()
            .filter(|(client, known)| takes_part(client, known))
            .map(|(client, known)| (*client, known))
            .collect();
        order.sort_by_key(|(client, known)| {
            let later = (!known.pinned, known.ran_at, *client < running, *client);
            (*client != running, later)
        });
        let length = |client| self.turns.of(client).unwrap_or(self.settings.turn);
        let timeline: Vec<ResidencySlot> = order
            .into_iter()
            .map(|(client, _)| ResidencySlot {
                client: Client(client),
                length: length(client),
            })
            .collect();
        self.announced = timeline.first().map_or(0, |turn| turn.length);
        planner.switch(&timeline);
        self.switched = Instant::now();
    }

    /// Reports the end of a turn to the planner, each time that half of the reported rest has
    /// passed. The clock decides, because a client's own progress excludes its waits.
    fn announce_end(&mut self, now: Instant) {
        let turn = self
            .running
            .and_then(|(running, _)| Some((running, self.turns.of(running)?)));
        let (Some(planner), Some((running, length))) = (&mut self.planner, turn) else {
            return;
        };
        let passed = now.saturating_duration_since(self.switched).as_nanos() as Ns;
        let left = length.saturating_sub(passed);
        if left <= self.announced / 2 && left >= NEAREST_END_NS {
            self.announced = left;
            planner.ends_in(Client(running), left);
        }
    }

    /// Finds active clients, whether they fit together, and the end of a turn. Sends changes to the
    /// scheduler.
    pub fn share(&mut self, now: Instant) {
        let mut active = Vec::new();
        for (client, known) in &mut self.clients {
            known.look(now);
            let is_active = known.is_active(now);
            if let Some(planner) = &mut self.planner {
                // The memory of a client that is idle for long may be evicted for others.
                planner.pin(Client(*client), known.pinned && is_active);
            }
            if is_active && !known.ranges.is_empty() && known.device.is_some() && known.device == self.device {
                active.push(Client(*client));
            }
        }
        let tell = self.turns.look(self.planner.as_ref(), &active, now);
        let members = !tell.is_empty();
        for (client, turn) in tell {
            if let Some(to_scheduler) = &self.to_scheduler {
                to_scheduler.tell(Notice::Crowded(client, turn));
            }
        }
        if members {
            self.bound_waits();
        }
        let over = self
            .running
            .and_then(|(running, _)| self.turns.of(running))
            .is_some_and(|length| now.saturating_duration_since(self.switched) >= Duration::from_nanos(length));
        if members || over {
            // The turn ended but no other client got the device: a new turn begins.
            self.progress();
            self.switch();
        }
    }

    /// Sets the longest wait of clients' launches at the gate: longer than the time between two of
    /// their turns.
    fn bound_waits(&self) {
        for (client, known) in &self.clients {
            let between = self.turns.swapped_out(*client).unwrap_or(0);
            let wait = (between / WAIT_RATIO.0 * WAIT_RATIO.1).max(self.settings.longest_wait);
            let ordered = &known.entry.lane.orders.longest_wait;
            if ordered.load(Ordering::Relaxed) != wait {
                ordered.store(wait, Ordering::Relaxed);
            }
        }
    }

    /// Reports changes of clients' memory to the planner.
    pub fn learn(&mut self) {
        let mut changed = false;
        let beside = self.beside();
        if beside != self.beside {
            // A new capacity needs a new plan. Orders for memory that is there already move
            // nothing.
            self.beside = beside;
            self.planner = None;
        }
        let begins = self.planner.is_none();
        if begins {
            self.residency.forget_page_ops();
            for known in self.clients.values_mut() {
                known.told.clear();
                known.waiting.clear();
                known.out.clear();
                known.confirming.clear();
                known.dirty |= !known.ranges.is_empty();
            }
        }
        let (contexts, plain) = self.beside;
        let sizes = match self.clients.values().any(|known| known.dirty) {
            true => self.sizes(),
            false => HashMap::new(),
        };
        for (client, known) in &mut self.clients {
            if !known.dirty {
                continue;
            }
            let Some(uuid) = &known.device else { continue };
            let Some(bytes) = sizes.get(uuid) else { continue };
            if self.device.get_or_insert_with(|| uuid.clone()) != uuid {
                continue;
            }
            known.dirty = false;
            changed = true;
            let planner = self
                .planner
                .get_or_insert_with(|| Planner::new(config(*bytes, contexts, plain, self.settings.link_mb_per_s)));
            if let Some(carried) = self.links.get(uuid) {
                planner.set_link(carried.link());
            }
            self.residency.room(holds(*bytes, contexts, plain));
            planner.join(Client(*client));
            known.host_left = None;
            planner.pin(Client(*client), known.pinned);
            let set = known.working_set(self.settings.turn);
            // Granules that the planner knows keep their place.
            let new: BTreeSet<u64> = known
                .ranges
                .iter()
                .flat_map(|(start, (bytes, _))| granules(*start, *bytes).granules())
                .filter(|granule| !known.told.contains(granule))
                .collect();
            known.told.extend(&new);
            for range in joined(new.into_iter()) {
                planner.placed(Client(*client), range, GranulePlace::Nowhere);
            }
            let at = known.forecast.position(&known.entry.lane.page_ops);
            if let Some(at) = at {
                known.forecast.stands(at, Instant::now());
            }
            planner.set_working_set(Client(*client), set, at.unwrap_or(0));
            if self.running.is_none() {
                self.running = Some((*client, Instant::now()));
            }
        }
        if changed || (begins && self.planner.is_some()) {
            self.switch();
        }
    }

    /// Contexts and unmanaged bytes on the device, in coarse steps so that a new plan is rare.
    fn beside(&self) -> (usize, u64) {
        const UNMANAGED_STEP_BYTES: u64 = 128 << 20;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let mut managed = self.clients.values().filter(|known| !known.ranges.is_empty());
        let Some(first) = managed.next() else { return (0, 0) };
        // The planned device, or the next one.
        let device = self.device.as_ref().or(first.device.as_ref());
        let plain = |known: &ManagedClient| {
            let counters = &known.entry.lane.counters;
            read(&counters.memory).saturating_sub(read(&counters.managed))
        };
        // Clients with only device memory count too.
        let there = |known: &&ManagedClient| {
            let neighbour = device.is_some() && known.device.as_ref() == device && plain(known) > 0;
            !known.ranges.is_empty() || neighbour
        };
        let there = self.clients.values().filter(there);
        let sum = there.clone().map(plain).fold(0, u64::saturating_add);
        (there.count(), sum / UNMANAGED_STEP_BYTES * UNMANAGED_STEP_BYTES)
    }

    /// Reads ended page operations.
    pub fn hear(&mut self) {
        let (Some(planner), Some(device)) = (&mut self.planner, &self.device) else {
            return;
        };
        if self.links.len() >= LINKS && !self.links.contains_key(device) {
            // Machines have few devices. Invented ones cost only the measurements.
            self.links.clear();
        }
        let granted = || LinkRates::new(link(self.settings.link_mb_per_s));
        let carried = self.links.entry(device.clone()).or_insert_with(granted);
        let now = Instant::now();
        for out in self.clients.values().flat_map(|known| known.out.values()) {
            carried.busy(way(out.what), now);
        }
        let mut ended = Vec::new();
        let mut measured = false;
        for (client, known) in &mut self.clients {
            for PageOpEnd {
                number,
                status: outcome,
                took,
            } in known.producer.ended(&known.entry.lane.page_ops)
            {
                if let Some(out) = known.out.remove(&number) {
                    planner.done(
                        out.order,
                        match outcome {
                            page_ops::PageOpStatus::Done => OrderStatus::Done,
                            page_ops::PageOpStatus::Refused | page_ops::PageOpStatus::Gone => OrderStatus::Refused,
                        },
                    );
                    if matches!(out.what, OrderKind::Prefetch | OrderKind::Evict)
                        && outcome == page_ops::PageOpStatus::Done
                    {
                        let bytes = u64::from(out.range.count) * GRANULE;
                        measured |= carried.moved(way(out.what), bytes, took, now);
                    }
                    ended.push((*client, out.what, out.range, outcome));
                } else if let Some(range) = known.confirming.remove(&number) {
                    ended.push((*client, OrderKind::Prefetch, range, outcome));
                }
            }
            if known.out.values().any(|out| now - out.since > PATIENCE) {
                log::warn!(
                    "client {} does not carry out orders about its memory",
                    known.entry.client
                );
                known.penance = Some(now + PENANCE);
                for (_, out) in known.out.drain() {
                    planner.done(out.order, OrderStatus::Refused);
                    ended.push((*client, out.what, out.range, page_ops::PageOpStatus::Refused));
                }
            }
        }
        if measured {
            planner.set_link(carried.link());
        }
        for (client, what, range, outcome) in ended {
            self.moved(client, what, range, outcome);
        }
    }

    /// Passes the planner's orders to clients.
    pub fn order(&mut self) {
        let Some(planner) = &mut self.planner else { return };
        self.orders.clear();
        planner.orders(&mut self.orders);
        for order in self.orders.drain(..) {
            if let Some(known) = self.clients.get_mut(&order.client.0) {
                known.waiting.push_back(order);
            }
        }
        let due = |(_, known): &(&u64, &mut ManagedClient)| !known.waiting.is_empty() || !known.confirms.is_empty();
        for (client, known) in self.clients.iter_mut().filter(due) {
            let now = Instant::now();
            let lane = &known.entry.lane;
            let served = lane.page_ops.served.load(Ordering::Acquire) == 1;
            if !served || known.penance.is_some_and(|until| now < until) {
                known.confirms.clear();
                for order in known.waiting.drain(..) {
                    planner.done(order.id, OrderStatus::Refused);
                }
                continue;
            }
            let mut given = false;
            while let Some(page_op) = known.confirms.front() {
                let Some(number) = known.producer.give(&lane.page_ops, *page_op) else {
                    break;
                };
                let range = granules(page_op.start, page_op.bytes);
                self.residency.ordered(*client, range);
                known.confirming.insert(number, range);
                known.confirms.pop_front();
                given = true;
            }
            while let Some(order) = known.waiting.front() {
                let Some(number) = known.producer.give(&lane.page_ops, page_op(order)) else {
                    break;
                };
                if !matches!(order.kind, OrderKind::Advise(_)) {
                    if matches!(order.kind, OrderKind::Prefetch | OrderKind::Populate) {
                        self.residency.ordered(*client, order.range);
                    }
                    let out = Out {
                        order: order.id,
                        what: order.kind,
                        range: order.range,
                        since: now,
                    };
                    known.out.insert(number, out);
                }
                known.waiting.pop_front();
                given = true;
            }
            if given {
                lane.page_ops.bell.fetch_add(1, Ordering::AcqRel);
                let _ = futex::wake(&lane.page_ops.bell, futex::Flags::empty(), 1);
            }
        }
    }

    /// Updates the figures for people.
    pub fn show(&self) {
        let Some(planner) = &self.planner else { return };
        let carried = self.device.as_ref().and_then(|device| self.links.get(device));
        let rate = |way| carried.and_then(|carried| carried.measured(way)).unwrap_or(0.0) as u64;
        let rates = (rate(MoveDirection::Inward), rate(MoveDirection::Outward));
        for row in planner.rows() {
            if let Some(known) = row.client.and_then(|client| self.clients.get(&client.0)) {
                let figures = &known.entry.figures;
                let (faulted, there) = self.residency.of(known.entry.client);
                figures.faulted.store(faulted, Ordering::Relaxed);
                figures.resident.store(there, Ordering::Relaxed);
                figures.working_set.store(row.working_set, Ordering::Relaxed);
                let turn = self.turns.of(known.entry.client);
                let runs = self.running.is_some_and(|(running, _)| running == known.entry.client);
                figures.to_device.store(rates.0, Ordering::Relaxed);
                figures.to_host.store(rates.1, Ordering::Relaxed);
                figures.turn.store(turn.unwrap_or(0), Ordering::Relaxed);
                let between = self.turns.swapped_out(known.entry.client);
                figures.swapped_out.store(between.unwrap_or(0), Ordering::Relaxed);
                let needed = turn.map_or(0, |_| self.turns.needed());
                figures.swapped_out_needed.store(needed, Ordering::Relaxed);
                figures.has_turn.store(turn.is_some() && runs, Ordering::Relaxed);
            }
        }
    }

    /// Each client's position. Read before ended page operations: memory for which a launch waited
    /// had arrived before the client continued.
    fn positions(&self) -> Vec<(u64, Option<Ns>)> {
        let managed = self.clients.iter().filter(|(_, known)| !known.ranges.is_empty());
        managed
            .map(|(client, known)| (*client, known.forecast.position(&known.entry.lane.page_ops)))
            .collect()
    }

    /// Records the granules that clients touched since the last call.
    fn touches(&mut self, positions: Vec<(u64, Option<Ns>)>, now: Instant) {
        for (client, at) in positions {
            let Some(known) = self.clients.get_mut(&client) else {
                continue;
            };
            if known.forecast.is_there() {
                let (told, residency) = (&known.told, &mut self.residency);
                for granule in known.forecast.passed(at).filter(|granule| told.contains(granule)) {
                    residency.touched(client, granule);
                }
                continue;
            }
            let due = known
                .counted
                .is_none_or(|counted| now.saturating_duration_since(counted) >= ROUND);
            let launched = known.entry.lane.counters.launches.load(Ordering::Relaxed);
            if due && launched != known.launched {
                (known.counted, known.launched) = (Some(now), launched);
                for (start, (bytes, named)) in &known.ranges {
                    if known.is_touched(*named) {
                        for granule in granules(*start, *bytes).granules() {
                            self.residency.touched(client, granule);
                        }
                    }
                }
            }
        }
    }

    /// Records an ended page operation.
    fn moved(&mut self, client: u64, what: OrderKind, range: GranuleRange, outcome: page_ops::PageOpStatus) {
        let residency = &mut self.residency;
        match (what, outcome) {
            (OrderKind::Advise(_), _) => {}
            (OrderKind::Prefetch | OrderKind::Populate, page_ops::PageOpStatus::Done) => residency.came(client, range),
            (
                OrderKind::Prefetch | OrderKind::Populate,
                page_ops::PageOpStatus::Refused | page_ops::PageOpStatus::Gone,
            ) => residency.stays(client, range),
            (OrderKind::Evict | OrderKind::Release, page_ops::PageOpStatus::Done) => residency.went(client, range),
            (OrderKind::Discard, page_ops::PageOpStatus::Done) => residency.gone(client, range.granules()),
            (
                OrderKind::Evict | OrderKind::Release | OrderKind::Discard,
                page_ops::PageOpStatus::Refused | page_ops::PageOpStatus::Gone,
            ) => {}
        }
    }

    /// Reports the host's spare memory to the planner, each [`SURVEY`].
    pub fn survey(&mut self, now: Instant) {
        if now.saturating_duration_since(self.surveyed) < SURVEY {
            return;
        }
        self.surveyed = now;
        let Some(planner) = &mut self.planner else { return };
        // Evicted memory is not spare any more, but it is part of the plan's limit.
        let lies = (planner.on_host() * GRANULE).max(self.residency.on_host());
        planner.set_host_limit(host::of_system().saturating_add(lies) / GRANULE);
    }

    /// Reports a client's host bound to the planner if it changed: `0.9 * left + evicted`. The rest
    /// is for memory that the job takes by itself.
    fn limit(&mut self) {
        let Some(planner) = &mut self.planner else { return };
        for (client, known) in &mut self.clients {
            let left = known.entry.lane.counters.host_left.load(Ordering::Relaxed);
            if known.ranges.is_empty() || known.host_left == Some(left) {
                continue;
            }
            known.host_left = Some(left);
            let client = Client(*client);
            let limit = (left > 0).then(|| left / 10 * 9 / GRANULE + planner.on_host_of(client));
            planner.set_client_host_limit(client, limit);
        }
    }

    /// Writes changed figures to the trace.
    fn draw(&mut self) {
        if !self.trace.wanted() || self.traced.elapsed() < DRAWN {
            return;
        }
        self.traced = Instant::now();
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        for (client, known) in &mut self.clients {
            let (counters, figures) = (&known.entry.lane.counters, &known.entry.figures);
            let memory = MemoryFigures {
                managed: read(&counters.managed),
                working_set: read(&figures.working_set),
                resident: read(&figures.resident),
                prefetched: read(&counters.prefetched),
                evicted: read(&counters.evicted),
                discarded: read(&counters.discarded),
                faulted: read(&figures.faulted),
            };
            if memory != known.drawn {
                known.drawn = memory.clone();
                self.trace.memory(clock::now(), *client, known.entry.pid, memory);
            }
        }
    }

    /// Records a client's report of its device's size. Users vote on it ([`MemoryThread::sizes`]).
    fn uses_device(&mut self, client: u64, uuid: String, bytes: u64) {
        if let Some(known) = self.clients.get_mut(&client) {
            known.bytes = Some(bytes.min(LARGEST_DEVICE_BYTES));
            // Only a client's first device is planned.
            known.device.get_or_insert(uuid);
            known.dirty |= !known.ranges.is_empty();
        }
    }

    /// Device sizes reported by most users; on a tie, the first reported.
    pub fn sizes(&self) -> HashMap<String, u64> {
        let mut said: HashMap<&str, Vec<(u32, u64)>> = HashMap::new();
        for known in self.clients.values() {
            if let (Some(uuid), Some(bytes)) = (&known.device, known.bytes) {
                let here = said.entry(uuid).or_default();
                // One vote per user.
                if !here.iter().any(|(uid, _)| *uid == known.entry.uid) {
                    here.push((known.entry.uid, bytes));
                }
            }
        }
        let size = |here: &[(u32, u64)]| {
            let voices = |bytes: u64| here.iter().filter(|(_, other)| *other == bytes).count();
            let mut best: Option<(usize, u64)> = None;
            for (_, bytes) in here {
                let voices = voices(*bytes);
                if best.is_none_or(|(most, _)| voices > most) {
                    best = Some((voices, *bytes));
                }
            }
            best.map(|(_, bytes)| bytes)
        };
        said.into_iter()
            .filter_map(|(uuid, here)| Some((uuid.to_string(), size(&here)?)))
            .collect()
    }

    /// Adds a managed range, within the bounds.
    fn backed(&mut self, client: u64, start: u64, bytes: u64) {
        if bytes == 0 || start.checked_add(bytes).is_none() {
            return;
        }
        let new = u64::from(granules(start, bytes).count);
        let Some(known) = self.clients.get(&client) else { return };
        let old = known.ranges.get(&start).map_or(0, |(old, _)| count(start, *old));
        let most = known.bytes.unwrap_or(UNKNOWN_DEVICE_BYTES).saturating_add(self.host) / GRANULE;
        let his = |known: &ManagedClient| known.granules - old + new;
        let whose = known.entry.uid;
        let fits = known.ranges.len() < RANGES
            && his(known) <= most
            && (known.entry.user_page.is_none()
                || self.of_guest(whose, |known| known.granules) - old + new <= most * TIMES_OF_A_GUEST);
        let Some(known) = self.clients.get_mut(&client).filter(|_| fits) else {
            return;
        };
        known.granules = his(known);
        known.ranges.insert(start, (bytes, known.round));
        known.dirty = true;
    }

    /// Number of further uses that a client may send.
    pub fn uses_left(&self, client: u64) -> usize {
        match self.clients.get(&client) {
            // Without ranges it has nothing to use.
            Some(known) if known.ranges.is_empty() => 0,
            Some(known) if known.entry.user_page.is_some() => {
                let his = self.of_guest(known.entry.uid, |known| known.forecast.kept() as u64);
                USES_OF_A_GUEST.saturating_sub(usize::try_from(his).unwrap_or(usize::MAX))
            }
            Some(_) => usize::MAX,
            None => 0,
        }
    }

    /// A sum over a guest's clients.
    fn of_guest(&self, uid: u32, of: impl Fn(&ManagedClient) -> u64) -> u64 {
        let his = self.clients.values().filter(|known| known.entry.uid == uid);
        his.map(of).sum()
    }
}

/// The direction of an order.
fn way(what: OrderKind) -> MoveDirection {
    match what {
        OrderKind::Prefetch | OrderKind::Populate => MoveDirection::Inward,
        OrderKind::Evict | OrderKind::Release | OrderKind::Discard | OrderKind::Advise(_) => MoveDirection::Outward,
    }
}

/// Number of granules that a range touches.
fn count(start: u64, bytes: u64) -> u64 {
    u64::from(granules(start, bytes).count)
}
