// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine: the calls of a caller, and the order of events at one instant.
//!
//! Invariants between calls: every stream's head is blocked by something that will move it on (a
//! timer, an engine, another operation, the caller), no engine that has ready work is idle, and all
//! events up to now can be taken as output.

use crate::compute::Compute;
use crate::copies::CopyEngine;
use crate::error::EngineError;
use crate::memory::{MemorySettings, Pager};
use crate::paging::{Paging, Touch};
use crate::shared::SharedCompute;
use crate::slab::SlabKey;
use crate::state::{EngineState, Ready};
use crate::time::{Ns, earlier};
use crate::{ContextId, ContextUsage, KernelShape, Mode, OpId, Output, Settings, StreamId, Usage, Work};

/// How many waits for other operations [`Engine::earliest_end`] follows.
const WAITS_FOLLOWED: u32 = 4;

/// The simulated GPU. See the crate's documentation for the model.
#[derive(Debug, Clone)]
pub struct Engine {
    state: EngineState,
    compute: Compute,
    /// In its place in [`Mode::MpsShared`].
    shared: Option<SharedCompute>,
    copies: [CopyEngine; 2],
}

impl Engine {
    /// A device at time zero with no client.
    pub fn new(settings: Settings) -> Engine {
        Engine::with_paging(settings, None)
    }

    /// A device with managed memory.
    pub fn with_memory(settings: Settings, memory: MemorySettings) -> Engine {
        Engine::with_paging(settings, Some(Box::new(Paging::new(memory))))
    }

    fn with_paging(settings: Settings, paging: Option<Box<Paging>>) -> Engine {
        let settings = Settings {
            // A slice of nothing would let no context run.
            slice: settings.slice.max(1),
            ..settings
        };
        Engine {
            state: EngineState::new(settings, paging),
            compute: Compute::default(),
            shared: match settings.mode {
                Mode::MpsShared(limits) => Some(SharedCompute::new(limits)),
                Mode::TimeSlice | Mode::Mps => None,
            },
            copies: [CopyEngine::new(0), CopyEngine::new(1)],
        }
    }

    /// The parameters in force.
    pub fn settings(&self) -> &Settings {
        self.state.settings()
    }

    /// The engine's time.
    pub fn now(&self) -> Ns {
        self.state.now()
    }

    /// Managed memory, if the device has it.
    pub fn memory(&self) -> Option<&Pager> {
        self.state.pager()
    }

    /// Managed memory, to change it. Its calls take the time at which they happen: [`Engine::now`].
    pub fn memory_mut(&mut self) -> Option<&mut Pager> {
        self.state.pager_mut()
    }

    /// A new context.
    pub fn add_context(&mut self) -> ContextId {
        ContextId(self.state.add_context())
    }

    /// Under MPS the ready work of the context with the lowest `priority` number goes first
    /// (`CUDA_MPS_CLIENT_PRIORITY`); running work is not stopped. Contexts begin with 0. Under
    /// [`crate::Mode::MpsShared`] it counts for work that becomes ready from now on.
    pub fn set_context_priority(&mut self, context: ContextId, priority: i32) -> Result<(), EngineError> {
        self.state.set_context_priority(context.0, priority)
    }

    /// Ends a context as its process's death does: all its work is gone at once, also running work.
    /// Streams that waited for it continue.
    pub fn remove_context(&mut self, context: ContextId) -> Result<(), EngineError> {
        if !self.state.has_context(context.0) {
            return Err(EngineError::NoContext);
        }
        match &mut self.shared {
            Some(shared) => shared.leave(context.0, &mut self.state),
            None => self.compute.leave(context.0, &mut self.state),
        }
        for engine in &mut self.copies {
            engine.leave(context.0, &mut self.state);
        }
        self.state.remove_context(context.0);
        self.settle();
        Ok(())
    }

    /// A new stream. A lower `priority` number goes first within the context, and under MPS among
    /// contexts of equal priority, as CUDA counts.
    pub fn add_stream(&mut self, context: ContextId, priority: i32) -> Result<StreamId, EngineError> {
        self.state.add_stream(context.0, priority)
    }

    /// Takes no more work for the stream and forgets it once its work has ended.
    pub fn close_stream(&mut self, stream: StreamId) -> Result<(), EngineError> {
        self.state.close_stream(stream.0)
    }

    /// Puts `work` at the end of a stream, at time `at`; the engine is advanced to `at` first. A
    /// time that has passed counts as now. `tag` comes back with the output.
    pub fn submit(&mut self, at: Ns, stream: StreamId, work: Work, tag: u64) -> Result<OpId, EngineError> {
        self.submit_touching(at, stream, work, tag, Vec::new())
    }

    /// [`Engine::submit`] for a kernel of known shape: in [`Mode::MpsShared`] it takes the part of
    /// the SMs that its blocks need. One of unknown shape takes all SMs.
    pub fn submit_shaped(
        &mut self,
        at: Ns,
        stream: StreamId,
        work: Work,
        shape: KernelShape,
        tag: u64,
    ) -> Result<OpId, EngineError> {
        self.submit_any(at, stream, work, shape, tag, Vec::new())
    }

