//! The memory thread: keeps the planner, tells it what clients have and who runs, and has its orders carried out by the clients' helpers.
//!
//! A thread of its own, because a plan over thousands of granules takes longer than jobs may wait at the gate. What holds:
//!
//! * Only clients on managed memory are planned for. All others, and all of this where it fails, are as without it: memory moves on demand.
//! * An order becomes an errand in its client's lane. A client whose helper does not answer within [`PATIENCE`] gets none for [`PENANCE`], and what it was to do
//!   counts as refused: it holds up nobody else.
//! * What a client says of its memory is an allegation: ranges are checked for sense and bounded in number and size.
//!
//! What a job touches, and in which order, is what its client says of its last period ([`forecast`]). Where there is no period, it is taken to be the ranges that its launches named in the
//! last [`ROUNDS`] rounds, whole and all at once.
#![forbid(unsafe_code)]

mod forecast;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::futex;

use self::forecast::Forecast;
use super::registry::Entry;
use crate::core::Client;
use crate::core::memory::{
    Access, Config, GRANULE, Link, Order, OrderId, Outcome, Place, Planner, Range, Turn, Use, What, WorkingSet,
};
use crate::protocol::Ns;
use crate::protocol::control::GranuleUse;
use crate::protocol::errands::{self, Errand, Giver};

/// Between two looks at errands that are out: the shortest takes about as long.
const LOOK: Duration = Duration::from_micros(500);

/// While jobs that do not fit together take turns: what the running one has used for the last time in its turn may go then, a granule in 0.1 ms.
const WATCH: Duration = Duration::from_millis(2);

/// With nothing out.
const REST: Duration = Duration::from_millis(250);

/// An errand that takes longer is given up: a whole lane of them takes some 20 ms.
const PATIENCE: Duration = Duration::from_secs(2);

/// A client whose errands were given up gets none for so long.
const PENANCE: Duration = Duration::from_secs(5);

/// What is confirmed by one errand at most: should it be away after all, launches wait for its end.
const LONGEST_CONFIRM: u64 = 16 * GRANULE;

/// Of each device so much stays free of the plan for what demand paging needs to turn round in.
const RESERVE: u64 = 64;

/// What a client's context and code take of the device: 0.4 to 0.5 GB where it was measured on large devices; a small device has smaller ones.
const CONTEXT: u64 = 450 << 20;

/// No context takes more than this part of the device.
const CONTEXT_PART: u64 = 4;

/// A job's working set is taken to be touched so many times in a turn: what it has touched once in its turn it will touch again in it.
const TIMES_A_TURN: u64 = 16;

/// The link where nothing better is known: PCIe 4 x16, one direction at a time (22.2 GB/s is what MSched measured of a serial swap on it).
const LINK: Link = Link {
    inward: 22.2e9,
    outward: 22.2e9,
    duplex: false,
};

/// A range that was not named in so many rounds (of half a second, in which something was named) is not part of what the job touches: a training step may take seconds.
const ROUNDS: u64 = 8;

/// Ranges of one client that are kept; an allocator that makes more is left to demand paging.
const RANGES: usize = 65_536;

/// A range larger than this makes no sense.
const LARGEST: u64 = 1 << 42;

/// What the thread is told.
#[derive(Debug)]
pub enum Tell {
    /// A client attached.
    Joined(Arc<Entry>),
    /// A client ended.
    Left(u64),
    /// A client uses a device of so many bytes.
    Device(u64, String, u64),
    /// A client's range came to be managed.
    Backed(u64, u64, u64),
    /// A part of what a client touches in its periods.
    Forecast {
        client: u64,
        number: u32,
        period: Ns,
        uses: Vec<GranuleUse>,
        ends: bool,
    },
    /// A round of a client has ended, in which it named these ranges, or all.
    Touched(u64, Option<Vec<u64>>),
    /// It is no more.
    Unbacked(u64, u64),
    /// The device is this client's from now on.
    Runs(u64),
    /// A client is the holder from now on, or is it no more.
    Holds(u64, bool),
    /// The broker ends.
    Stop,
}

/// The way to the thread.
#[derive(Debug, Clone)]
pub struct Memory {
    tells: Sender<Tell>,
}

impl Memory {
    /// One that plans nothing.
    #[cfg(feature = "by-hand")]
    pub fn deaf() -> Memory {
        Memory { tells: channel().0 }
    }

    /// Tells it something. Never waits.
    pub fn tell(&self, tell: Tell) {
        // Should it have died, memory moves on demand and nothing else is lost.
        let _ = self.tells.send(tell);
    }
}

