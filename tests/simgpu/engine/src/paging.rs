//! Managed memory on the device: what operations touch, prefetches and discards as operations, and
//! when the ledger's news is the engine's.
//!
//! A kernel, copy or memset pays for all pages that are missing when it starts, at its start: it
//! takes that much longer. While it does, the pager's clock is ahead of the engine's
//! ([`crate::memory::Pager`]), so a prefetch that is submitted meanwhile begins after it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::Ns;
use crate::engine::Engine;
use crate::memory::{MemorySettings, Owner, Pager, Range, Ticket};
use crate::slab::Key;

/// Managed memory that an operation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// Whose.
    pub owner: Owner,
    /// Which. What of it is not managed memory costs nothing.
    pub range: Range,
    /// Whether it is written.
    pub write: bool,
}

/// The engine's managed memory.
#[derive(Debug, Clone)]
pub(crate) struct Paging {
    pub(crate) pager: Pager,
    prefetches: HashMap<Ticket, Key>,
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

    pub(crate) fn next_event(&self) -> Option<Ns> {
        let ending = self.ending.peek().map(|Reverse((at, _))| *at);
        crate::engine::earlier(self.pager.next_event(), ending)
    }

    fn collect(&mut self) {
        while let Some((ticket, at)) = self.pager.next_ended() {
            self.ending.push(Reverse((at, ticket)));
        }
    }
}

impl Engine {
    /// Managed memory, if the device has it.
    pub fn memory(&self) -> Option<&Pager> {
        Some(&self.paging.as_ref()?.pager)
    }

    /// The same, to change it. Its calls take the time at which they happen: [`Engine::now`].
    pub fn memory_mut(&mut self) -> Option<&mut Pager> {
        Some(&mut self.paging.as_mut()?.pager)
    }

    /// Begins a prefetch for the head of a stream. Answers whether it has ended by now.
    pub(crate) fn begin_prefetch(&mut self, key: Key, owner: Owner, range: Range, to_host: bool) -> bool {
        let now = self.now;
        let Some(paging) = self.paging.as_mut() else {
            return true;
        };
        let ticket = paging.pager.prefetch(now, owner, range, to_host);
        paging.prefetches.insert(ticket, key);
        paging.collect();
        false
    }

    /// Ends the prefetches that end now.
    pub(crate) fn end_prefetches(&mut self) {
        let now = self.now;
        loop {
            let Some(paging) = self.paging.as_mut() else { return };
            paging.pager.advance_to(now);
            paging.collect();
            match paging.ending.peek() {
                Some(Reverse((at, _))) if *at <= now => {}
                _ => return,
            }
            if let Some(Reverse((_, ticket))) = paging.ending.pop()
                && let Some(key) = paging.prefetches.remove(&ticket)
            {
                self.end(key);
            }
        }
    }

    /// How long an operation that starts now stands still for what it touches.
    pub(crate) fn stall(&mut self, touches: &[Touch]) -> Ns {
        let now = self.now;
        let Some(paging) = self.paging.as_mut() else { return 0 };
        let mut time = now;
        for touch in touches {
            time = paging.pager.touch(time, touch.owner, touch.range, touch.write);
        }
        time - now
    }
}
