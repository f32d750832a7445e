//! The ledger in virtual time: what prefetches have the link do when, and how long a kernel stands
//! still for pages that are not there.
//!
//! Each direction of the link moves one piece (what a prefetch asked for of one block) at a time,
//! in the order asked for. A piece towards the device waits for room while something is leaving or
//! is to leave; if nothing is, the driver evicts a block as it does for a fault. Faults do not
//! queue: their data goes next.
//!
//! What holds: [`Pager::touch`] and [`Pager::take_plain`] let time pass to where they end, so the
//! pager's clock can be ahead of its caller's; what a caller asks for at an earlier time then
//! counts from the pager's. Ends of prefetches are told with the time at which they happened.

use std::collections::{HashMap, VecDeque};

use super::range::{PAGES, bytes};
use super::{Ledger, MemoryError, MemorySettings, Owner, OwnerUsage, Range};
use crate::time::{Ns, earlier};

/// Names a prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Towards the device, and away from it: places in the arrays below.
const IN: usize = 0;
const OUT: usize = 1;

/// What is to move of one block.
#[derive(Debug, Clone, Copy)]
struct Piece {
    owner: Owner,
    number: u64,
    pages: u32,
    /// The prefetch it belongs to; none where the driver makes room.
    ticket: Option<Ticket>,
    /// Blocks that went for it, see [`Pager::want_room`].
    displaced: u32,
    /// It leaves the device whatever was advised of it.
    leaves: bool,
}

/// A piece on the link.
#[derive(Debug, Clone, Copy)]
struct Moving {
    piece: Piece,
    /// What leaves; towards the device nothing is to be given back.
    bytes: u64,
    until: Ns,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Pager {
    ledger: Ledger,
    now: Ns,
    queues: [VecDeque<Piece>; 2],
    moving: [Option<Moving>; 2],
    /// Until when faults have a direction.
    taken: [Ns; 2],
    /// Which direction moved last: on a one-way link they take turns.
    last: usize,
    tickets: u64,
    /// Pieces to go, by prefetch.
    open: HashMap<Ticket, u64>,
    ended: VecDeque<(Ticket, Ns)>,
    /// Whether kernels wait for pages that a prefetch will bring, rather than fault on them: a
    /// launch that waits for its prefetch's event.
    waits: bool,
    /// How long each direction moved data.
    busy: [Ns; 2],
    /// Blocks that the driver evicted to make room, where somebody wants to know.
    evictions: Option<Vec<(Owner, u64)>>,
}

impl Pager {
    /// An empty device at time zero, whose kernels wait for queued prefetches or fault ahead of
    /// them.
    pub fn new(settings: MemorySettings, waits: bool) -> Pager {
        Pager {
            ledger: Ledger::new(settings),
            now: 0,
            queues: Default::default(),
            moving: [None; 2],
            taken: [0; 2],
            last: OUT,
            tickets: 0,
            open: HashMap::new(),
            ended: VecDeque::new(),
            waits,
            busy: [0; 2],
            evictions: None,
        }
    }

    /// From here on kernels wait for queued prefetches, or fault ahead of them.
    pub fn waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// Where everything lies.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The pager's time.
    pub fn now(&self) -> Ns {
        self.now
    }

    /// What is counted for an owner.
    pub fn usage(&self, owner: Owner) -> OwnerUsage {
        self.ledger.usage(owner)
    }

    /// How long each direction moved data: towards the device, towards the host.
    pub fn busy(&self) -> [Ns; 2] {
        self.busy
    }

    /// From here on it is kept which blocks the driver evicts to make room;
    /// [`Pager::take_evictions`] has them.
    pub fn keep_evictions(&mut self) {
        self.evictions.get_or_insert_default();
    }

