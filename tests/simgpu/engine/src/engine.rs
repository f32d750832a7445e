//! The engine's state, what a caller can do with it, and how streams move on.
//!
//! What holds between calls: every stream's head is blocked by something that will move it on (a
//! timer, an engine, another operation, the caller), no engine that has ready work is idle, and
//! `outputs` has all that happened up to `now`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::compute::Compute;
use crate::copies::CopyEngine;
use crate::memory::MemorySettings;
use crate::paging::{Paging, Touch};
use crate::ready::ReadyOps;
use crate::slab::{Key, Slab};
use crate::{ContextId, ContextUsage, Direction, Ns, OpId, Output, Segment, Settings, StreamId, Usage, Work};

/// Why a call was refused. The engine is unchanged then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineError {
    /// The context is gone or never was.
    NoContext,
    /// The stream is gone, closing, or never was.
    NoStream,
    /// The operation waits for nothing that can be released.
    NotReleasable,
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EngineError::NoContext => "no such context",
            EngineError::NoStream => "no such stream",
            EngineError::NotReleasable => "the operation is no host operation and no held kernel",
        })
    }
}

impl std::error::Error for EngineError {}

/// Where an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
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
pub(crate) struct Op {
    pub(crate) stream: Key,
    pub(crate) context: Key,
    tag: u64,
    pub(crate) work: Work,
    /// Managed memory that it uses.
    pub(crate) touches: Vec<Touch>,
    /// The earliest start: submission and launch latency.
    ready_at: Ns,
    /// Engine time still owed.
    pub(crate) left: Ns,
    /// The stream's work up to and with this operation.
    cumulative: Ns,
    pub(crate) start: Option<Ns>,
    pub(crate) state: State,
    /// The caller ended it before it was reached.
    pub(crate) released: bool,
    /// Streams whose head waits for this operation.
    waiters: Vec<Key>,
    pub(crate) segments: Vec<Segment>,
}

#[derive(Debug, Clone)]
struct Stream {
    context: Key,
    priority: i32,
    ops: VecDeque<Key>,
    /// Work ever submitted: the sum of the durations that are known in advance.
    submitted: Ns,
    /// Of that, work that has ended.
    ended: Ns,
    closing: bool,
    /// A timer will look at the head.
    timed: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Context {
    streams: Vec<Key>,
    pub(crate) compute: ReadyOps,
    /// The kernel that a slice's end froze.
    pub(crate) frozen: Option<Key>,
    pub(crate) copies: [ReadyOps; 2],
    pub(crate) usage: ContextUsage,
}

/// The simulated GPU. See the crate's documentation for the model.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) settings: Settings,
    pub(crate) now: Ns,
    pub(crate) contexts: Slab<Context>,
    streams: Slab<Stream>,
    pub(crate) ops: Slab<Op>,
    pub(crate) compute: Compute,
    pub(crate) copies: [CopyEngine; 2],
    /// When a stream's head becomes ready by time: time, order, stream.
    timers: BinaryHeap<Reverse<(Ns, u64, Key)>>,
    /// Streams to move on at this instant.
    moving: VecDeque<Key>,
    order: u64,
    pub(crate) outputs: VecDeque<Output>,
    pub(crate) usage: Usage,
    pub(crate) paging: Option<Box<Paging>>,
}

impl Engine {
    /// A device at time zero with nobody on it.
    pub fn new(settings: Settings) -> Engine {
        Engine {
            settings: Settings {
                // A slice of nothing would never let anybody run.
                slice: settings.slice.max(1),
                ..settings
            },
            now: 0,
            contexts: Slab::new(),
            streams: Slab::new(),
            ops: Slab::new(),
            compute: Compute::default(),
            copies: Default::default(),
            timers: BinaryHeap::new(),
            moving: VecDeque::new(),
            order: 0,
            outputs: VecDeque::new(),
            usage: Usage::default(),
            paging: None,
        }
    }

    /// The same with managed memory.
    pub fn with_memory(settings: Settings, memory: MemorySettings) -> Engine {
        Engine {
            paging: Some(Box::new(Paging::new(memory))),
            ..Engine::new(settings)
        }
    }

