// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way into the engine: the clients' records by their time stamps.
//!
//! A record is an allegation. One that no honest client writes condemns its client and never
//! reaches the engine.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;

use weft_engine::memory::{Pager, Range};
use weft_engine::{Ns, OpId, Touch, Work};

use super::DeviceProcess;
use super::client::{ClientStream, MAX_CONTEXTS, MAX_STREAMS, MAX_TOUCHES};
use super::in_flight::Meta;
use crate::op::{Advice, Extra, LinkStream, NameId, Op, Seq, TouchedAddresses};
use crate::shared::board::wall_now;
use crate::shared::lane::SUBMISSIONS;
use crate::shared::record::Record;

/// Default time of a held kernel: after it the spinning kernels of real auto-tuners give up.
const HELD_KERNEL_NS: Ns = 100_000_000;

/// Largest range of managed memory in a record, bytes: more than any host has, little enough to
/// walk through.
const MAX_RANGE_BYTES: u64 = 1 << 42;

/// Records of a client after which it is notified that there is room.
const MAKE_ROOM_EVERY: u64 = 256;

impl DeviceProcess {
    /// Takes all present records, brings the engine to now and collects the events.
    pub(super) fn take_in(&mut self) {
        let mut now = wall_now();
        // The number of records that each client had written at the begin: a client that writes
        // without end does not keep the device here.
        let mut limits = Vec::with_capacity(self.clients.len());
        let mut heap = BinaryHeap::new();
        for (number, client) in self.clients.iter_mut().enumerate() {
            let Some(client) = client else {
                limits.push(0);
                continue;
            };
            // In this order: who asks later may have written records that this turn does not take.
            client.asked = client.lane.refresh.load(Ordering::SeqCst);
            let written = client.lane.written();
            if written.wrapping_sub(client.taken) > SUBMISSIONS as u64 {
                client.condemn("more records than there is room for");
                limits.push(client.taken);
                continue;
            }
            limits.push(written);
            if written != client.taken {
                heap.push(Reverse((stamp_of(client.lane.peek(client.taken)), number)));
            }
        }
        while let Some(Reverse((_, number))) = heap.pop() {
            let Some(client) = self.clients.get_mut(number).and_then(Option::as_mut) else {
                continue;
            };
            // Read again, once; only this copy is used from here on.
            let words = client.lane.peek(client.taken);
            client.taken += 1;
            let taken = client.taken;
            if taken.is_multiple_of(MAKE_ROOM_EVERY) {
                client.lane.take_up_to(taken);
            }
            self.counters.records += 1;
            match Record::read(&words) {
                Ok((record, mut stamp)) => {
                    if stamp > now {
                        now = wall_now();
                        // Stamps are taken before they are written, so one in the future is a lie;
                        // it counts as now.
                        stamp = stamp.min(now);
                    }
                    let at = self.clock.device(stamp);
                    if let Err(why) = self.apply(number, at, record) {
                        self.condemn(number, why);
                        continue;
                    }
                }
                Err(_) => {
                    self.condemn(number, "a record that is none");
                    continue;
                }
            }
            let limit = limits.get(number).copied().unwrap_or(taken);
            if taken != limit
                && let Some(client) = self.clients.get(number).and_then(Option::as_ref)
            {
                heap.push(Reverse((stamp_of(client.lane.peek(taken)), number)));
            }
        }
        for client in self.clients.iter().flatten() {
            client.lane.take_up_to(client.taken);
        }
        let now = self.clock.device(now.max(wall_now()));
        self.engine.advance_to(now);
        self.balance();
        self.collect();
    }

    fn condemn(&mut self, number: usize, why: &str) {
        if let Some(client) = self.clients.get_mut(number).and_then(Option::as_mut) {
            client.condemn(why);
        }
    }

    /// The condemned clients; they are counted.
    pub(super) fn take_cut(&mut self) -> Vec<usize> {
        let mut cut = Vec::new();
        for (number, client) in self.clients.iter().enumerate() {
            if let Some(client) = client
                && let Some(why) = &client.cut
            {
                self.counters.cut += 1;
                self.counters.last_cut = Some(format!("{} ({}): {why}", client.name, client.pid));
                cut.push(number);
            }
        }
        cut
    }

