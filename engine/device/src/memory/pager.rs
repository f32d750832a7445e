// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger in virtual time: when prefetches move over the link, and how long a kernel stands
//! still for missing pages.
//!
//! Each direction of the link moves one piece (a prefetch's part of one block) at a time, in the
//! order of requests. A piece towards the device waits while something leaves or is to leave.
//! Otherwise the driver evicts a block for it, as for a fault. Faults do not queue: their data goes
//! next.
//!
//! [`Pager::touch`] and [`Pager::take_plain`] let time pass to their end, so the pager's clock can
//! be ahead of its caller's. A caller's request at an earlier time then counts from the pager's
//! time.

use std::collections::{HashMap, VecDeque};

use super::range::{PAGES, bytes};
use super::{Ledger, MemoryError, MemorySettings, Owner, OwnerUsage, Range};
use crate::time::{Ns, earlier};

/// A prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Towards the device, and away from it: indices of the arrays below.
const IN: usize = 0;
const OUT: usize = 1;

/// The pages of one block that are to move.
#[derive(Debug, Clone, Copy)]
struct Piece {
    owner: Owner,
    number: u64,
    pages: u32,
    /// Its prefetch; `None` if the driver makes room.
    ticket: Option<Ticket>,
    /// Blocks evicted for it, see [`Pager::want_room`].
    displaced: u32,
    /// Whether it leaves the device even if read-mostly.
    leaves: bool,
}

/// A piece on the link.
#[derive(Debug, Clone, Copy)]
struct Moving {
    piece: Piece,
    /// Bytes whose room becomes free; 0 towards the device.
    bytes: u64,
    until: Ns,
}

/// The ledger in virtual time, see the module.
#[derive(Debug, Clone)]
pub struct Pager {
    ledger: Ledger,
    now: Ns,
    queues: [VecDeque<Piece>; 2],
    moving: [Option<Moving>; 2],
    /// Time until which faults have each direction.
    taken: [Ns; 2],
    /// The direction that moved last: on a one-way link they take turns.
    last: usize,
    tickets: u64,
    /// Number of pieces not moved yet, by prefetch.
    open: HashMap<Ticket, u64>,
    ended: VecDeque<(Ticket, Ns)>,
    /// Whether kernels wait for pages of queued prefetches rather than fault on them, as a launch
    /// that waits for its prefetch's event.
    waits: bool,
    /// Time for which each direction moved data.
    busy: [Ns; 2],
    /// Blocks evicted to make room, if wanted.
    evictions: Option<Vec<(Owner, u64)>>,
}

impl Pager {
    /// An empty device at time zero. `waits`: whether kernels wait for queued prefetches.
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

    /// Sets whether kernels wait for queued prefetches or fault ahead of them.
    pub fn waits(&mut self, waits: bool) {
        self.waits = waits;
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The pager's time.
    pub fn now(&self) -> Ns {
        self.now
    }

    /// Counts of an owner.
    pub fn usage(&self, owner: Owner) -> OwnerUsage {
        self.ledger.usage(owner)
    }

    /// Time for which each direction moved data: towards the device, towards the host.
    pub fn busy(&self) -> [Ns; 2] {
        self.busy
    }

    /// Keeps evicted blocks for [`Pager::take_evictions`] from here on.
    pub fn keep_evictions(&mut self) {
        self.evictions.get_or_insert_default();
    }

    /// Blocks evicted to make room since the last call: owner, address over the block size.
    pub fn take_evictions(&mut self) -> Vec<(Owner, u64)> {
        self.evictions.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether anything moves or waits to move.
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

    /// Sets the amount of device memory that cannot move, up to the capacity, and evicts blocks in
    /// the way.
    pub fn set_plain(&mut self, at: Ns, size: u64) {
        self.advance_to(at);
        let plain = self.ledger.plain();
        if size > plain {
            let size = size.min(self.ledger.settings().capacity);
            // It fits, as checked above. The evictions delay only prefetches.
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

    /// Forgets an owner and its memory. Its prefetches end now.
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
        // Collapsed copies have left room.
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

    /// Takes device memory that cannot move, evicting blocks in the way. Returns the time when it
    /// is there.
    pub fn take_plain(&mut self, at: Ns, size: u64) -> Result<Ns, MemoryError> {
        self.advance_to(at);
        self.ledger.take_plain(size)?;
        let end = self.make_room(self.now.max(at), 0, u32::MAX);
        self.advance_to(end);
        self.ledger.plain_came();
        Ok(end)
    }

    /// Returns memory taken by [`Pager::take_plain`].
    pub fn give_plain(&mut self, at: Ns, size: u64) {
        self.advance_to(at);
        self.ledger.give_plain(size);
        self.begin();
    }

    /// Appends a prefetch to its direction's queue. Towards the host, read-mostly memory is copied
    /// if the host has no copy, and stays on the device.
    pub fn prefetch(&mut self, at: Ns, owner: Owner, range: Range, to_host: bool) -> Ticket {
        self.enqueue(at, owner, range, to_host, false)
    }

    /// Has a range leave the device, read-mostly memory too. A caller of the driver needs three
    /// steps for that: prefer the host, end the advice (copies collapse) and prefetch, advise
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
            // Pages that are there may have left by their turn if anything moves before them.
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

    /// Time of the next event if nothing more is asked for.
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

    /// Time until which faults keep a direction from moving pieces.
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

    /// Starts the moves that can start now.
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
                // Pages that lay nowhere are made on the host.
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

    /// Makes room for a piece that finds the device full: waits for pages that are leaving, else
    /// evicts a block. Returns whether anything changed.
    ///
    /// Faults may take that room, and lose it to the piece's next attempt. Each evicted block
    /// leaves room for at least a page, so a piece with as many evictions as it can have pages is
    /// given up. Otherwise a kernel and a prefetch could take scarce room from each other for ever.
    fn want_room(&mut self, at: u32, piece: Piece) -> bool {
        if self.moving[OUT].is_some() || !self.queues[OUT].is_empty() {
            return false;
        }
        let victim = self.ledger.victim(at).filter(|_| piece.displaced < PAGES);
        let Some(victim) = victim else {
            // Nothing can leave: the prefetch stays undone, as with the driver.
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

    /// A kernel touches a range from `at` on, by ascending addresses. Answers when it has all of
    /// it, after faults and awaited prefetches.
    pub fn touch(&mut self, at: Ns, owner: Owner, range: Range, write: bool) -> Ns {
        self.advance_to(at);
        if self.ledger.is_ready(owner, range, write) {
            return at;
        }
        let mut time = at.max(self.now);
        // Faults for which the present batch has room.
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
            // The fault costs its handling, in parallel with the rest of the transfer.
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
                // Nothing will bring them: an empty queue has nothing queued.
                self.ledger.blocks[at as usize].queued = 0;
                return time;
            };
            time = time.max(next);
            self.advance_to(next);
        }
    }

    /// Handles a batch's faults in one block. Returns the time when it is done, and whether the
    /// pages came. If nothing can make room, the kernel reads them over the link.
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

    /// Evicts block by block until `need` bytes fit. Answers when they do.
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