    /// The parameters in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The engine's time.
    pub fn now(&self) -> Ns {
        self.now
    }

    /// A new context.
    pub fn add_context(&mut self) -> ContextId {
        ContextId(self.contexts.insert(Context::default()))
    }

    /// Ends a context as its process's death does: all its work is gone at once, also what runs.
    /// Whoever waited for it goes on.
    pub fn remove_context(&mut self, context: ContextId) -> Result<(), EngineError> {
        let gone = self.contexts.remove(context.0).ok_or(EngineError::NoContext)?;
        self.leave_compute(context.0);
        self.leave_copies(context.0);
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
        self.settle();
        Ok(())
    }

    /// A new stream. A lower `priority` number goes first within the context, as CUDA counts.
    pub fn add_stream(&mut self, context: ContextId, priority: i32) -> Result<StreamId, EngineError> {
        let owner = self.contexts.get_mut(context.0).ok_or(EngineError::NoContext)?;
        let key = self.streams.insert(Stream {
            context: context.0,
            priority,
            ops: VecDeque::new(),
            submitted: 0,
            ended: 0,
            closing: false,
            timed: false,
        });
        owner.streams.push(key);
        Ok(StreamId(key))
    }

    /// Takes no more work for the stream and forgets it once its work has ended.
    pub fn close_stream(&mut self, stream: StreamId) -> Result<(), EngineError> {
        let state = self.streams.get_mut(stream.0).ok_or(EngineError::NoStream)?;
        state.closing = true;
        self.forget_closed(stream.0);
        Ok(())
    }

    /// Puts `work` at the end of a stream, at time `at`; the engine is advanced to `at` first. A
    /// time that has passed counts as now. `tag` comes back with the output.
    pub fn submit(&mut self, at: Ns, stream: StreamId, work: Work, tag: u64) -> Result<OpId, EngineError> {
        self.submit_touching(at, stream, work, tag, Vec::new())
    }

    /// The same for work that uses managed memory: when it starts it stands still until all of it
    /// is on the device. Meaningful for kernels, copies and memsets.
    pub fn submit_touching(
        &mut self,
        at: Ns,
        stream: StreamId,
        work: Work,
        tag: u64,
        touches: Vec<Touch>,
    ) -> Result<OpId, EngineError> {
        self.arrive(at);
        let state = self.streams.get_mut(stream.0).ok_or(EngineError::NoStream)?;
        if state.closing {
            return Err(EngineError::NoStream);
        }
        let left = self.settings.duration(work);
        let known = if matches!(work, Work::Kernel { held: true, .. }) {
            0
        } else {
            left
        };
        state.submitted = state.submitted.saturating_add(known);
        let key = self.ops.insert(Op {
            stream: stream.0,
            context: state.context,
            tag,
            work,
            touches,
            ready_at: self.now.saturating_add(self.settings.launch_latency),
            left,
            cumulative: state.submitted,
            start: None,
            state: State::Queued,
            released: false,
            waiters: Vec::new(),
            segments: Vec::new(),
        });
        state.ops.push_back(key);
        if let Some(context) = self.contexts.get_mut(state.context) {
            context.usage.outstanding += 1;
        }
        self.usage.submitted += 1;
        if state.ops.len() == 1 {
            self.moving.push_back(stream.0);
            self.settle();
        }
        Ok(OpId(key))
    }

    /// Ends a host operation, or a held kernel, at time `at`. One that has not been reached yet
    /// will end when it is. One that has ended is left alone.
    pub fn release(&mut self, at: Ns, op: OpId) -> Result<(), EngineError> {
        self.arrive(at);
        let Some(state) = self.ops.get_mut(op.0) else {
            return Ok(());
        };
        match state.work {
            Work::Host => {
                state.released = true;
                if state.state == State::Blocked {
                    self.moving.push_back(state.stream);
                }
            }
            Work::Kernel { held: true, .. } => {
                state.released = true;
                if state.state == State::Running {
                    self.end_running();
                } else {
                    state.left = 0;
                }
            }
            _ => return Err(EngineError::NotReleasable),
        }
        self.settle();
        Ok(())
    }

