// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way to the device: contexts, streams, names, operations.
//!
//! The outbox's lock orders a client's submissions. It is never held while waiting for a stream,
//! the lane or the window, so other threads can do what ends the wait.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::MutexGuard;

use super::error::LinkError;
use super::{Link, STREAM_DEPTH};
use crate::lock::lock;
use crate::op::{Ctx, Extra, LinkStream, NameId, Op, Seq, TouchedAddresses};
use crate::shared::board::wall_now;
use crate::shared::lane::{SLOTS, SUBMISSIONS};
use crate::shared::record::Record;
use crate::wire::{self, Request};

/// Every so-many-th operation of a stream is remembered, so that a submission can wait for room
/// rather than for each end.
const MARK_EVERY: u64 = 256;

/// Submissions between two requests to the device while its ring is more than half full.
const ASK_EVERY: u64 = 512;

/// State of the submitting side.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Operations submitted so far.
    count: u64,
    /// Slots of ended operations, the longest ended first: its times are forgotten first.
    free: VecDeque<u16>,
    /// First slot never used so far.
    fresh: usize,
    contexts: HashSet<u32>,
    next_context: u32,
    /// By id; ids are not used twice.
    streams: Vec<Option<Box<StreamState>>>,
    names: HashMap<String, u32>,
}

#[derive(Debug)]
struct StreamState {
    ctx: Ctx,
    outstanding: u64,
    submitted: u64,
    /// The seqs of every [`MARK_EVERY`]th submission, oldest first.
    marks: VecDeque<Seq>,
}

/// The bound that a submission has to wait for.
enum Full {
    Stream(Option<Seq>),
    Window,
    Lane,
}

impl Outbox {
    fn take_slot(&mut self) -> Option<u16> {
        if self.fresh < SLOTS {
            let slot = self.fresh as u16;
            self.fresh += 1;
            return Some(slot);
        }
        self.free.pop_front()
    }

    fn has_slot(&self) -> bool {
        self.fresh < SLOTS || !self.free.is_empty()
    }

    fn stream(&mut self, stream: LinkStream) -> Option<&mut StreamState> {
        self.streams.get_mut(stream.0 as usize)?.as_deref_mut()
    }

    /// Books ended operations: their slots and streams.
    pub(super) fn settle(&mut self, ended: &[(u16, u32)]) {
        for &(slot, stream) in ended {
            self.free.push_back(slot);
            if let Some(state) = self.stream(LinkStream(stream)) {
                state.outstanding = state.outstanding.saturating_sub(1);
            }
        }
    }
}

