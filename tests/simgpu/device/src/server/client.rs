// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device's view of one client.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use weft_engine::{ContextId, Engine, Ns, OpId, StreamId};

use crate::op::{Seq, TouchedAddresses};
use crate::shared::lane::{Lane, News, SLOTS};
use crate::shared::mapping::Mapping;

/// Most contexts of a client. No real process has more than a few.
pub(super) const MAX_CONTEXTS: usize = 256;

/// Most open streams of a client. Real drivers get slow long before.
pub(super) const MAX_STREAMS: usize = 65_536;

/// Most names of a client.
pub(super) const MAX_NAMES: usize = 262_144;

/// Most ranges of one operation. The parameters of a launch hold 512 pointers.
pub(super) const MAX_TOUCHES: usize = 512;

/// The operation that last used a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotUse {
    pub(super) seq: Seq,
    pub(super) op: OpId,
    pub(super) pending: bool,
}

/// An open stream of a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientStream {
    pub(super) id: StreamId,
    /// The client's number of its context.
    pub(super) ctx: u32,
    /// A lower number goes first.
    pub(super) priority: i32,
}

/// The device's view of one client.
pub(super) struct Client {
    pub(super) lane: Mapping<Lane>,
    pub(super) socket: OwnedFd,
    /// Readable after the process's end, even if a forked child keeps a copy of the socket.
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) pid: u32,
    pub(super) name: String,
    /// The client's id of a name to the device's.
    pub(super) names: HashMap<u32, u32>,
    pub(super) contexts: HashMap<u32, ContextId>,
    pub(super) streams: HashMap<u32, ClientStream>,
    pub(super) slots: Vec<SlotUse>,
    /// Greatest seq so far.
    pub(super) last: Seq,
    pub(super) outstanding: usize,
    /// Prompt operations that may not have ended, oldest first.
    pub(super) prompts: VecDeque<OpId>,
    /// Records taken from the lane; the lane's own index is for the client.
    pub(super) taken: u64,
    /// News reported.
    pub(super) told: u64,
    /// Last refresh that was asked for before the last records were taken.
    pub(super) asked: u64,
    /// Last refresh that was served.
    pub(super) refreshed: u64,
    /// Whether it got news since its waiters were last looked at.
    pub(super) has_news: bool,
    /// Whether a prompt operation has news.
    pub(super) has_prompt_news: bool,
    /// Touches of the next operation.
    pub(super) touches: Vec<TouchedAddresses>,
    /// Reason to cut it off.
    pub(super) cut: Option<String>,
}

impl Client {
    pub(super) fn new(lane: Mapping<Lane>, socket: OwnedFd, pidfd: Option<OwnedFd>, pid: u32, name: String) -> Client {
        Client {
            lane,
            socket,
            pidfd,
            pid,
            name,
            names: HashMap::new(),
            contexts: HashMap::new(),
            streams: HashMap::new(),
            slots: Vec::new(),
            last: Seq::NONE,
            outstanding: 0,
            prompts: VecDeque::new(),
            taken: 0,
            told: 0,
            asked: 0,
            refreshed: 0,
            has_news: false,
            has_prompt_news: false,
            touches: Vec::new(),
            cut: None,
        }
    }

    /// The operation of a seq, if it has not ended.
    pub(super) fn pending(&self, seq: Seq) -> Option<OpId> {
        self.slots
            .get(seq.slot())
            .filter(|slot| slot.pending && slot.seq == seq)
            .map(|slot| slot.op)
    }

    /// Books a new operation. False: an impossible seq.
    pub(super) fn begin(&mut self, seq: Seq, op: OpId) -> bool {
        if seq.count() <= self.last.count() {
            return false;
        }
        let slot = seq.slot();
        debug_assert!(slot < SLOTS, "a seq has no more slot bits");
        if slot >= self.slots.len() {
            let unused = SlotUse {
                seq: Seq::NONE,
                op: OpId::DONE,
                pending: false,
            };
            self.slots.resize(slot + 1, unused);
        }
        let Some(place) = self.slots.get_mut(slot) else {
            return false;
        };
        if place.pending {
            return false;
        }
        *place = SlotUse { seq, op, pending: true };
        self.last = seq;
        self.outstanding += 1;
        true
    }

    /// Books an operation's end.
    pub(super) fn end(&mut self, seq: Seq) {
        if let Some(place) = self.slots.get_mut(seq.slot())
            && place.pending
            && place.seq == seq
        {
            place.pending = false;
            self.outstanding -= 1;
        }
    }

    /// Marks the client as one to be cut off; the first reason stays.
    pub(super) fn condemn(&mut self, why: &str) {
        if self.cut.is_none() {
            self.cut = Some(why.to_owned());
        }
    }

    /// Tells the client something. A client that does not take its news is condemned.
    pub(super) fn tell(&mut self, news: News) {
        if self.lane.tell(self.told, news) {
            self.told += 1;
            self.has_news = true;
        } else {
            self.condemn("news it does not take");
        }
    }

    /// Writes down until when nothing of this client can end, so that it need not ask again and
    /// again.
    pub(super) fn publish_bound(&mut self, engine: &Engine) {
        let mut bound = Ns::MAX;
        for op in self.heads(engine) {
            bound = bound.min(engine.earliest_end(op).unwrap_or(0));
        }
        // In this order: a reader of the new count sees the new bound or none.
        self.lane.bound.store(0, Ordering::SeqCst);
        self.lane.bound_count.store(self.taken, Ordering::SeqCst);
        self.lane.bound.store(bound, Ordering::SeqCst);
    }

    fn heads(&self, engine: &Engine) -> Vec<OpId> {
        self.streams
            .values()
            .filter_map(|stream| engine.head_of(stream.id))
            .collect()
    }
}
