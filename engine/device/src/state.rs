// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts, streams and operations; how streams move on, and the outcome of each operation.
//!
//! The engines ([`crate::compute`], [`crate::copies`]) decide which ready operation runs when. They
//! take it from here, and report here when it ran, stopped or ended.
//!
//! Invariant between calls of [`crate::Engine`]: the head of every stream is blocked by something
//! that will move it on (a timer, an engine, another operation, the caller).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::error::EngineError;
use crate::memory::{Owner, Pager, Range};
use crate::paging::{Paging, Touch};
use crate::ready::ReadyOps;
use crate::slab::{Slab, SlabKey};
use crate::time::{Ns, earlier};
use crate::work::{Direction, OpId, Output, Segment, StreamId, Work};
use crate::{ContextId, ContextUsage, KernelShape, Settings, Usage};

/// An operation's place on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Behind others in its stream, or not ready by time.
    Queued,
    /// At the head, blocked by another operation or the host.
    Blocked,
    /// At the head, in an engine's ready set.
    Ready,
    /// On an engine.
    Running,
    /// Preempted; its context resumes it first.
    Frozen,
}

#[derive(Debug, Clone)]
struct EngineOp {
    stream: SlabKey,
    context: SlabKey,
    tag: u64,
    work: Work,
    shape: KernelShape,
    /// Managed memory that it uses.
    touches: Vec<Touch>,
    /// The earliest start: submission and launch latency.
    ready_at: Ns,
    /// Engine time still owed.
    left: Ns,
    /// The stream's work up to and with this operation.
    cumulative: Ns,
    start: Option<Ns>,
    progress: Progress,
    /// The caller ended it before it was reached.
    released: bool,
    /// Streams whose head waits for this operation.
    waiters: Vec<SlabKey>,
    segments: Vec<Segment>,
}

#[derive(Debug, Clone)]
struct EngineStream {
    context: SlabKey,
    priority: i32,
    ops: VecDeque<SlabKey>,
    /// Work ever submitted: the sum of the durations that are known in advance.
    submitted: Ns,
    /// The part of `submitted` that has ended.
    ended: Ns,
    closing: bool,
    /// A timer will look at the head.
    timed: bool,
    /// The head is in a pause that a timer ends: a gap between kernels, or an event's record.
    pausing: bool,
    /// Earliest begin of the next kernel or memset: the end of the last one, and a gap.
    free_at: Ns,
    /// Begin and end of the kernel that the next operation comes after, if no other one is between.
    before: Option<(Ns, Ns)>,
}

#[derive(Debug, Clone, Default)]
struct EngineContext {
    /// Lower goes first.
    priority: i32,
    streams: Vec<SlabKey>,
    compute: ReadyOps,
    /// The kernel that a slice's end froze.
    frozen: Option<SlabKey>,
    /// Streams whose head is in a pause.
    pausing: usize,
    copies: [ReadyOps; 2],
    usage: ContextUsage,
}

/// A context that got something ready for an engine.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ready {
    /// For the compute engine.
    Compute(SlabKey),
    /// For the copy engine of this index.
    Copy(usize, SlabKey),
}

/// All that the engine knows of submitted work, and its time.
#[derive(Debug, Clone)]
pub(crate) struct EngineState {
    settings: Settings,
    now: Ns,
    contexts: Slab<EngineContext>,
    streams: Slab<EngineStream>,
    ops: Slab<EngineOp>,
    /// When a stream's head becomes ready by time: time, order, stream.
    timers: BinaryHeap<Reverse<(Ns, u64, SlabKey)>>,
    /// Streams to move on at this instant.
    moving: VecDeque<SlabKey>,
    order: u64,
    outputs: VecDeque<Output>,
    usage: Usage,
    paging: Option<Box<Paging>>,
}

