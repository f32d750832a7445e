// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory on the device: touches of operations, prefetches as operations, and the time at
//! which the ledger's news is the engine's.
//!
//! A kernel, copy or memset pays at its start for all pages that are missing then: it takes that
//! much longer. Meanwhile the pager's clock is ahead of the engine's ([`crate::memory::Pager`]), so
//! a prefetch that is submitted meanwhile begins after it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::memory::{MemorySettings, Owner, Pager, Range, Ticket};
use crate::slab::SlabKey;
use crate::time::{Ns, earlier};

/// Managed memory that an operation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// The owner of the memory.
    pub owner: Owner,
    /// The bytes touched. The part that is not managed memory costs nothing.
    pub range: Range,
    /// Whether it is written.
    pub write: bool,
}

/// The engine's managed memory.
#[derive(Debug, Clone)]
pub(crate) struct Paging {
    pager: Pager,
    prefetches: HashMap<Ticket, SlabKey>,
    /// Prefetches that end, and when: the pager can be ahead.
    ending: BinaryHeap<Reverse<(Ns, Ticket)>>,
}

impl Paging {
    pub(crate) fn new(settings: MemorySettings) -> Paging {
        Paging {
            pager: Pager::new(settings, false),
            prefetches: HashMap::new(),
            ending: BinaryHeap::new(),
        }
    }

    pub(crate) fn pager(&self) -> &Pager {
        &self.pager
    }

    pub(crate) fn pager_mut(&mut self) -> &mut Pager {
        &mut self.pager
    }

    pub(crate) fn next_event(&self) -> Option<Ns> {
        let ending = self.ending.peek().map(|Reverse((at, _))| *at);
        earlier(self.pager.next_event(), ending)
    }

    /// Begins the prefetch of an operation.
    pub(crate) fn begin_prefetch(&mut self, now: Ns, key: SlabKey, owner: Owner, range: Range, to_host: bool) {
        let ticket = self.pager.prefetch(now, owner, range, to_host);
        self.prefetches.insert(ticket, key);
        self.collect();
    }

    /// An operation whose prefetch has ended by `now`.
    pub(crate) fn next_ended(&mut self, now: Ns) -> Option<SlabKey> {
        loop {
            self.pager.advance_to(now);
            self.collect();
            let &Reverse((at, ticket)) = self.ending.peek()?;
            if at > now {
                return None;
            }
            self.ending.pop();
            if let Some(key) = self.prefetches.remove(&ticket) {
                return Some(key);
            }
        }
    }

    fn collect(&mut self) {
        while let Some((ticket, at)) = self.pager.next_ended() {
            self.ending.push(Reverse((at, ticket)));
        }
    }

    /// The time for which an operation that starts now stands still for the memory it touches.
    pub(crate) fn stall(&mut self, now: Ns, touches: &[Touch]) -> Ns {
        let mut time = now;
        for touch in touches {
            time = self.pager.touch(time, touch.owner, touch.range, touch.write);
        }
        time - now
    }
}
