// SPDX-License-Identifier: MIT OR Apache-2.0
//! Residency without time, and the bytes that each change moves.
//!
//! Invariants after every call: `used` is the room of pages on the device and on their way to or
//! from it. It is at most [`Ledger::room`], except while room is being made for plain memory. An
//! owner's usage is the sum over its blocks. A block is in the order of eviction exactly if it
//! takes room on the device.

use super::block::{Block, NONE, widen};
use super::order::EvictionOrder;
use super::range::{BlockPart, PAGE_BYTES, bytes, mask};
use super::table::{Cursor, Table};
use super::{MemorySettings, Owner, OwnerUsage, Range};

/// Reason for refusing a call. The ledger is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryError {
    /// The host cannot hold that much managed memory.
    HostFull,
    /// The device has not that much for memory that cannot move.
    DeviceFull,
    /// Part of the range is allocated already, or the range is empty.
    Taken,
}

impl std::fmt::Display for MemoryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MemoryError::HostFull => "more managed memory than the host can hold",
            MemoryError::DeviceFull => "more plain memory than the device has",
            MemoryError::Taken => "memory that is allocated already, or of no size",
        })
    }
}

impl std::error::Error for MemoryError {}

/// Location of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagePlace {
    /// Never touched, or discarded.
    Nowhere,
    /// Only on the host.
    Host,
    /// Only on the device.
    Device,
    /// On both, with equal content.
    Both,
}

/// The data that moves to handle one block's faults, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fault {
    /// Copied to the device.
    pub copied: u64,
    /// Came to be there without a copy.
    pub created: u64,
}

#[derive(Debug, Clone, Default)]
struct OwnerState {
    table: Table,
    usage: OwnerUsage,
}

/// Residency of all owners' managed memory, see the module.
#[derive(Debug, Clone)]
pub struct Ledger {
    pub(super) settings: MemorySettings,
    pub(super) blocks: Vec<Block>,
    free: Vec<u32>,
    owners: Vec<Option<OwnerState>>,
    pub(super) order: EvictionOrder,
    /// Room taken on the device, bytes.
    used: u64,
    /// Device memory that cannot move.
    plain: u64,
    /// The part of `plain` for which room has been made.
    plain_there: u64,
    allocated: u64,
    /// Managed bytes on the host, of all owners.
    on_host: u64,
    peaks: Peaks,
}

/// Greatest values so far, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peaks {
    /// Room on the device of managed pages and of memory that cannot move.
    pub device: u64,
    /// Managed memory on the host.
    pub host: u64,
    /// Managed memory allocated.
    pub allocated: u64,
}

impl Ledger {
    /// An empty device.
    pub fn new(settings: MemorySettings) -> Ledger {
        Ledger {
            settings,
            blocks: Vec::new(),
            free: Vec::new(),
            owners: Vec::new(),
            order: EvictionOrder::new(),
            used: 0,
            plain: 0,
            plain_there: 0,
            allocated: 0,
            on_host: 0,
            peaks: Peaks::default(),
        }
    }

    /// Greatest values so far.
    pub fn peaks(&self) -> Peaks {
        self.peaks
    }

    /// Updates the greatest values.
    fn rise(&mut self) {
        let peaks = &mut self.peaks;
        peaks.device = peaks.device.max(self.used + self.plain_there);
        peaks.host = peaks.host.max(self.on_host);
        peaks.allocated = peaks.allocated.max(self.allocated);
    }

    /// Adds an owner's bytes on the host.
    fn more_on_host(&mut self, owner: Owner, bytes: u64) {
        self.usage_mut(owner).on_host += bytes;
        self.on_host += bytes;
        self.rise();
    }

    /// Subtracts an owner's bytes on the host.
    fn less_on_host(&mut self, owner: Owner, bytes: u64) {
        self.usage_mut(owner).on_host -= bytes;
        self.on_host -= bytes;
    }

    /// The settings in force.
    pub fn settings(&self) -> &MemorySettings {
        &self.settings
    }

    /// Room that managed memory takes on the device, bytes; memory on its way counts.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Room for managed pages, bytes.
    pub fn room(&self) -> u64 {
        self.settings.capacity.saturating_sub(self.plain)
    }

    /// Device memory that cannot move, bytes.
    pub fn plain(&self) -> u64 {
        self.plain
    }

    /// Managed bytes allocated by all owners.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Counts of an owner.
    pub fn usage(&self, owner: Owner) -> OwnerUsage {
        let state = self.owners.get(owner as usize).and_then(Option::as_ref);
        state.map(|state| state.usage).unwrap_or_default()
    }

    pub(super) fn usage_mut(&mut self, owner: Owner) -> &mut OwnerUsage {
        &mut self.state(owner).usage
    }