    /// Lets time pass. Going back is ignored.
    pub fn advance_to(&mut self, time: Ns) {
        while let Some(next) = self.next_event_time() {
            if next > time {
                break;
            }
            self.now = next;
            self.usage.events += 1;
            self.end_compute();
            self.end_copies();
            self.end_prefetches();
            while let Some(&Reverse((at, _, stream))) = self.timers.peek() {
                if at > self.now {
                    break;
                }
                self.timers.pop();
                if let Some(state) = self.streams.get_mut(stream) {
                    state.timed = false;
                }
                self.moving.push_back(stream);
            }
            self.settle();
        }
        self.now = self.now.max(time);
    }

    /// When something happens next if nothing more is submitted. `None`: nothing will.
    pub fn next_event_time(&self) -> Option<Ns> {
        let mut next = self.compute.next_event();
        for copies in &self.copies {
            next = earlier(next, copies.next_event());
        }
        if let Some(paging) = &self.paging {
            next = earlier(next, paging.next_event());
        }
        earlier(next, self.timers.peek().map(|Reverse((at, _, _))| *at))
    }

    /// A time before which `op` cannot end, whatever is submitted; `Ns::MAX` while only the caller
    /// can move it on. `None`: it has ended. Exact when nobody else has work.
    pub fn earliest_end(&self, op: OpId) -> Option<Ns> {
        self.bound(op.0, 4)
    }

    fn bound(&self, key: Key, depth: u32) -> Option<Ns> {
        let op = self.ops.get(key)?;
        let stream = self.streams.get(op.stream)?;
        let head = stream.ops.front().and_then(|&head| self.ops.get(head))?;
        let mut begin = self.now.max(head.ready_at);
        match head.work {
            // Until it is reached nobody but the clock moves it on: then the client is told, and
            // whoever sleeps until this time looks again.
            Work::Host if !head.released => return Some(if head.start.is_some() { Ns::MAX } else { begin }),
            Work::WaitFor(OpId(other)) if depth > 0 => {
                if let Some(other) = self.bound(other, depth - 1) {
                    begin = begin.max(other);
                }
            }
            _ => {}
        }
        let rest = op.cumulative.saturating_sub(stream.ended);
        let progress = if matches!(head.work, Work::Kernel { held: true, .. }) {
            0
        } else {
            self.settings
                .duration(head.work)
                .saturating_sub(head.left)
                .saturating_add(self.running_progress(stream.ops.front().copied()))
        };
        Some(op.ready_at.max(begin.saturating_add(rest.saturating_sub(progress))))
    }

    /// How long `op` has run in its present piece.
    fn running_progress(&self, op: Option<Key>) -> Ns {
        let Some(op) = op else { return 0 };
        let since = self
            .compute
            .running_since(op)
            .or_else(|| self.copies.iter().find_map(|engine| engine.running_since(op)));
        since.map_or(0, |since| self.now.saturating_sub(since))
    }

    /// The oldest operation of a stream that has not ended.
    pub fn head_of(&self, stream: StreamId) -> Option<OpId> {
        self.streams.get(stream.0)?.ops.front().copied().map(OpId)
    }

    /// Whether `op` has ended (or went with its context).
    pub fn is_done(&self, op: OpId) -> bool {
        self.ops.get(op.0).is_none()
    }

    /// The next thing that happened, in order.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Sums over the device.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Sums over a context.
    pub fn context_usage(&self, context: ContextId) -> Option<ContextUsage> {
        self.contexts.get(context.0).map(|context| context.usage)
    }

    /// Operations submitted and not ended.
    pub fn outstanding(&self) -> usize {
        self.ops.len()
    }

    fn arrive(&mut self, at: Ns) {
        if at < self.now {
            self.usage.late += 1;
        }
        self.advance_to(at);
    }

    /// Moves streams on until nothing moves at this instant, then lets the engines choose.
    fn settle(&mut self) {
        while let Some(stream) = self.moving.pop_front() {
            self.move_on(stream);
        }
        self.choose_compute();
        self.choose_copies();
    }