impl Link {
    pub(super) fn outbox(&self) -> MutexGuard<'_, Outbox> {
        lock(&self.outbox)
    }

    /// A new context; it takes [`crate::config::DeviceConfig::context_memory`].
    pub fn context(&self) -> Result<Ctx, LinkError> {
        self.check()?;
        self.reserve(self.welcome.context_memory)?;
        self.empty_context()
    }

    /// Takes the memory of a context made with [`Link::empty_context`].
    pub fn fill_context(&self) -> Result<(), LinkError> {
        self.reserve(self.welcome.context_memory)
    }

    /// Returns the memory of [`Link::fill_context`].
    pub fn drain_context(&self) {
        self.release(self.welcome.context_memory);
    }

    /// A new context that takes no memory yet: a primary one, before it is retained.
    pub fn empty_context(&self) -> Result<Ctx, LinkError> {
        self.check()?;
        let ctx = {
            let mut outbox = self.outbox();
            let ctx = Ctx(outbox.next_context);
            outbox.next_context += 1;
            outbox.contexts.insert(ctx.0);
            ctx
        };
        let priority = self.client_priority;
        self.tell(&Record::OpenContext { ctx, priority })?;
        Ok(ctx)
    }

    /// Ends a context with its streams and work at once; its operations are reported as ended now.
    /// Memory reserved in it is the caller's to release.
    pub fn close_context(&self, ctx: Ctx) -> Result<(), LinkError> {
        self.check()?;
        {
            let mut outbox = self.outbox();
            if !outbox.contexts.remove(&ctx.0) {
                return Err(LinkError::Unknown);
            }
            for stream in &mut outbox.streams {
                stream.take_if(|stream| stream.ctx == ctx);
            }
        }
        self.tell(&Record::CloseContext(ctx))?;
        self.release(self.welcome.context_memory);
        Ok(())
    }

    /// A new stream. A lower priority number goes first within the context, as CUDA counts.
    pub fn stream(&self, ctx: Ctx, priority: i32) -> Result<LinkStream, LinkError> {
        self.check()?;
        let stream = {
            let mut outbox = self.outbox();
            if !outbox.contexts.contains(&ctx.0) {
                return Err(LinkError::Unknown);
            }
            let stream = LinkStream(outbox.streams.len() as u32);
            outbox.streams.push(Some(Box::new(StreamState {
                ctx,
                outstanding: 0,
                submitted: 0,
                marks: VecDeque::new(),
            })));
            stream
        };
        self.tell(&Record::OpenStream { ctx, stream, priority })?;
        Ok(stream)
    }

    /// Closes a stream: it takes no more work, and goes when its work has ended.
    pub fn close_stream(&self, stream: LinkStream) -> Result<(), LinkError> {
        self.check()?;
        {
            let mut outbox = self.outbox();
            let state = outbox.streams.get_mut(stream.0 as usize).and_then(Option::take);
            if state.is_none() {
                return Err(LinkError::Unknown);
            }
        }
        self.tell(&Record::CloseStream(stream))
    }

    /// The id of a name. The first use costs a message to the device: ask once a kernel, not once a
    /// launch.
    pub fn name(&self, name: &str) -> NameId {
        if !self.usable() || name.is_empty() {
            return NameId::NONE;
        }
        let name = wire::cut_name(name);
        let mut outbox = self.outbox();
        if let Some(&id) = outbox.names.get(name) {
            return NameId(id);
        }
        let id = outbox.names.len() as u32 + 1;
        outbox.names.insert(name.to_owned(), id);
        let message = Request::Name {
            id,
            name: name.to_owned(),
        };
        // Under the lock, so the message precedes any launch that uses the id. If it cannot be sent
        // the device is gone, and the next wait will fail.
        let _ = wire::send(&self.socket, &message, &[]);
        NameId(id)
    }

    /// Puts an operation at the end of a stream. Waits while the stream has [`STREAM_DEPTH`]
    /// operations outstanding, or the link [`crate::WINDOW`].
    pub fn submit(&self, stream: LinkStream, op: Op, extra: Extra) -> Result<Seq, LinkError> {
        self.submit_touching(stream, op, extra, &[])
    }

    /// [`Link::submit`] for an operation that uses managed memory.
    pub fn submit_touching(
        &self,
        stream: LinkStream,
        op: Op,
        extra: Extra,
        touches: &[TouchedAddresses],
    ) -> Result<Seq, LinkError> {
        self.check()?;
        let prompt = extra.prompt
            || match op {
                Op::Host => true,
                Op::Kernel(launch) => launch.held,
                _ => false,
            };
        loop {
            let full = {
                let mut outbox = self.outbox();
                match self.room(&mut outbox, stream, touches.len())? {
                    None => {
                        // Under the one lock, so nothing comes between them and the operation.
                        for touch in touches {
                            self.lane.submit(&Record::Touch(*touch).words(wall_now()));
                        }
                        let seq = self.put(&mut outbox, stream, op, extra)?;
                        drop(outbox);
                        if prompt {
                            // The device must know when it is due.
                            self.ask();
                        }
                        return Ok(seq);
                    }
                    Some(full) => full,
                }
            };
            if self.hearing.is_mine() {
                return Err(LinkError::Reentrant);
            }
            match full {
                Full::Stream(Some(mark)) => {
                    self.wait(mark, None)?;
                }
                Full::Stream(None) | Full::Window => self.wait_for_any()?,
                Full::Lane => self.refresh()?,
            }
        }
    }

    /// The bound that leaves no room for a submission to `stream`, if any.
    fn room(&self, outbox: &mut Outbox, stream: LinkStream, touches: usize) -> Result<Option<Full>, LinkError> {
        let has_slot = outbox.has_slot();
        let state = outbox.stream(stream).ok_or(LinkError::Unknown)?;
        if state.outstanding >= STREAM_DEPTH {
            while let Some(&mark) = state.marks.front() {
                if !self.known(mark).is_done() {
                    return Ok(Some(Full::Stream(Some(mark))));
                }
                state.marks.pop_front();
            }
            return Ok(Some(Full::Stream(None)));
        }
        if !has_slot {
            return Ok(Some(Full::Window));
        }
        if self.lane.backlog() + touches as u64 >= SUBMISSIONS as u64 {
            return Ok(Some(Full::Lane));
        }
        Ok(None)
    }

    /// Writes a submission that fits.
    fn put(&self, outbox: &mut Outbox, stream: LinkStream, op: Op, extra: Extra) -> Result<Seq, LinkError> {
        let slot = outbox.take_slot().ok_or(LinkError::Unknown)?;
        outbox.count += 1;
        let seq = Seq::new(outbox.count, slot);
        let state = outbox.stream(stream).ok_or(LinkError::Unknown)?;
        state.outstanding += 1;
        state.submitted += 1;
        if state.submitted.is_multiple_of(MARK_EVERY) {
            state.marks.push_back(seq);
            if state.marks.len() as u64 > STREAM_DEPTH / MARK_EVERY {
                state.marks.pop_front();
            }
        }
        if let Some(place) = self.slots.get(seq.slot()) {
            place.begin(seq, stream, extra.token);
        }
        // Stamped under the lock, so stamps in a lane never fall.
        self.lane
            .submit(&Record::Submit { stream, seq, op, extra }.words(wall_now()));
        let backlog = self.lane.backlog();
        if backlog >= SUBMISSIONS as u64 / 2 && backlog.is_multiple_of(ASK_EVERY) {
            self.ask();
        }
        Ok(seq)
    }

    /// Ends an [`Op::Host`] or a held kernel. Does nothing for others.
    pub fn host_done(&self, seq: Seq) -> Result<(), LinkError> {
        self.check()?;
        self.tell(&Record::HostDone(seq))?;
        self.ask();
        Ok(())
    }

    /// Writes a record other than an operation, waiting for room if need be.
    pub(super) fn tell(&self, record: &Record) -> Result<(), LinkError> {
        loop {
            {
                let _order = self.outbox();
                if self.lane.submit(&record.words(wall_now())) {
                    return Ok(());
                }
            }
            self.refresh()?;
        }
    }
}