impl EngineState {
    pub(crate) fn new(settings: Settings, paging: Option<Box<Paging>>) -> EngineState {
        EngineState {
            settings,
            now: 0,
            contexts: Slab::new(),
            streams: Slab::new(),
            ops: Slab::new(),
            timers: BinaryHeap::new(),
            moving: VecDeque::new(),
            order: 0,
            outputs: VecDeque::new(),
            usage: Usage::default(),
            paging,
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn now(&self) -> Ns {
        self.now
    }

    pub(crate) fn set_now(&mut self, now: Ns) {
        self.now = now;
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    pub(crate) fn usage_mut(&mut self) -> &mut Usage {
        &mut self.usage
    }

    pub(crate) fn pager(&self) -> Option<&Pager> {
        self.paging.as_ref().map(|paging| paging.pager())
    }

    pub(crate) fn pager_mut(&mut self) -> Option<&mut Pager> {
        self.paging.as_mut().map(|paging| paging.pager_mut())
    }

    pub(crate) fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub(crate) fn push_output(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    // Contexts and streams.

    pub(crate) fn add_context(&mut self) -> SlabKey {
        self.contexts.insert(EngineContext::default())
    }

    pub(crate) fn has_context(&self, context: SlabKey) -> bool {
        self.contexts.get(context).is_some()
    }

    /// A context's rank under MPS: its own priority, then that of its next operation's stream.
    /// Lower numbers go first. Zeroes for a context that is gone.
    pub(crate) fn rank(&self, context: SlabKey) -> (i32, i32) {
        let rank = |context: &EngineContext| (context.priority, context.compute.priority().unwrap_or(0));
        self.contexts.get(context).map_or((0, 0), rank)
    }

    pub(crate) fn set_context_priority(&mut self, context: SlabKey, priority: i32) -> Result<(), EngineError> {
        let state = self.contexts.get_mut(context).ok_or(EngineError::NoContext)?;
        state.priority = priority;
        Ok(())
    }

    pub(crate) fn context_usage(&self, context: SlabKey) -> Option<ContextUsage> {
        self.contexts.get(context).map(|context| context.usage)
    }

    /// Forgets a context with its streams; their operations come out as aborted. No engine runs any
    /// of them any more.
    pub(crate) fn remove_context(&mut self, context: SlabKey) {
        let Some(gone) = self.contexts.remove(context) else {
            return;
        };
        for key in gone.streams {
            let Some(stream) = self.streams.remove(key) else {
                continue;
            };
            for key in stream.ops {
                if let Some(op) = self.ops.remove(key) {
                    self.usage.aborted += 1;
                    self.moving.extend(op.waiters);
                    self.outputs.push_back(Output::Aborted {
                        op: OpId(key),
                        tag: op.tag,
                        start: op.start,
                        at: self.now,
                    });
                }
            }
        }
        let streams = &self.streams;
        self.timers.retain(|Reverse((_, _, key))| streams.get(*key).is_some());
    }

    pub(crate) fn add_stream(&mut self, context: SlabKey, priority: i32) -> Result<StreamId, EngineError> {
        let owner = self.contexts.get_mut(context).ok_or(EngineError::NoContext)?;
        let key = self.streams.insert(EngineStream {
            context,
            priority,
            ops: VecDeque::new(),
            submitted: 0,
            ended: 0,
            closing: false,
            timed: false,
            pausing: false,
            free_at: 0,
            before: None,
        });
        owner.streams.push(key);
        Ok(StreamId(key))
    }

    pub(crate) fn close_stream(&mut self, stream: SlabKey) -> Result<(), EngineError> {
        let state = self.streams.get_mut(stream).ok_or(EngineError::NoStream)?;
        state.closing = true;
        self.forget_closed(stream);
        Ok(())
    }

    fn forget_closed(&mut self, key: SlabKey) {
        let Some(stream) = self.streams.get(key) else { return };
        if !stream.closing || !stream.ops.is_empty() {
            return;
        }
        if let Some(context) = self.contexts.get_mut(stream.context) {
            context.streams.retain(|&other| other != key);
        }
        self.streams.remove(key);
    }

    // Operations.

    /// Puts an operation at the end of a stream. Answers its key, and whether it is the head.
    pub(crate) fn submit(
        &mut self,
        stream: SlabKey,
        work: Work,
        shape: KernelShape,
        tag: u64,
        touches: Vec<Touch>,
    ) -> Result<(SlabKey, bool), EngineError> {
        let state = self.streams.get_mut(stream).ok_or(EngineError::NoStream)?;
        if state.closing {
            return Err(EngineError::NoStream);
        }
        let left = self.settings.duration(work);
        let known = match work {
            Work::Kernel { held: true, .. } => 0,
            _ => left.saturating_sub(self.settings.early(work)),
        };
        state.submitted = state.submitted.saturating_add(known);
        let key = self.ops.insert(EngineOp {
            stream,
            context: state.context,
            tag,
            work,
            shape,
            touches,
            ready_at: self.now.saturating_add(self.settings.launch_latency),
            left,
            cumulative: state.submitted,
            start: None,
            progress: Progress::Queued,
            released: false,
            waiters: Vec::new(),
            segments: Vec::new(),
        });
        state.ops.push_back(key);
        if let Some(context) = self.contexts.get_mut(state.context) {
            context.usage.outstanding += 1;
        }
        self.usage.submitted += 1;
        let is_head = state.ops.len() == 1;
        if is_head {
            self.moving.push_back(stream);
        }
        Ok((key, is_head))
    }

    /// Marks a host operation or a held kernel as ended by the caller. Answers whether it is a
    /// kernel that runs: the compute engine ends that.
    pub(crate) fn release(&mut self, op: SlabKey) -> Result<bool, EngineError> {
        let Some(state) = self.ops.get_mut(op) else {
            return Ok(false);
        };
        match state.work {
            Work::Host => {
                state.released = true;
                if state.progress == Progress::Blocked {
                    self.moving.push_back(state.stream);
                }
            }
            Work::Kernel { held: true, .. } => {
                state.released = true;
                if state.progress == Progress::Running {
                    return Ok(true);
                }
                state.left = 0;
            }
            _ => return Err(EngineError::NotReleasable),
        }
        Ok(false)
    }

    pub(crate) fn head_of(&self, stream: SlabKey) -> Option<SlabKey> {
        self.streams.get(stream)?.ops.front().copied()
    }

    pub(crate) fn is_done(&self, op: SlabKey) -> bool {
        self.ops.get(op).is_none()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.ops.len()
    }

    /// Whether an operation belongs to a context.
    pub(crate) fn is_of(&self, op: SlabKey, context: SlabKey) -> bool {
        self.ops.get(op).is_some_and(|op| op.context == context)
    }

    /// A time before which `key` cannot end, see [`crate::Engine::earliest_end`]. Waits for other
    /// operations are followed `depth` deep. `ran` is how long an operation has run in its present
    /// piece.
    pub(crate) fn earliest_end(&self, key: SlabKey, depth: u32, ran: &impl Fn(SlabKey) -> Ns) -> Option<Ns> {
        let op = self.ops.get(key)?;
        let stream = self.streams.get(op.stream)?;
        let &head_key = stream.ops.front()?;
        let head = self.ops.get(head_key)?;
        let mut begin = self.now.max(head.ready_at);
        if head.work.computes() && head.start.is_none() {
            begin = begin.max(self.earliest_begin(head, stream));
        }
        match head.work {
            // Until the stream gets there, only the clock moves it on. Then the client gets the
            // news, and a thread that sleeps until this time looks again.
            Work::Host if !head.released => return Some(if head.start.is_some() { Ns::MAX } else { begin }),
            Work::WaitFor(OpId(other)) if depth > 0 => {
                if let Some(other) = self.earliest_end(other, depth - 1, ran) {
                    begin = begin.max(other);
                }
            }
            _ => {}
        }
        let rest = op.cumulative.saturating_sub(stream.ended);
        let progress = match (head.work, head.start) {
            (Work::Kernel { held: true, .. }, _) => 0,
            (Work::Record { .. } | Work::Beside { .. }, Some(start)) => self.now.saturating_sub(start),
            _ => {
                let over = self.settings.duration(head.work).saturating_sub(head.left);
                let known = over.saturating_add(ran(head_key));
                known.saturating_sub(self.settings.early(head.work))
            }
        };
        Some(op.ready_at.max(begin.saturating_add(rest.saturating_sub(progress))))
    }

    // Time and streams.

    /// When something happens next that no engine knows of: a timer, a prefetch's end.
    pub(crate) fn next_event(&self) -> Option<Ns> {
        let paging = self.paging.as_ref().and_then(|paging| paging.next_event());
        earlier(paging, self.timers.peek().map(|Reverse((at, _, _))| *at))
    }

    /// Ends the prefetches that end now.
    pub(crate) fn end_prefetches(&mut self) {
        let now = self.now;
        while let Some(key) = self.paging.as_mut().and_then(|paging| paging.next_ended(now)) {
            self.end(key);
        }
    }

    /// Has the streams whose time has come move on.
    pub(crate) fn end_timers(&mut self) {
        while let Some(&Reverse((at, _, stream))) = self.timers.peek() {
            if at > self.now {
                break;
            }
            self.timers.pop();
            if let Some(state) = self.streams.get_mut(stream) {
                state.timed = false;
                if std::mem::take(&mut state.pausing)
                    && let Some(context) = self.contexts.get_mut(state.context)
                {
                    context.pausing -= 1;
                }
            }
            self.moving.push_back(stream);
        }
    }

    /// Moves streams on until one has something ready for an engine, and answers for which. `None`:
    /// nothing moves at this instant any more.
    pub(crate) fn next_ready(&mut self) -> Option<Ready> {
        while let Some(stream) = self.moving.pop_front() {
            if let Some(ready) = self.move_on(stream) {
                return Some(ready);
            }
        }
        None
    }

    /// Ends operations that can end at the head of a stream. Returns the engine that the first
    /// other operation needs, if it needs one.
    fn move_on(&mut self, stream: SlabKey) -> Option<Ready> {
        loop {
            let state = self.streams.get(stream)?;
            let Some(&key) = state.ops.front() else {
                self.forget_closed(stream);
                return None;
            };
            let op = self.ops.get(key)?;
            match op.progress {
                Progress::Queued => {}
                Progress::Blocked => {}
                Progress::Ready | Progress::Running | Progress::Frozen => return None,
            }
            let begin = self.earliest_begin(op, state);
            if begin > self.now {
                let pauses = op.ready_at <= self.now;
                self.look_again(stream, begin, pauses);
                return None;
            }
            let state = self.streams.get_mut(stream)?;
            let op = self.ops.get_mut(key)?;
            self.order += 1;
            let (context, priority) = (op.context, state.priority);
            match op.work {
                Work::Prefetch { owner, range, to_host } => {
                    if op.start.is_some() {
                        return None;
                    }
                    op.start = Some(self.now);
                    op.progress = Progress::Blocked;
                    if self.begin_prefetch(key, owner, range, to_host) {
                        self.end(key);
                        continue;
                    }
                    return None;
                }
                Work::Discard { owner, range } => {
                    op.start = Some(self.now);
                    let now = self.now;
                    if let Some(pager) = self.pager_mut() {
                        pager.discard(now, owner, range);
                    }
                    self.end(key);
                }
                Work::Marker => {
                    op.start = Some(self.now);
                    self.end(key);
                }
                Work::Record { .. } | Work::Beside { .. } => {
                    let end = op.start.get_or_insert(self.now).saturating_add(op.left);
                    if end > self.now {
                        op.progress = Progress::Blocked;
                        self.look_again(stream, end, true);
                        return None;
                    }
                    state.free_at = state.free_at.saturating_add(op.left);
                    self.end(key);
                }
                Work::WaitFor(OpId(other)) => {
                    op.start.get_or_insert(self.now);
                    if other != key && self.ops.get(other).is_some() {
                        self.block(key, other);
                        return None;
                    }
                    self.end(key);
                }
                Work::Host => {
                    if op.start.is_none() {
                        op.start = Some(self.now);
                        op.progress = Progress::Blocked;
                        self.announce(key);
                    }
                    if !self.ops.get(key).is_some_and(|op| op.released) {
                        return None;
                    }
                    self.end(key);
                }
                Work::Kernel { .. } | Work::Dependent { .. } | Work::Memset { .. } => {
                    op.progress = Progress::Ready;
                    if let Some(context) = self.contexts.get_mut(context) {
                        context.compute.push(priority, self.order, key);
                    }
                    return Some(Ready::Compute(context));
                }
                Work::Copy { direction, .. } => {
                    op.progress = Progress::Ready;
                    let engine = match direction {
                        Direction::HostToDevice | Direction::DeviceToDevice => 0,
                        Direction::DeviceToHost => 1,
                    };
                    if let Some(context) = self.contexts.get_mut(context) {
                        context.copies[engine].push(priority, self.order, key);
                    }
                    return Some(Ready::Copy(engine, context));
                }
            }
        }
    }

    /// Earliest begin of a stream's head.
    fn earliest_begin(&self, head: &EngineOp, stream: &EngineStream) -> Ns {
        match head.work {
            work if !work.computes() => head.ready_at,
            work if self.settings.early(work) > 0 && stream.before.is_some() => head.ready_at,
            _ => head.ready_at.max(stream.free_at),
        }
    }

    /// Has a stream move on at a time, unless a timer is set. In a pause its context keeps the
    /// compute engine.
    fn look_again(&mut self, stream: SlabKey, at: Ns, pauses: bool) {
        let Some(state) = self.streams.get_mut(stream) else {
            return;
        };
        if state.timed {
            return;
        }
        state.timed = true;
        self.order += 1;
        self.timers.push(Reverse((at, self.order, stream)));
        if pauses && let Some(context) = self.contexts.get_mut(state.context) {
            state.pausing = true;
            context.pausing += 1;
        }
    }

    /// Begins a prefetch for the head of a stream. Answers whether it has ended by now.
    fn begin_prefetch(&mut self, key: SlabKey, owner: Owner, range: Range, to_host: bool) -> bool {
        let now = self.now;
        match &mut self.paging {
            Some(paging) => {
                paging.begin_prefetch(now, key, owner, range, to_host);
                false
            }
            None => true,
        }
    }

    /// Remembers that the head `waiter` waits for `other`. Heads that wait for each other in a
    /// circle stay blocked for ever, as on a real device.
    fn block(&mut self, waiter: SlabKey, other: SlabKey) {
        let Some(op) = self.ops.get_mut(waiter) else { return };
        let first = op.progress != Progress::Blocked;
        op.progress = Progress::Blocked;
        let stream = op.stream;
        if first && let Some(other) = self.ops.get_mut(other) {
            other.waiters.push(stream);
        }
    }

    fn announce(&mut self, key: SlabKey) {
        if let Some(op) = self.ops.get(key) {
            self.outputs.push_back(Output::Reached {
                op: OpId(key),
                tag: op.tag,
                at: self.now,
            });
        }
    }

    /// Ends the head of a stream now: reports it and wakes the operations that waited for it.
    fn end(&mut self, key: SlabKey) {
        let Some(op) = self.ops.remove(key) else { return };
        let ran = op.start.filter(|_| op.work.is_kernel()).map(|start| (start, self.now));
        if let Some(stream) = self.streams.get_mut(op.stream) {
            stream.ops.pop_front();
            stream.ended = op.cumulative;
            if op.work.computes() {
                stream.free_at = self.now.saturating_add(self.settings.kernel_gap);
            }
            if !matches!(op.work, Work::WaitFor(_)) {
                stream.before = ran;
            }
        }
        for &waiter in &op.waiters {
            if let Some(stream) = self.streams.get_mut(waiter) {
                stream.before = ran;
            }
        }
        if let Some(context) = self.contexts.get_mut(op.context) {
            context.usage.outstanding -= 1;
            context.usage.ended += 1;
        }
        self.usage.ended += 1;
        self.moving.push_back(op.stream);
        self.moving.extend(op.waiters);
        self.outputs.push_back(Output::Done {
            op: OpId(key),
            tag: op.tag,
            context: ContextId(op.context),
            start: op.start.unwrap_or(self.now),
            end: self.now,
            segments: op.segments,
        });
    }

    // For the engines.

    /// Whether a context has something for the compute engine.
    pub(crate) fn has_compute(&self, context: SlabKey) -> bool {
        self.contexts
            .get(context)
            .is_some_and(|context| context.frozen.is_some() || !context.compute.is_empty())
    }

    /// Whether a stream of a context is in a pause between two operations.
    pub(crate) fn pauses(&self, context: SlabKey) -> bool {
        self.contexts.get(context).is_some_and(|context| context.pausing > 0)
    }

    /// The frozen kernel of a context, else its best operation for the compute engine.
    pub(crate) fn pop_compute(&mut self, context: SlabKey) -> Option<SlabKey> {
        let owner = self.contexts.get_mut(context)?;
        owner.frozen.take().or_else(|| owner.compute.pop())
    }

    /// Priorities of an operation's context and stream, and its shape.
    pub(crate) fn dispatch_of(&self, key: SlabKey) -> ((i32, i32), KernelShape) {
        let Some(op) = self.ops.get(key) else {
            return ((0, 0), KernelShape::default());
        };
        let context = self.contexts.get(op.context).map_or(0, |context| context.priority);
        let stream = self.streams.get(op.stream).map_or(0, |stream| stream.priority);
        ((context, stream), op.shape)
    }

    /// The best operation of a context for a copy engine, and whether the context has more.
    pub(crate) fn pop_copy(&mut self, context: SlabKey, engine: usize) -> Option<(SlabKey, bool)> {
        let ready = &mut self.contexts.get_mut(context)?.copies[engine];
        let key = ready.pop()?;
        Some((key, !ready.is_empty()))
    }

    /// An engine starts or resumes an operation. Answers when it ends unless it is stopped.
    pub(crate) fn run(&mut self, key: SlabKey) -> Option<Ns> {
        let now = self.now;
        let op = self.ops.get_mut(key)?;
        let first = op.start.is_none();
        if first {
            op.start = Some(now);
            let early = self.settings.early(op.work);
            let before = self.streams.get(op.stream).and_then(|stream| stream.before);
            if let Some((begin, end)) = before
                && early > 0
                && end == now
            {
                let room = now.saturating_sub(begin.max(op.ready_at));
                let over = early.min(room).min(op.left);
                op.left -= over;
                op.start = Some(now - over);
            }
            if let Some(paging) = &mut self.paging {
                let stall = paging.stall(now, &std::mem::take(&mut op.touches));
                op.left = op.left.saturating_add(stall);
            }
        }
        op.progress = Progress::Running;
        let until = now.saturating_add(op.left);
        if first && !op.released && matches!(op.work, Work::Kernel { held: true, .. }) {
            self.announce(key);
        }
        Some(until)
    }

    /// The compute engine stops an operation that has run since `since`.
    pub(crate) fn freeze(&mut self, key: SlabKey, since: Ns) {
        self.account_compute(key, since);
        let (now, trace) = (self.now, self.settings.trace);
        let Some(op) = self.ops.get_mut(key) else { return };
        op.left = op.left.saturating_sub(now - since);
        op.progress = Progress::Frozen;
        if trace {
            op.segments.push((since, now));
        }
        if let Some(context) = self.contexts.get_mut(op.context) {
            context.frozen = Some(key);
        }
        self.usage.preemptions += 1;
    }

    /// The compute engine ends an operation that has run since `since`.
    pub(crate) fn end_compute(&mut self, key: SlabKey, since: Ns) {
        self.account_compute(key, since);
        if let Some(op) = self.ops.get_mut(key)
            && !op.segments.is_empty()
        {
            op.segments.push((since, self.now));
        }
        self.end(key);
    }

    /// The shared compute engine ends an operation that takes `alone` on an otherwise idle device.
    pub(crate) fn end_shared(&mut self, key: SlabKey, alone: Ns) {
        if let Some(usage) = self.usage_of(key) {
            usage.compute += alone;
        }
        self.end(key);
    }

    /// A copy engine ends an operation that has run since `since`.
    pub(crate) fn end_copy(&mut self, engine: usize, key: SlabKey, since: Ns) {
        let ran = self.now - since;
        self.usage.copies[engine] += ran;
        if let Some(usage) = self.usage_of(key) {
            usage.copies[engine] += ran;
        }
        self.end(key);
    }

    fn account_compute(&mut self, key: SlabKey, since: Ns) {
        let ran = self.now - since;
        self.usage.compute += ran;
        if let Some(usage) = self.usage_of(key) {
            usage.compute += ran;
        }
    }

    /// The sums of the context that an operation belongs to.
    fn usage_of(&mut self, key: SlabKey) -> Option<&mut ContextUsage> {
        let context = self.ops.get(key)?.context;
        Some(&mut self.contexts.get_mut(context)?.usage)
    }
}