    /// Ends what can end at the head of a stream and hands the first operation that needs an engine
    /// to it.
    fn move_on(&mut self, stream: Key) {
        loop {
            let Some(state) = self.streams.get_mut(stream) else {
                return;
            };
            let Some(&key) = state.ops.front() else {
                self.forget_closed(stream);
                return;
            };
            let Some(op) = self.ops.get_mut(key) else { return };
            match op.state {
                State::Queued => {}
                State::Blocked => {}
                State::Ready | State::Running | State::Frozen => return,
            }
            if op.ready_at > self.now {
                if !state.timed {
                    state.timed = true;
                    self.order += 1;
                    self.timers.push(Reverse((op.ready_at, self.order, stream)));
                }
                return;
            }
            self.order += 1;
            let (context, priority) = (op.context, state.priority);
            match op.work {
                Work::Prefetch { owner, range, to_host } => {
                    if op.start.is_some() {
                        return;
                    }
                    op.start = Some(self.now);
                    op.state = State::Blocked;
                    if self.begin_prefetch(key, owner, range, to_host) {
                        self.end(key);
                        continue;
                    }
                    return;
                }
                Work::Discard { owner, range } => {
                    op.start = Some(self.now);
                    let now = self.now;
                    if let Some(pager) = self.memory_mut() {
                        pager.discard(now, owner, range);
                    }
                    self.end(key);
                }
                Work::Marker => {
                    op.start = Some(self.now);
                    self.end(key);
                }
                Work::WaitFor(OpId(other)) => {
                    op.start.get_or_insert(self.now);
                    if other != key && self.ops.get(other).is_some() {
                        self.block(key, other);
                        return;
                    }
                    self.end(key);
                }
                Work::Host => {
                    if op.start.is_none() {
                        op.start = Some(self.now);
                        op.state = State::Blocked;
                        let tag = op.tag;
                        self.outputs.push_back(Output::Reached {
                            op: OpId(key),
                            tag,
                            at: self.now,
                        });
                    }
                    if !self.ops.get(key).is_some_and(|op| op.released) {
                        return;
                    }
                    self.end(key);
                }
                Work::Kernel { .. } | Work::Memset { .. } => {
                    op.state = State::Ready;
                    if let Some(context) = self.contexts.get_mut(context) {
                        context.compute.push(priority, self.order, key);
                    }
                    self.want_compute(context);
                    return;
                }
                Work::Copy { direction, .. } => {
                    op.state = State::Ready;
                    let engine = match direction {
                        Direction::HostToDevice | Direction::DeviceToDevice => 0,
                        Direction::DeviceToHost => 1,
                    };
                    if let Some(context) = self.contexts.get_mut(context) {
                        context.copies[engine].push(priority, self.order, key);
                    }
                    self.copies[engine].line.join(context);
                    return;
                }
            }
        }
    }

    /// Remembers that the head `waiter` waits for `other`. Blocked heads that wait in a circle stay
    /// blocked for ever, as on a real device.
    fn block(&mut self, waiter: Key, other: Key) {
        let Some(op) = self.ops.get_mut(waiter) else { return };
        let first = op.state != State::Blocked;
        op.state = State::Blocked;
        let stream = op.stream;
        if first && let Some(other) = self.ops.get_mut(other) {
            other.waiters.push(stream);
        }
    }

    /// Ends the head of a stream now: reports it and wakes what waited for it.
    pub(crate) fn end(&mut self, key: Key) {
        let Some(op) = self.ops.remove(key) else { return };
        if let Some(stream) = self.streams.get_mut(op.stream) {
            stream.ops.pop_front();
            stream.ended = op.cumulative;
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

    pub(crate) fn announce(&mut self, key: Key) {
        if let Some(op) = self.ops.get(key) {
            let tag = op.tag;
            self.outputs.push_back(Output::Reached {
                op: OpId(key),
                tag,
                at: self.now,
            });
        }
    }

    fn forget_closed(&mut self, key: Key) {
        let Some(stream) = self.streams.get(key) else { return };
        if !stream.closing || !stream.ops.is_empty() {
            return;
        }
        if let Some(context) = self.contexts.get_mut(stream.context) {
            context.streams.retain(|&other| other != key);
        }
        self.streams.remove(key);
    }
}

/// The earlier of two times that may not be.
pub(crate) fn earlier(a: Option<Ns>, b: Option<Ns>) -> Option<Ns> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