/// Starts the thread. `turn` is how long the core lets one of several run.
pub fn start(turn: Ns) -> std::io::Result<(Memory, JoinHandle<()>)> {
    let (tells, incoming) = channel();
    let thread = std::thread::Builder::new()
        .name("weft-memory".into())
        .spawn(move || Thread::new(turn).run(&incoming))?;
    Ok((Memory { tells }, thread))
}

/// One client.
#[derive(Debug)]
struct Known {
    entry: Arc<Entry>,
    giver: Giver,
    device: Option<String>,
    /// By start, with sizes and the round in which they were named last.
    ranges: BTreeMap<u64, (u64, u64)>,
    /// Rounds so far.
    round: u64,
    /// The ranges that it touches, as the planner was told.
    touches: usize,
    /// What should be on the device at the begin of its turn, and is asked for once more: pages that the driver has moved away by itself are not seen from here.
    confirms: VecDeque<Errand>,
    /// What does not fit into the lane yet.
    waiting: VecDeque<Order>,
    /// Errands that are out.
    out: HashMap<u64, (OrderId, Instant)>,
    /// No errands until then.
    penance: Option<Instant>,
    /// Granules that the planner knows of.
    told: HashSet<u64>,
    /// It has changed since the planner was told.
    dirty: bool,
    /// Its granules stay on the device.
    pinned: bool,
    forecast: Forecast,
}

impl Known {
    /// Whether a range that was named last in this round counts as touched.
    fn is_touched(&self, named: u64) -> bool {
        named + ROUNDS >= self.round
    }

    /// What it touches, and when in its own time.
    fn working_set(&mut self, turn: Ns) -> WorkingSet {
        if self.forecast.is_there() {
            let ranges = &self.ranges;
            return self.forecast.working_set(|range| held(ranges, range));
        }
        let round = self.round;
        let touched = self.ranges.iter().filter(|(_, (_, named))| named + ROUNDS >= round);
        let uses: Vec<Use> = touched
            .map(|(start, (bytes, _))| Use {
                at: 0,
                range: granules(*start, *bytes),
                access: Access::ReadWrite,
            })
            .collect();
        self.touches = uses.len();
        WorkingSet {
            period: (turn / TIMES_A_TURN).max(1),
            uses,
        }
    }

    /// A round in which these were named, or all.
    fn touched(&mut self, starts: Option<Vec<u64>>) {
        if starts.as_ref().is_some_and(Vec::is_empty) {
            // It did nothing: what it touches when it goes on is what it touched before.
            return;
        }
        self.round += 1;
        match starts {
            None => self.ranges.values_mut().for_each(|(_, named)| *named = self.round),
            Some(starts) => {
                for start in starts {
                    if let Some((_, named)) = self.ranges.get_mut(&start) {
                        *named = self.round;
                    }
                }
            }
        }
        let touches = self
            .ranges
            .values()
            .filter(|(_, named)| self.is_touched(*named))
            .count();
        self.dirty |= touches != self.touches && !self.forecast.is_there();
    }
}

struct Thread {
    turn: Ns,
    planner: Option<Planner>,
    /// The device that is planned: the first that a managed client uses.
    device: Option<String>,
    clients: BTreeMap<u64, Known>,
    running: Option<(u64, Instant)>,
    /// Sizes of devices.
    sizes: HashMap<String, u64>,
    /// Managed clients that the planner's capacity leaves room for, and device memory of clients that is not managed.
    beside: (usize, u64),
    orders: Vec<Order>,
}

impl Thread {
    fn new(turn: Ns) -> Thread {
        Thread {
            turn,
            planner: None,
            device: None,
            clients: BTreeMap::new(),
            running: None,
            sizes: HashMap::new(),
            beside: (0, 0),
            orders: Vec::new(),
        }
    }