    /// [`Engine::submit`] for work that uses managed memory: when it starts it stands still until
    /// all of it is on the device. Meaningful for kernels, copies and memsets.
    pub fn submit_touching(
        &mut self,
        at: Ns,
        stream: StreamId,
        work: Work,
        tag: u64,
        touches: Vec<Touch>,
    ) -> Result<OpId, EngineError> {
        self.submit_any(at, stream, work, KernelShape::default(), tag, touches)
    }

    fn submit_any(
        &mut self,
        at: Ns,
        stream: StreamId,
        work: Work,
        shape: KernelShape,
        tag: u64,
        touches: Vec<Touch>,
    ) -> Result<OpId, EngineError> {
        self.arrive(at);
        let (key, is_head) = self.state.submit(stream.0, work, shape, tag, touches)?;
        if is_head {
            self.settle();
        }
        Ok(OpId(key))
    }

    /// Ends a host operation, or a held kernel, at time `at`. One that has not been reached yet
    /// will end when it is. One that has ended does not change.
    pub fn release(&mut self, at: Ns, op: OpId) -> Result<(), EngineError> {
        self.arrive(at);
        if self.state.is_done(op.0) {
            return Ok(());
        }
        let runs = self.state.release(op.0)?;
        if runs {
            match &mut self.shared {
                Some(shared) => shared.end_running(op.0, &mut self.state),
                None => self.compute.end_running(&mut self.state),
            }
        }
        self.settle();
        Ok(())
    }

    fn arrive(&mut self, at: Ns) {
        if at < self.state.now() {
            self.state.usage_mut().late += 1;
        }
        self.advance_to(at);
    }

    /// Lets time pass. Going back is ignored.
    pub fn advance_to(&mut self, time: Ns) {
        while let Some(next) = self.next_event_time() {
            if next > time {
                break;
            }
            self.state.set_now(next);
            self.state.usage_mut().events += 1;
            match &mut self.shared {
                Some(shared) => shared.end_due(&mut self.state),
                None => self.compute.end_due(&mut self.state),
            }
            for engine in &mut self.copies {
                engine.end_due(&mut self.state);
            }
            self.state.end_prefetches();
            self.state.end_timers();
            self.settle();
        }
        self.state.set_now(self.state.now().max(time));
    }

    /// Moves streams on until nothing moves at this instant, then lets the engines choose.
    fn settle(&mut self) {
        let mode = self.state.settings().mode;
        while let Some(ready) = self.state.next_ready() {
            match ready {
                Ready::Compute(context) => match &mut self.shared {
                    Some(shared) => shared.join(context, &mut self.state),
                    None => self.compute.join(context, mode),
                },
                Ready::Copy(engine, context) => self.copies[engine].join(context),
            }
        }
        match &mut self.shared {
            Some(shared) => shared.choose(&mut self.state),
            None => self.compute.choose(&mut self.state),
        }
        for engine in &mut self.copies {
            engine.choose(&mut self.state);
        }
    }

    /// When something happens next if nothing more is submitted. `None`: nothing will.
    pub fn next_event_time(&self) -> Option<Ns> {
        let engines = self.copies.iter().map(CopyEngine::next_event);
        let compute = match &self.shared {
            Some(shared) => shared.next_event(),
            None => self.compute.next_event(),
        };
        engines.fold(earlier(compute, self.state.next_event()), earlier)
    }

    /// A time before which `op` cannot end, whatever is submitted; `Ns::MAX` while only the caller
    /// can move it on. `None`: it has ended. Exact when no other stream has work.
    pub fn earliest_end(&self, op: OpId) -> Option<Ns> {
        self.state
            .earliest_end(op.0, WAITS_FOLLOWED, &|op| self.running_progress(op))
    }

    /// How long `op` has run in its present piece.
    fn running_progress(&self, op: SlabKey) -> Ns {
        let compute = match &self.shared {
            Some(shared) => shared.running_since(op),
            None => self.compute.running_since(op),
        };
        let since = compute.or_else(|| self.copies.iter().find_map(|engine| engine.running_since(op)));
        since.map_or(0, |since| self.state.now().saturating_sub(since))
    }

    /// The oldest operation of a stream that has not ended.
    pub fn head_of(&self, stream: StreamId) -> Option<OpId> {
        self.state.head_of(stream.0).map(OpId)
    }

    /// Whether `op` has ended (or went with its context).
    pub fn is_done(&self, op: OpId) -> bool {
        self.state.is_done(op.0)
    }

    /// The next thing that happened, in order.
    pub fn next_output(&mut self) -> Option<Output> {
        self.state.next_output()
    }

    /// Sums over the device.
    pub fn usage(&self) -> Usage {
        *self.state.usage()
    }

    /// Sums over a context.
    pub fn context_usage(&self, context: ContextId) -> Option<ContextUsage> {
        self.state.context_usage(context.0)
    }

    /// Operations submitted and not ended.
    pub fn outstanding(&self) -> usize {
        self.state.outstanding()
    }
}