    fn state(&mut self, owner: Owner) -> &mut OwnerState {
        let at = owner as usize;
        if self.owners.len() <= at {
            self.owners.resize_with(at + 1, || None);
        }
        self.owners[at].get_or_insert_with(OwnerState::default)
    }

    fn table(&self, owner: Owner) -> Option<&Table> {
        Some(&self.owners.get(owner as usize)?.as_ref()?.table)
    }

    /// Index in `blocks` of an owner's block.
    pub(super) fn find(&self, owner: Owner, number: u64) -> Option<u32> {
        self.table(owner)?.get(number)
    }

    /// The allocated blocks of a range: index, part of the range, allocated pages in it.
    pub(super) fn each(&self, owner: Owner, range: Range) -> impl Iterator<Item = (u32, BlockPart, u32)> + '_ {
        let table = self.table(owner);
        let mut cursor = Cursor::default();
        range.parts().filter_map(move |part| {
            let at = table?.get_near(part.number, &mut cursor)?;
            let pages = part.pages & self.blocks[at as usize].valid;
            (pages != 0).then_some((at, part, pages))
        })
    }

    /// Allocates managed memory: whole pages, which lie nowhere yet. Takes their room on the host.
    pub fn allocate(&mut self, owner: Owner, range: Range) -> Result<(), MemoryError> {
        if range.len == 0 || self.each(owner, range).next().is_some() {
            return Err(MemoryError::Taken);
        }
        let size: u64 = range.parts().map(|part| bytes(part.pages)).sum();
        if self.allocated.saturating_add(size) > self.settings.host_limit {
            return Err(MemoryError::HostFull);
        }
        for part in range.parts() {
            let at = match self.find(owner, part.number) {
                Some(at) => at,
                None => self.new_block(owner, part.number),
            };
            self.blocks[at as usize].valid |= part.pages;
        }
        self.allocated += size;
        self.usage_mut(owner).allocated += size;
        self.rise();
        Ok(())
    }

    /// Puts pages that lie nowhere on the host: its owner may have written them there unseen.
    pub fn fill_from_host(&mut self, owner: Owner, range: Range) {
        let parts: Vec<(u32, u32)> = self.each(owner, range).map(|(at, _, pages)| (at, pages)).collect();
        for (at, pages) in parts {
            self.fill_block(at, pages);
        }
    }

    /// [`Ledger::fill_from_host`] for pages of a block.
    pub(super) fn fill_block(&mut self, at: u32, pages: u32) {
        let block = &mut self.blocks[at as usize];
        let new = pages & block.valid & !block.host & !block.held();
        block.host |= new;
        let owner = block.owner;
        self.more_on_host(owner, bytes(new));
    }

    fn new_block(&mut self, owner: Owner, number: u64) -> u32 {
        let block = Block::new(owner, number);
        let at = match self.free.pop() {
            Some(at) => {
                self.blocks[at as usize] = block;
                at
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        };
        self.state(owner).table.set(number, at);
        at
    }

    /// Frees managed memory; unallocated parts are skipped.
    pub fn free(&mut self, owner: Owner, range: Range) {
        let parts: Vec<(u32, u32)> = self.each(owner, range).map(|(at, _, pages)| (at, pages)).collect();
        for (at, pages) in parts {
            self.lose(at, pages);
            let block = &mut self.blocks[at as usize];
            block.valid &= !pages;
            block.read_mostly &= !pages;
            block.prefers_device &= !pages;
            let (number, empty) = (block.number, block.valid == 0);
            self.allocated -= bytes(pages);
            self.usage_mut(owner).allocated -= bytes(pages);
            if empty {
                self.state(owner).table.set(number, NONE);
                self.free.push(at);
            }
        }
    }

    /// Forgets an owner and all its memory.
    pub fn remove(&mut self, owner: Owner) {
        let Some(table) = self.table(owner) else { return };
        let blocks: Vec<u32> = table.all().collect();
        for at in blocks {
            self.lose(at, u32::MAX);
            self.allocated -= bytes(self.blocks[at as usize].valid);
            self.blocks[at as usize].valid = 0;
            self.free.push(at);
        }
        self.owners[owner as usize] = None;
    }

    /// Makes pages lie nowhere. Answers how many bytes lay somewhere.
    fn lose(&mut self, at: u32, pages: u32) -> u64 {
        let block = &mut self.blocks[at as usize];
        let held = block.held() & pages;
        let host = block.host & pages;
        let lay = bytes(held | host);
        block.device &= !pages;
        block.arriving &= !pages;
        block.host &= !pages;
        block.queued &= !pages;
        let owner = block.owner;
        self.used -= bytes(held);
        self.keep_order(at);
        self.usage_mut(owner).resident -= bytes(held);
        self.less_on_host(owner, bytes(host));
        lay
    }

    /// Takes a block that takes no room out of the order of eviction.
    fn keep_order(&mut self, at: u32) {
        if self.blocks[at as usize].held() == 0 {
            self.order.remove(&mut self.blocks, at);
        }
    }

    /// Discards contents: the pages lie nowhere until touched or prefetched again. Answers how many
    /// bytes lay somewhere.
    pub fn discard(&mut self, owner: Owner, range: Range) -> u64 {
        let parts: Vec<(u32, u32)> = self.each(owner, range).map(|(at, _, pages)| (at, pages)).collect();
        let lost = parts.into_iter().map(|(at, pages)| self.lose(at, pages)).sum();
        self.usage_mut(owner).discarded += lost;
        lost
    }

    /// Advises a range as read-mostly, or not. Pages on both places stay. Without the advice copies
    /// collapse: to the device's if that is the preferred location, else to the host's; the
    /// device's is then dropped.
    pub fn advise_read_mostly(&mut self, owner: Owner, range: Range, on: bool) {
        let parts: Vec<(u32, u32)> = self.each(owner, range).map(|(at, _, pages)| (at, pages)).collect();
        for (at, pages) in parts {
            let block = &mut self.blocks[at as usize];
            if on {
                block.read_mostly |= pages;
                continue;
            }
            block.read_mostly &= !pages;
            let both = block.shared() & pages;
            let (stale, leaving) = (both & block.prefers_device, both & !block.prefers_device);
            self.forget_host(at, stale);
            // All of it is on the host: nothing is on its way.
            self.begin_departure(at, leaving);
        }
    }

    /// Sets whether a range prefers the device. Moves nothing.
    pub fn prefer_device(&mut self, owner: Owner, range: Range, on: bool) {
        let parts: Vec<(u32, u32)> = self.each(owner, range).map(|(at, _, pages)| (at, pages)).collect();
        for (at, pages) in parts {
            let prefers = &mut self.blocks[at as usize].prefers_device;
            *prefers = if on { *prefers | pages } else { *prefers & !pages };
        }
    }

    /// Drops the host's copies of pages that lie on both.
    pub(super) fn forget_host(&mut self, at: u32, pages: u32) {
        let block = &mut self.blocks[at as usize];
        let gone = block.host & pages;
        block.host &= !pages;
        let owner = block.owner;
        self.less_on_host(owner, bytes(gone));
    }

    /// Whether a kernel finds all of a range on the device, for a write without host copies.
    pub fn is_ready(&self, owner: Owner, range: Range, write: bool) -> bool {
        self.each(owner, range).all(|(at, _, pages)| {
            let block = &self.blocks[at as usize];
            block.device & pages == pages && !(write && block.host & pages != 0)
        })
    }

    /// Number (address over the block size) of a range's first block that is not ready, see
    /// [`Ledger::is_ready`].
    pub fn first_unready(&self, owner: Owner, range: Range, write: bool) -> Option<u64> {
        let unready = |(at, part, pages): (u32, BlockPart, u32)| {
            let block = &self.blocks[at as usize];
            let ready = block.device & pages == pages && !(write && block.host & pages != 0);
            (!ready).then_some(part.number)
        };
        self.each(owner, range).find_map(unready)
    }

    /// Bytes of a range that are not on the device.
    pub fn missing(&self, owner: Owner, range: Range) -> u64 {
        let missing = |(at, _, pages): (u32, BlockPart, u32)| bytes(pages & !self.blocks[at as usize].device);
        self.each(owner, range).map(missing).sum()
    }

    /// Location of the page at an address. `None`: it is not allocated.
    pub fn place(&self, owner: Owner, address: u64) -> Option<PagePlace> {
        let (at, part, _) = self
            .each(owner, Range::new(address / PAGE_BYTES * PAGE_BYTES, PAGE_BYTES))
            .next()?;
        let block = &self.blocks[at as usize];
        Some(match (block.device & part.pages != 0, block.host & part.pages != 0) {
            (false, false) => PagePlace::Nowhere,
            (false, true) => PagePlace::Host,
            (true, false) => PagePlace::Device,
            (true, true) => PagePlace::Both,
        })
    }

    /// Takes device memory that cannot move. If there is too little room then,
    /// [`super::Pager::take_plain`] evicts.
    pub(super) fn take_plain(&mut self, size: u64) -> Result<(), MemoryError> {
        if self.plain.saturating_add(size) > self.settings.capacity {
            return Err(MemoryError::DeviceFull);
        }
        self.plain += size;
        Ok(())
    }

    /// Notes that its room has been made.
    pub(super) fn plain_came(&mut self) {
        self.plain_there = self.plain;
        self.rise();
    }

    pub(super) fn give_plain(&mut self, size: u64) {
        self.plain = self.plain.saturating_sub(size);
        self.plain_there = self.plain_there.min(self.plain);
    }

    /// The block to evict next, except one. Blocks that await arrivals stay.
    pub(super) fn victim(&self, but: u32) -> Option<u32> {
        self.order
            .iter(&self.blocks)
            .find(|at| *at != but && self.blocks[*at as usize].arriving == 0)
    }

    /// Takes room on the device for absent pages. Answers how many bytes must be copied.
    pub(super) fn begin_arrival(&mut self, at: u32, pages: u32) -> u64 {
        let block = &mut self.blocks[at as usize];
        let pages = pages & block.valid & !block.held();
        block.arriving |= pages;
        block.queued &= !pages;
        let (owner, copied) = (block.owner, bytes(pages & block.host));
        self.used += bytes(pages);
        self.usage_mut(owner).resident += bytes(pages);
        self.rise();
        if pages != 0 {
            self.order.touch(&mut self.blocks, at);
        }
        copied
    }

    /// Notes that pages have arrived.
    pub(super) fn end_arrival(&mut self, at: u32, pages: u32) {
        let block = &mut self.blocks[at as usize];
        let pages = pages & block.arriving;
        block.arriving &= !pages;
        block.device |= pages;
        let stale = pages & !block.read_mostly;
        self.forget_host(at, stale);
    }

    /// Has pages leave the device. Those that the host has are dropped; the others keep their room
    /// until [`Ledger::end_departure`]. Answers the bytes of both kinds: to copy, dropped.
    pub(super) fn begin_departure(&mut self, at: u32, pages: u32) -> (u64, u64) {
        let block = &mut self.blocks[at as usize];
        let pages = pages & block.device;
        let dropped = pages & block.host;
        let copied = pages & !block.host;
        block.device &= !pages;
        block.host |= pages;
        let owner = block.owner;
        self.used -= bytes(dropped);
        self.keep_order(at);
        let usage = self.usage_mut(owner);
        usage.resident -= bytes(pages);
        usage.dropped += bytes(dropped);
        self.more_on_host(owner, bytes(copied));
        (bytes(copied), bytes(dropped))
    }

    /// Copies pages to the host that stay on the device. Answers how many bytes must be copied.
    pub(super) fn duplicate(&mut self, at: u32, pages: u32) -> u64 {
        let block = &mut self.blocks[at as usize];
        let new = pages & block.device & !block.host;
        block.host |= new;
        let owner = block.owner;
        self.more_on_host(owner, bytes(new));
        bytes(new)
    }

    /// Frees the room of pages that have left.
    pub(super) fn end_departure(&mut self, size: u64) {
        self.used -= size;
    }

    /// Notes pages that a kernel used over the link: they are the host's now.
    pub(super) fn stay_on_host(&mut self, at: u32, pages: u32) {
        let block = &mut self.blocks[at as usize];
        let new = pages & !block.host & !block.held();
        block.host |= new;
        let owner = block.owner;
        self.usage_mut(owner).faults += 1;
        self.more_on_host(owner, bytes(new));
    }

    /// The pages of a block, by address, that fit a batch with room for `room` faults of 4 KiB, and
    /// their number of faults.
    pub(super) fn faulting(&self, range: Range, number: u64, missing: u32, room: u32) -> (u32, u32) {
        let (mut pages, mut faults, mut left) = (0, 0, missing);
        while left != 0 {
            let page = left.trailing_zeros();
            let more = range.faults(number, page);
            if faults > 0 && faults + more > room {
                break;
            }
            pages |= mask(page, page + 1);
            faults += more;
            left &= left - 1;
        }
        (pages, faults)
    }

    /// The pages that the driver brings for faulted pages.
    pub(super) fn widened(&self, at: u32, faulted: u32) -> u32 {
        let block = &self.blocks[at as usize];
        faulted | widen(faulted, block.held(), block.valid, self.settings.threshold)
    }

    /// Brings pages at once. Returns the bytes that moved.
    pub(super) fn fault_in(&mut self, at: u32, pages: u32) -> Fault {
        let before = self.blocks[at as usize].held();
        let copied = self.begin_arrival(at, pages);
        let block = self.blocks[at as usize];
        let new = block.held() & !before;
        self.end_arrival(at, new);
        let fault = Fault {
            copied,
            created: bytes(new) - copied,
        };
        let usage = self.usage_mut(block.owner);
        usage.faults += 1;
        usage.faulted += fault.copied;
        usage.created += fault.created;
        fault
    }
}