    fn apply(&mut self, number: usize, at: Ns, record: Record) -> Result<(), &'static str> {
        const GONE: &str = "a client that is gone";
        let client = self.clients.get_mut(number).and_then(Option::as_mut).ok_or(GONE)?;
        match record {
            Record::Submit { stream, seq, op, extra } => self.submit(number, at, stream, seq, op, extra),
            Record::HostDone(seq) => {
                if let Some(op) = client.pending(seq) {
                    // The wrong kind of operation: nothing to release.
                    let _ = self.engine.release(at, op);
                }
                Ok(())
            }
            Record::OpenContext { ctx, priority } => {
                if client.contexts.len() >= MAX_CONTEXTS || client.contexts.contains_key(&ctx.0) {
                    return Err("a context that cannot be opened");
                }
                self.engine.advance_to(at);
                let context = self.engine.add_context();
                client.contexts.insert(ctx.0, context);
                let set = self.engine.set_context_priority(context, priority);
                set.map_err(|_| "a context that cannot be opened")
            }
            Record::CloseContext(ctx) => {
                let context = client
                    .contexts
                    .remove(&ctx.0)
                    .ok_or("a context that cannot be closed")?;
                client.streams.retain(|_, stream| stream.ctx != ctx.0);
                self.engine.advance_to(at);
                let _ = self.engine.remove_context(context);
                Ok(())
            }
            Record::OpenStream { ctx, stream, priority } => {
                if client.streams.len() >= MAX_STREAMS || client.streams.contains_key(&stream.0) {
                    return Err("a stream that cannot be opened");
                }
                let context = *client.contexts.get(&ctx.0).ok_or("a stream of no context")?;
                let id = self
                    .engine
                    .add_stream(context, priority)
                    .map_err(|_| "a stream of no context")?;
                let ctx = ctx.0;
                client.streams.insert(stream.0, ClientStream { id, ctx, priority });
                Ok(())
            }
            Record::CloseStream(stream) => {
                // It may have gone with its context a moment ago.
                if let Some(stream) = client.streams.remove(&stream.0) {
                    let _ = self.engine.close_stream(stream.id);
                }
                Ok(())
            }
            Record::Manage { start, bytes, ends } => {
                let (owner, range) = (number as u32, range(start, bytes)?);
                if ends {
                    self.with_pager(at, |pager, at| pager.free(at, owner, range));
                    return Ok(());
                }
                // Refused: overlapping, or more than it took of the board.
                let taken = |pager: &mut Pager, _| {
                    pager
                        .allocate(owner, range)
                        .map(|()| pager.fill_from_host(owner, range))
                };
                match self.with_pager(at, taken) {
                    Some(Ok(())) => Ok(()),
                    _ => Err("managed memory that cannot be"),
                }
            }
            Record::Advise {
                start,
                bytes,
                advice,
                on,
            } => {
                let (owner, range) = (number as u32, range(start, bytes)?);
                self.with_pager(at, |pager, at| match advice {
                    Advice::ReadMostly => pager.advise_read_mostly(at, owner, range, on),
                    Advice::PreferDevice => pager.prefer_device(at, owner, range, on),
                });
                Ok(())
            }
            Record::Touch(touch) => {
                if client.touches.len() >= MAX_TOUCHES {
                    return Err("an operation that uses more than there are parameters");
                }
                range(touch.start, touch.bytes)?;
                client.touches.push(touch);
                Ok(())
            }
        }
    }

    /// Does something with managed memory at a time.
    fn with_pager<T>(&mut self, at: Ns, body: impl FnOnce(&mut Pager, Ns) -> T) -> Option<T> {
        self.engine.advance_to(at);
        let now = self.engine.now();
        Some(body(self.engine.memory_mut()?, now))
    }

    /// Tells the ledger how much memory cannot move, and the board how much managed memory is on
    /// the device.
    pub(super) fn balance(&mut self) {
        let plain = u64::try_from(self.board.used()).unwrap_or(u64::MAX);
        let now = self.engine.now();
        let Some(pager) = self.engine.memory_mut() else { return };
        pager.set_plain(now, plain);
        for number in 0..self.clients.len() {
            self.board.set_resident(number, pager.usage(number as u32).resident);
        }
    }

    fn submit(
        &mut self,
        number: usize,
        at: Ns,
        stream: LinkStream,
        seq: Seq,
        op: Op,
        extra: Extra,
    ) -> Result<(), &'static str> {
        let name = match op {
            Op::Kernel(launch) => launch.name,
            _ => extra.label,
        };
        let name = self.name_of(number, name);
        const GONE: &str = "a client that is gone";
        let client = self.clients.get_mut(number).and_then(Option::as_mut).ok_or(GONE)?;
        let touches = std::mem::take(&mut client.touches);
        let open = *client.streams.get(&stream.0).ok_or("work for no stream")?;
        let mut meta = Meta {
            client: number as u32,
            seq,
            ctx: open.ctx,
            stream: stream.0,
            priority: open.priority,
            submitted: at,
            op,
            name,
            graph: extra.graph,
            prompt: extra.prompt,
        };
        let work = match op {
            Op::Kernel(launch) if launch.held => {
                meta.prompt = true;
                Work::Kernel {
                    duration: launch.duration.unwrap_or(HELD_KERNEL_NS),
                    held: true,
                }
            }
            Op::Kernel(launch) => {
                let duration = launch.duration.unwrap_or_else(|| {
                    let text = self.names.name(name);
                    self.durations.of(u64::from(name), text, launch.grid, launch.block)
                });
                match launch.dependent {
                    true => Work::Dependent { duration },
                    false => Work::Kernel { duration, held: false },
                }
            }
            Op::Copy { direction, bytes } => Work::Copy { direction, bytes },
            Op::Prefetch { to_host, start, bytes } => Work::Prefetch {
                owner: number as u32,
                range: range(start, bytes)?,
                to_host,
            },
            Op::Discard { start, bytes } => Work::Discard {
                owner: number as u32,
                range: range(start, bytes)?,
            },
            Op::Memset { bytes } => Work::Memset { bytes },
            Op::Marker => Work::Marker,
            Op::Record { timed } => Work::Record { timed },
            Op::WaitFor(other) => Work::WaitFor(client.pending(other).unwrap_or(OpId::DONE)),
            Op::Host => {
                meta.prompt = true;
                Work::Host
            }
        };
        let prompt = meta.prompt;
        let tag = self.metas.put(meta);
        let of_engine = |touch: TouchedAddresses| Touch {
            owner: number as u32,
            range: Range::new(touch.start, touch.bytes),
            write: touch.write,
        };
        let touches = touches.into_iter().map(of_engine).collect();
        let id = match self.engine.submit_touching(at, open.id, work, tag, touches) {
            Ok(id) => id,
            Err(_) => {
                self.metas.take(tag);
                return Err("work for no stream");
            }
        };
        // Booked before outputs are collected, which is after all records.
        if !client.begin(seq, id) {
            return Err("an operation numbered wrongly");
        }
        if prompt {
            client.prompts.push_back(id);
        }
        Ok(())
    }

    /// The device's id of a client's name, whose message may still be in the socket.
    fn name_of(&mut self, number: usize, name: NameId) -> u32 {
        if name == NameId::NONE {
            return 0;
        }
        for attempt in 0..2 {
            let client = self.clients.get(number).and_then(Option::as_ref);
            if let Some(&known) = client.and_then(|client| client.names.get(&name.0)) {
                return known;
            }
            if attempt == 0 {
                // If this reads the socket's end, it stays readable: the door will see it.
                self.hear_client(number);
            }
        }
        0
    }
}

/// A range that a client names.
fn range(start: u64, bytes: u64) -> Result<Range, &'static str> {
    if bytes > MAX_RANGE_BYTES || start.checked_add(bytes).is_none() {
        return Err("a range beyond any device");
    }
    Ok(Range::new(start, bytes))
}

fn stamp_of(words: crate::shared::record::Words) -> u64 {
    words.get(2).copied().unwrap_or(0)
}