    /// Blocks that the driver has evicted to make room since this was last asked: whose, and their
    /// addresses over the block size.
    pub fn take_evictions(&mut self) -> Vec<(Owner, u64)> {
        self.evictions.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether anything waits to move or moves.
    pub fn is_moving(&self) -> bool {
        self.moving.iter().any(Option::is_some) || self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// [`Ledger::allocate`].
    pub fn allocate(&mut self, owner: Owner, range: Range) -> Result<(), MemoryError> {
        self.ledger.allocate(owner, range)
    }

    /// [`Ledger::fill_from_host`].
    pub fn fill_from_host(&mut self, owner: Owner, range: Range) {
        self.ledger.fill_from_host(owner, range);
    }

    /// Has so much device memory be taken that cannot move, and evicts what is in the way. At most
    /// the capacity counts.
    pub fn set_plain(&mut self, at: Ns, size: u64) {
        self.advance_to(at);
        let plain = self.ledger.plain();
        if size > plain {
            let size = size.min(self.ledger.settings().capacity);
            // It fits by what was just said; what is evicted delays nobody but prefetches.
            let _ = self.take_plain(at, size - plain);
        } else if size < plain {
            self.give_plain(at, plain - size);
        }
    }

    /// [`Ledger::free`], at a time.
    pub fn free(&mut self, at: Ns, owner: Owner, range: Range) {
        self.advance_to(at);
        self.ledger.free(owner, range);
        self.begin();
    }

    /// Forgets an owner, its memory and its prefetches, which end now.
    pub fn remove(&mut self, at: Ns, owner: Owner) {
        self.advance_to(at);
        for direction in [IN, OUT] {
            let all = std::mem::take(&mut self.queues[direction]);
            let (gone, stay): (VecDeque<Piece>, VecDeque<Piece>) =
                all.into_iter().partition(|piece| piece.owner == owner);
            self.queues[direction] = stay;
            for piece in gone {
                self.end_piece(piece);
            }
        }
        self.ledger.remove(owner);
        self.begin();
    }

    /// [`Ledger::advise_read_mostly`], at a time.
    pub fn advise_read_mostly(&mut self, at: Ns, owner: Owner, range: Range, on: bool) {
        self.advance_to(at);
        self.ledger.advise_read_mostly(owner, range, on);
        // Copies that collapsed have left room.
        self.begin();
    }

    /// [`Ledger::prefer_device`], at a time.
    pub fn prefer_device(&mut self, at: Ns, owner: Owner, range: Range, on: bool) {
        self.advance_to(at);
        self.ledger.prefer_device(owner, range, on);
    }

    /// [`Ledger::discard`], at a time.
    pub fn discard(&mut self, at: Ns, owner: Owner, range: Range) -> u64 {
        self.advance_to(at);
        let lost = self.ledger.discard(owner, range);
        self.begin();
        lost
    }

    /// Takes device memory that cannot move, evicting what is in the way. Answers when it is there.
    pub fn take_plain(&mut self, at: Ns, size: u64) -> Result<Ns, MemoryError> {
        self.advance_to(at);
        self.ledger.take_plain(size)?;
        let end = self.make_room(self.now.max(at), 0, u32::MAX);
        self.advance_to(end);
        self.ledger.plain_came();
        Ok(end)
    }

    /// Gives such memory back.
    pub fn give_plain(&mut self, at: Ns, size: u64) {
        self.advance_to(at);
        self.ledger.give_plain(size);
        self.begin();
    }

    /// Puts a prefetch at the end of its direction's queue. Towards the host, memory that is mostly
    /// read is copied where the host has no copy, and stays on the device.
    pub fn prefetch(&mut self, at: Ns, owner: Owner, range: Range, to_host: bool) -> Ticket {
        self.enqueue(at, owner, range, to_host, false)
    }

    /// Has a range leave the device, as a prefetch towards the host, but what is mostly read leaves
    /// too. That is what takes a caller of the driver three steps: with the host as preferred
    /// location, end the advice (copies collapse), prefetch what the device alone has, and advise
    /// again.
    pub fn leave(&mut self, at: Ns, owner: Owner, range: Range) -> Ticket {
        self.enqueue(at, owner, range, true, true)
    }

    fn enqueue(&mut self, at: Ns, owner: Owner, range: Range, to_host: bool, leaves: bool) -> Ticket {
        self.advance_to(at);
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let direction = if to_host { OUT } else { IN };
        let idle = !self.is_moving();
        let mut pieces = Vec::new();
        for (at, part, pages) in self.ledger.each(owner, range) {
            let block = &self.ledger.blocks[at as usize];
            let todo = if to_host {
                let stays = if leaves { 0 } else { block.read_mostly };
                block.held() & !stays | !block.host
            } else {
                !block.device
            } & pages;
            // What is there already may be gone by its turn if anything moves before it.
            if todo != 0 || !idle || !pieces.is_empty() {
                pieces.push((
                    at,
                    Piece {
                        owner,
                        number: part.number,
                        pages,
                        ticket: Some(ticket),
                        displaced: 0,
                        leaves,
                    },
                ));
            }
        }
        self.open.insert(ticket, pieces.len() as u64);
        if pieces.is_empty() {
            self.open.remove(&ticket);
            self.ended.push_back((ticket, self.now));
        }
        for (at, piece) in pieces {
            if !to_host {
                let block = &mut self.ledger.blocks[at as usize];
                block.queued |= piece.pages & !block.held();
            }
            self.queues[direction].push_back(piece);
        }
        self.begin();
        ticket
    }

    /// The next prefetch that has ended, and when.
    pub fn next_ended(&mut self) -> Option<(Ticket, Ns)> {
        self.ended.pop_front()
    }

    /// When something happens next if nothing more is asked for.
    pub fn next_event(&self) -> Option<Ns> {
        let mut next: Option<Ns> = None;
        for direction in [IN, OUT] {
            let event = match &self.moving[direction] {
                Some(moving) => Some(moving.until),
                None if !self.queues[direction].is_empty() && self.free_at(direction) > self.now => {
                    Some(self.free_at(direction))
                }
                None => None,
            };
            next = earlier(next, event);
        }
        next
    }

    /// Until when faults keep a direction from moving pieces.
    fn free_at(&self, direction: usize) -> Ns {
        if self.ledger.settings.duplex {
            self.taken[direction]
        } else {
            self.taken[IN].max(self.taken[OUT])
        }
    }

    /// Lets time pass. Going back is ignored.
    pub fn advance_to(&mut self, time: Ns) {
        while let Some(next) = self.next_event() {
            if next > time {
                break;
            }
            self.now = next;
            for direction in [IN, OUT] {
                if let Some(moving) = self.moving[direction]
                    && moving.until <= next
                {
                    self.moving[direction] = None;
                    self.arrive(direction, moving);
                }
            }
            self.begin();
        }
        self.now = self.now.max(time);
    }

    fn arrive(&mut self, direction: usize, moving: Moving) {
        if direction == OUT {
            self.ledger.end_departure(moving.bytes);
        } else if let Some(at) = self.ledger.find(moving.piece.owner, moving.piece.number) {
            self.ledger.end_arrival(at, moving.piece.pages);
        }
        self.end_piece(moving.piece);
    }

    fn end_piece(&mut self, piece: Piece) {
        let Some(ticket) = piece.ticket else { return };
        let Some(left) = self.open.get_mut(&ticket) else { return };
        *left -= 1;
        if *left == 0 {
            self.open.remove(&ticket);
            self.ended.push_back((ticket, self.now));
        }
    }

    /// Starts what can start now.
    fn begin(&mut self) {
        loop {
            // On a one-way link the direction that did not move last goes first.
            let first = 1 - self.last;
            if !self.begin_in(first) && !self.begin_in(1 - first) {
                return;
            }
        }
    }

    /// Takes the next piece of a direction, if it can go. Answers whether anything changed.
    fn begin_in(&mut self, direction: usize) -> bool {
        let other = 1 - direction;
        let one_way = !self.ledger.settings.duplex;
        if self.moving[direction].is_some()
            || self.free_at(direction) > self.now
            || one_way && self.moving[other].is_some()
        {
            return false;
        }
        let Some(&piece) = self.queues[direction].front() else {
            return false;
        };
        let Some(at) = self.ledger.find(piece.owner, piece.number) else {
            self.queues[direction].pop_front();
            self.end_piece(piece);
            return true;
        };
        // Bytes whose room is free once the piece has moved.
        let mut leaving = 0;
        let copied = if direction == OUT {
            let stays = if piece.ticket.is_some() && !piece.leaves {
                piece.pages & self.ledger.blocks[at as usize].read_mostly
            } else {
                0
            };
            (leaving, _) = self.ledger.begin_departure(at, piece.pages & !stays);
            let copied = leaving + self.ledger.duplicate(at, stays);
            if piece.ticket.is_some() {
                // What lay nowhere is made on the host.
                self.ledger.fill_block(at, piece.pages);
            }
            let usage = self.ledger.usage_mut(piece.owner);
            match piece.ticket {
                Some(_) => usage.returned += copied,
                None => usage.evicted += copied,
            }
            copied
        } else {
            let block = &self.ledger.blocks[at as usize];
            let need = bytes(piece.pages & block.valid & !block.held());
            if self.ledger.used() + need > self.ledger.room() {
                return self.want_room(at, piece);
            }
            let copied = self.ledger.begin_arrival(at, piece.pages);
            self.ledger.usage_mut(piece.owner).prefetched += copied;
            copied
        };
        self.queues[direction].pop_front();
        let mut time = match copied {
            0 => 0,
            _ => {
                let busy = self.moving[other].is_some() || !self.queues[other].is_empty();
                self.ledger.settings.transfer(direction == OUT, copied, busy)
            }
        };
        self.busy[direction] += time;
        if piece.ticket.is_none() {
            time += self.ledger.settings.evict_block;
        }
        let moving = Moving {
            piece,
            bytes: leaving,
            until: self.now + time,
        };
        if time == 0 {
            self.arrive(direction, moving);
        } else {
            self.last = direction;
            self.moving[direction] = Some(moving);
        }
        true
    }

    /// A piece finds the device full: what is leaving makes room, or else a block goes. Answers
    /// whether anything changed.
    ///
    /// Faults may take the room that was made, and lose it again to the next attempt: each block
    /// that goes leaves room for a page at least, so a piece that had as many go as it can have
    /// pages is given up. Without that a kernel and a prefetch on a device with hardly any room
    /// take it from each other for ever.
    fn want_room(&mut self, at: u32, piece: Piece) -> bool {
        if self.moving[OUT].is_some() || !self.queues[OUT].is_empty() {
            return false;
        }
        let victim = self.ledger.victim(at).filter(|_| piece.displaced < PAGES);
        let Some(victim) = victim else {
            // Nothing can go: the prefetch stays undone, as the driver leaves one that finds no
            // memory.
            self.queues[IN].pop_front();
            self.ledger.blocks[at as usize].queued &= !piece.pages;
            self.end_piece(piece);
            return true;
        };
        let block = self.ledger.blocks[victim as usize];
        self.tell_eviction(block.owner, block.number);
        let piece = Piece {
            owner: block.owner,
            number: block.number,
            pages: u32::MAX,
            ticket: None,
            displaced: 0,
            leaves: true,
        };
        self.queues[OUT].push_back(piece);
        if let Some(waiting) = self.queues[IN].front_mut() {
            waiting.displaced += 1;
        }
        true
    }

    /// A kernel touches a range, in the order of addresses, from `at` on. Answers when it has all
    /// of it, with faults handled and prefetches waited for.
    pub fn touch(&mut self, at: Ns, owner: Owner, range: Range, write: bool) -> Ns {
        self.advance_to(at);
        if self.ledger.is_ready(owner, range, write) {
            return at;
        }
        let mut time = at.max(self.now);
        // Faults that the batch being gathered has room for.
        let mut room = 0;
        let parts: Vec<_> = self.ledger.each(owner, range).collect();
        for (at, part, pages) in parts {
            loop {
                let block = self.ledger.blocks[at as usize];
                let missing = pages & !block.device;
                let stale = if write { pages & block.shared() } else { 0 };
                if missing | stale == 0 {
                    break;
                }
                if missing & block.arriving != 0 || self.waits && missing & block.queued != 0 {
                    time = self.await_arrival(time, at, missing);
                    continue;
                }
                if room == 0 {
                    room = self.ledger.settings.batch_faults.max(1);
                }
                let (faulted, faults) = self.ledger.faulting(range, part.number, missing | stale, room);
                room = room.saturating_sub(faults);
                let (end, came) = self.handle(time, at, faulted);
                time = end;
                if !came {
                    let still = missing & !self.ledger.blocks[at as usize].held();
                    self.ledger.stay_on_host(at, still);
                    time = self.take_link(IN, time, bytes(still));
                    break;
                }
            }
        }
        self.advance_to(time);
        time
    }

    /// Waits until a block's pages are no longer on their way or queued.
    fn await_arrival(&mut self, time: Ns, at: u32, missing: u32) -> Ns {
        let mut time = time;
        if !self.waits {
            // The fault finds the page on its way: it costs its handling, side by side with what is
            // left of the transfer.
            let owner = self.ledger.blocks[at as usize].owner;
            self.ledger.usage_mut(owner).faults += 1;
            time += self.ledger.settings.fault_batch;
            self.advance_to(time);
        }
        loop {
            let block = &self.ledger.blocks[at as usize];
            let coming = missing & (block.arriving | if self.waits { block.queued } else { 0 });
            if coming == 0 {
                return time;
            }
            let Some(next) = self.next_event() else {
                // Nothing will bring them: a queue that is empty has nothing queued.
                self.ledger.blocks[at as usize].queued = 0;
                return time;
            };
            time = time.max(next);
            self.advance_to(next);
        }
    }

    /// The driver handles a batch's faults in one block. Answers when, and whether the pages came:
    /// where nothing can make room, the kernel reads them over the link.
    fn handle(&mut self, time: Ns, at: u32, faulted: u32) -> (Ns, bool) {
        let time = time + self.ledger.settings.fault_batch;
        self.advance_to(time);
        let block = &self.ledger.blocks[at as usize];
        let (stale, missing) = (faulted & block.shared(), faulted & !block.held());
        self.ledger.forget_host(at, stale);
        let wanted = match missing {
            0 => 0,
            missing => self.ledger.widened(at, missing),
        };
        let need = bytes(wanted);
        let mut time = self.make_room(time, need, at);
        if self.ledger.used() + need > self.ledger.room() {
            return (time, false);
        }
        let fault = self.ledger.fault_in(at, wanted);
        if fault.copied > 0 {
            time = self.take_link(IN, time, fault.copied);
        }
        self.advance_to(time);
        (time, true)
    }

    /// Evicts until `need` bytes fit, one block after the other. Answers when they do.
    fn make_room(&mut self, time: Ns, need: u64, but: u32) -> Ns {
        let mut time = time;
        while self.ledger.used() + need > self.ledger.room() {
            if let Some(moving) = self.moving[OUT] {
                time = time.max(moving.until);
                self.advance_to(moving.until);
                continue;
            }
            let Some(victim) = self.ledger.victim(but) else {
                match self.moving[IN] {
                    Some(moving) => {
                        time = time.max(moving.until);
                        self.advance_to(moving.until);
                        continue;
                    }
                    // Memory that cannot move takes nearly all of the device.
                    None => break,
                }
            };
            let (owner, number) = {
                let block = &self.ledger.blocks[victim as usize];
                (block.owner, block.number)
            };
            self.tell_eviction(owner, number);
            let (copied, _) = self.ledger.begin_departure(victim, u32::MAX);
            self.ledger.usage_mut(owner).evicted += copied;
            time += self.ledger.settings.evict_block;
            if copied > 0 {
                time = self.take_link(OUT, time, copied);
            }
            self.ledger.end_departure(copied);
        }
        time
    }

    fn tell_eviction(&mut self, owner: Owner, number: u64) {
        if let Some(evictions) = &mut self.evictions {
            evictions.push((owner, number));
        }
    }

    /// Moves a fault's data as soon as the piece on the link is through.
    fn take_link(&mut self, direction: usize, time: Ns, size: u64) -> Ns {
        let wait = |moving: &Option<Moving>| moving.map_or(0, |moving| moving.until);
        let mut start = time.max(self.taken[direction]).max(wait(&self.moving[direction]));
        if !self.ledger.settings.duplex {
            start = start
                .max(wait(&self.moving[1 - direction]))
                .max(self.taken[1 - direction]);
        }
        let busy = self.moving[1 - direction].is_some_and(|moving| moving.until > start);
        let took = self.ledger.settings.transfer(direction == OUT, size, busy);
        self.busy[direction] += took;
        self.taken[direction] = start + took;
        start + took
    }
}