    fn run(mut self, incoming: &Receiver<Tell>) {
        loop {
            let busy = self.clients.values().any(|known| !known.out.is_empty());
            let watch = self.planner.as_ref().is_some_and(Planner::is_short);
            let rest = if watch { WATCH } else { REST };
            match incoming.recv_timeout(if busy { LOOK } else { rest }) {
                Ok(Tell::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(tell) => {
                    self.take(tell);
                    // All that is there already is one change.
                    while let Ok(tell) = incoming.try_recv() {
                        if matches!(tell, Tell::Stop) {
                            return;
                        }
                        self.take(tell);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.learn();
            self.progress();
            self.hear();
            self.order();
            self.show();
        }
    }

    fn take(&mut self, tell: Tell) {
        match tell {
            Tell::Joined(entry) => {
                let known = Known {
                    giver: Giver::default(),
                    device: None,
                    ranges: BTreeMap::new(),
                    round: 0,
                    touches: 0,
                    confirms: VecDeque::new(),
                    waiting: VecDeque::new(),
                    out: HashMap::new(),
                    penance: None,
                    told: HashSet::new(),
                    dirty: false,
                    pinned: false,
                    forecast: Forecast::default(),
                    entry,
                };
                self.clients.insert(known.entry.client, known);
            }
            Tell::Left(client) => self.left(client),
            Tell::Device(client, uuid, bytes) => {
                self.sizes.insert(uuid.clone(), bytes);
                if let Some(known) = self.clients.get_mut(&client) {
                    // The first device is the one that its memory is taken for; further ones are left to demand paging.
                    known.device.get_or_insert(uuid);
                    known.dirty |= !known.ranges.is_empty();
                }
            }
            Tell::Backed(client, start, bytes) => {
                if let Some(known) = self.clients.get_mut(&client)
                    && known.ranges.len() < RANGES
                    && bytes > 0
                    && bytes <= LARGEST
                    && start.checked_add(bytes).is_some()
                {
                    known.ranges.insert(start, (bytes, known.round));
                    known.dirty = true;
                }
            }
            Tell::Forecast {
                client,
                number,
                period,
                uses,
                ends,
            } => {
                if let Some(known) = self.clients.get_mut(&client) {
                    known.dirty |= known.forecast.take(number, period, uses, ends);
                }
            }
            Tell::Touched(client, starts) => {
                if let Some(known) = self.clients.get_mut(&client) {
                    known.touched(starts);
                }
            }
            Tell::Unbacked(client, start) => self.unbacked(client, start),
            Tell::Runs(client) => self.runs(client),
            Tell::Holds(client, holds) => {
                if let Some(known) = self.clients.get_mut(&client) {
                    known.pinned = holds;
                    if let Some(planner) = &mut self.planner {
                        planner.pin(Client(client), holds);
                    }
                }
                if holds {
                    self.runs(client);
                }
            }
            Tell::Stop => {}
        }
    }

    fn left(&mut self, client: u64) {
        self.clients.remove(&client);
        if let Some(planner) = &mut self.planner {
            planner.leave(Client(client));
        }
        if self.running.is_some_and(|(running, _)| running == client) {
            self.running = None;
        }
        let managed = self.clients.values().any(|known| !known.ranges.is_empty());
        if !managed {
            // The next managed client may be on another device, and the machine's free memory another.
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
        let gone = granules(start, bytes);
        // The granules at its ends may be others' too.
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
        if let (Some(planner), Ok(count)) = (&mut self.planner, u32::try_from(end.saturating_sub(first))) {
            planner.freed(Client(client), Range { first, count });
        }
    }

    /// The device goes to a client.
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
        self.running = Some((client, now));
        if let (Some(planner), Some(known)) = (&mut self.planner, self.clients.get_mut(&client))
            && let Some(at) = known.forecast.position(&known.entry.lane.errands)
        {
            known.forecast.stands(at, now);
            planner.stands(Client(client), at);
            if planner.is_short() {
                let there = |granule| planner.is_there(Client(client), granule);
                known.confirms = confirms(known.forecast.granules_from(at), there);
            }
        }
        self.switch();
    }

    /// Tells the planner how far the running client is.
    fn progress(&mut self) {
        let (Some(planner), Some((running, _))) = (&mut self.planner, self.running) else {
            return;
        };
        if let Some(known) = self.clients.get_mut(&running)
            && let Some(at) = known.forecast.position(&known.entry.lane.errands)
        {
            let ran = known.forecast.progress(at, Instant::now());
            if ran > 0 {
                planner.ran(Client(running), ran);
            }
        }
    }

    /// Who runs now, then the others in turn.
    fn switch(&mut self) {
        let Some(planner) = &mut self.planner else { return };
        let Some((running, _)) = self.running else { return };
        let managed = |(client, known): (&u64, &Known)| (!known.ranges.is_empty()).then_some(*client);
        let later = self.clients.range(running..).filter_map(managed);
        let earlier = self.clients.range(..running).filter_map(managed);
        let timeline: Vec<Turn> = later
            .chain(earlier)
            .map(|client| Turn {
                client: Client(client),
                length: self.turn,
            })
            .collect();
        planner.switch(&timeline);
    }

    /// Tells the planner what has changed of clients' memory.
    fn learn(&mut self) {
        let mut changed = false;
        let beside = self.beside();
        if beside != self.beside {
            // The plan begins anew with another capacity; what it orders once more that lies there already moves nothing.
            self.beside = beside;
            self.planner = None;
        }
        let begins = self.planner.is_none();
        if begins {
            for known in self.clients.values_mut() {
                known.told.clear();
                known.waiting.clear();
                known.out.clear();
                known.dirty |= !known.ranges.is_empty();
            }
        }
        let (contexts, plain) = self.beside;
        for (client, known) in &mut self.clients {
            if !known.dirty {
                continue;
            }
            let Some(uuid) = &known.device else { continue };
            let Some(bytes) = self.sizes.get(uuid) else { continue };
            if self.device.get_or_insert_with(|| uuid.clone()) != uuid {
                continue;
            }
            known.dirty = false;
            changed = true;
            let planner = self
                .planner
                .get_or_insert_with(|| Planner::new(config(*bytes, contexts, plain)));
            planner.join(Client(*client));
            planner.pin(Client(*client), known.pinned);
            let set = known.working_set(self.turn);
            // What was told before keeps its place.
            let new: BTreeSet<u64> = known
                .ranges
                .iter()
                .flat_map(|(start, (bytes, _))| granules(*start, *bytes).granules())
                .filter(|granule| !known.told.contains(granule))
                .collect();
            known.told.extend(&new);
            for range in joined(new.into_iter()) {
                planner.placed(Client(*client), range, Place::Nowhere);
            }
            let at = known.forecast.position(&known.entry.lane.errands);
            if let Some(at) = at {
                known.forecast.stands(at, Instant::now());
            }
            planner.learn(Client(*client), set, at.unwrap_or(0));
            if self.running.is_none() {
                self.running = Some((*client, Instant::now()));
            }
        }
        if changed || (begins && self.planner.is_some()) {
            self.switch();
        }
    }

    /// What the device holds beside managed memory: contexts, and memory that is not managed, in steps so coarse that a plan seldom begins anew.
    fn beside(&self) -> (usize, u64) {
        const STEP: u64 = 128 << 20;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let managed = self.clients.values().filter(|known| !known.ranges.is_empty());
        let plain = |known: &Known| {
            let counters = &known.entry.lane.counters;
            read(&counters.memory).saturating_sub(read(&counters.managed))
        };
        let sum = managed.clone().map(plain).fold(0, u64::saturating_add);
        (managed.count(), sum / STEP * STEP)
    }

    /// Hears how errands ended.
    fn hear(&mut self) {
        let Some(planner) = &mut self.planner else { return };
        for known in self.clients.values_mut() {
            for (number, outcome) in known.giver.ended(&known.entry.lane.errands) {
                let Some((order, _)) = known.out.remove(&number) else {
                    continue;
                };
                planner.done(
                    order,
                    match outcome {
                        errands::Outcome::Done => Outcome::Done,
                        errands::Outcome::Refused | errands::Outcome::Gone => Outcome::Refused,
                    },
                );
            }
            let now = Instant::now();
            if known.out.values().any(|(_, since)| now - *since > PATIENCE) {
                log::warn!(
                    "client {} does not carry out what it is told about its memory",
                    known.entry.client
                );
                known.penance = Some(now + PENANCE);
                for (_, (order, _)) in known.out.drain() {
                    planner.done(order, Outcome::Refused);
                }
            }
        }
    }

    /// Has the planner's orders carried out.
    fn order(&mut self) {
        let Some(planner) = &mut self.planner else { return };
        self.orders.clear();
        planner.orders(&mut self.orders);
        for order in self.orders.drain(..) {
            if let Some(known) = self.clients.get_mut(&order.client.0) {
                known.waiting.push_back(order);
            }
        }
        let due = |known: &&mut Known| !known.waiting.is_empty() || !known.confirms.is_empty();
        for known in self.clients.values_mut().filter(due) {
            let now = Instant::now();
            let lane = &known.entry.lane;
            let served = lane.errands.served.load(Ordering::Acquire) == 1;
            if !served || known.penance.is_some_and(|until| now < until) {
                known.confirms.clear();
                for order in known.waiting.drain(..) {
                    planner.done(order.id, Outcome::Refused);
                }
                continue;
            }
            let mut given = false;
            while let Some(errand) = known.confirms.front() {
                if known.giver.give(&lane.errands, *errand).is_none() {
                    break;
                }
                known.confirms.pop_front();
                given = true;
            }
            while let Some(order) = known.waiting.front() {
                let Some(number) = known.giver.give(&lane.errands, errand(order)) else {
                    break;
                };
                if !matches!(order.what, What::Advise(_)) {
                    known.out.insert(number, (order.id, now));
                }
                known.waiting.pop_front();
                given = true;
            }
            if given {
                lane.errands.bell.fetch_add(1, Ordering::AcqRel);
                let _ = futex::wake(&lane.errands.bell, futex::Flags::empty(), 1);
            }
        }
    }

    /// What people see.
    fn show(&self) {
        let Some(planner) = &self.planner else { return };
        for row in planner.rows() {
            if let Some(known) = row.client.and_then(|client| self.clients.get(&client.0)) {
                known.entry.figures.resident.store(row.resident, Ordering::Relaxed);
            }
        }
    }
}

fn granules(start: u64, bytes: u64) -> Range {
    let first = start / GRANULE;
    let end = start.saturating_add(bytes).div_ceil(GRANULE);
    Range {
        first,
        count: u32::try_from(end - first).unwrap_or(u32::MAX),
    }
}

/// Errands that ask once more for those of these granules that should be there, in their order.
fn confirms(wanted: impl Iterator<Item = u64>, there: impl Fn(u64) -> bool) -> VecDeque<Errand> {
    let mut seen = HashSet::new();
    let mut found: VecDeque<Errand> = VecDeque::new();
    for granule in wanted.filter(|granule| there(*granule)) {
        if !seen.insert(granule) {
            continue;
        }
        let start = granule * GRANULE;
        match found.back_mut() {
            Some(last) if last.start + last.bytes == start && last.bytes < LONGEST_CONFIRM => last.bytes += GRANULE,
            _ => found.push_back(Errand {
                what: errands::What::Confirm,
                start,
                bytes: GRANULE,
            }),
        }
    }
    found
}

/// What of these granules lies in ranges that are there.
fn held(ranges: &BTreeMap<u64, (u64, u64)>, wanted: Range) -> Vec<Range> {
    let from = wanted.first.saturating_mul(GRANULE);
    let to = wanted.end().saturating_mul(GRANULE);
    let before = ranges.range(..from).next_back();
    let parts = before.into_iter().chain(ranges.range(from..to));
    let mut found: Vec<Range> = Vec::new();
    for (start, (bytes, _)) in parts {
        let range = granules(*start, *bytes);
        let first = range.first.max(wanted.first).max(found.last().map_or(0, Range::end));
        let end = range.end().min(wanted.end());
        if first >= end {
            continue;
        }
        match found.last_mut() {
            Some(last) if last.end() == first => last.count += (end - first) as u32,
            _ => found.push(Range {
                first,
                count: (end - first) as u32,
            }),
        }
    }
    found
}

/// Neighbours as ranges.
fn joined(granules: impl Iterator<Item = u64>) -> Vec<Range> {
    let mut found: Vec<Range> = Vec::new();
    for granule in granules {
        match found.last_mut() {
            Some(last) if last.end() == granule => last.count += 1,
            _ => found.push(Range {
                first: granule,
                count: 1,
            }),
        }
    }
    found
}

fn errand(order: &Order) -> Errand {
    Errand {
        what: match order.what {
            What::Prefetch => errands::What::Prefetch,
            What::Populate => errands::What::Populate,
            What::Evict => errands::What::Evict,
            What::Release => errands::What::Release,
            What::Discard => errands::What::Discard,
            What::Advise(true) => errands::What::MostlyRead,
            What::Advise(false) => errands::What::Written,
        },
        start: order.range.first.saturating_mul(GRANULE),
        bytes: u64::from(order.range.count) * GRANULE,
    }
}

/// For a device of so many bytes that holds so many contexts and so much memory that is not managed.
fn config(bytes: u64, contexts: usize, plain: u64) -> Config {
    let context = CONTEXT.min(bytes / CONTEXT_PART);
    let beside = context
        .saturating_mul(contexts as u64)
        .saturating_add(plain)
        .saturating_add(bytes / RESERVE);
    Config::new(bytes.saturating_sub(beside), host_memory(), LINK)
}

/// Bytes that the host has to spare now.
fn host_memory() -> u64 {
    let known = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = known.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    // Where the system does not say, the driver will.
    kilobytes.map_or(u64::MAX / 2, |kilobytes| kilobytes * 1024)
}

#[cfg(test)]
mod tests;
