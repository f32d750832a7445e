// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: the time at which a stream had done all it was given before.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};

use simgpu_device::lock::lock;
use simgpu_device::{Op, Seq};

use crate::abi::{Handle, R};
use crate::capture::CapturedEvent;
use crate::context::Context;
use crate::effect::{Effect, Mark};
use crate::registry::{HandleKind, Registry};
use crate::shared_event::Shared;
use crate::state::Driver;
use crate::stream::Stream;

/// Every event of the process.
pub(crate) static EVENTS: Registry<Event> = Registry::new(HandleKind::Event);

/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const DISABLE_TIMING: u32 = 2;

/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`.
pub(crate) const EXTERNAL: u32 = 1;

/// One event.
pub(crate) struct Event {
    pub(crate) handle: Handle,
    pub(crate) context: Arc<Context>,
    pub(crate) flags: u32,
    recorded: Mutex<Recorded>,
    /// The state that other processes share, if they may.
    pub(crate) shared: Option<Arc<Shared>>,
}

/// The last record.
#[derive(Default)]
struct Recorded {
    /// The record on the device; `Seq::NONE` before the first.
    seq: Seq,
    mark: Option<Arc<Mark>>,
    /// A record into a capture; belongs to `graph`.
    captured: Option<CapturedEvent>,
}

impl Event {
    /// Makes an event that nothing was recorded in, and answers its handle.
    pub(crate) fn create(context: Arc<Context>, flags: u32, shared: Option<Shared>) -> Handle {
        let make = |handle| Event {
            handle,
            context,
            flags,
            recorded: Mutex::default(),
            shared: shared.map(Arc::new),
        };
        EVENTS.add_with(make).0
    }

    /// Puts a record on a stream that is not being captured; graphs replay their event nodes with
    /// it.
    pub(crate) fn record(&self, driver: &Driver, stream: &Stream, graph: u64) -> R {
        let mark = Arc::new(Mark::default());
        let timed = self.flags & DISABLE_TIMING == 0;
        let seq = stream.submit(driver, Op::Record { timed }, Some(Effect::Mark(mark.clone())), graph)?;
        *lock(&self.recorded) = Recorded {
            seq,
            mark: Some(mark),
            captured: None,
        };
        if let Some(shared) = self.shared.clone() {
            let number = shared.tell();
            let pass = Effect::RunPromptly(Box::new(move || shared.pass(number)));
            stream.submit(driver, Op::Marker, Some(pass), graph)?;
        }
        Ok(())
    }

    /// The event of a launch (`CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT`) comes with the end of all
    /// blocks, which CUDA allows. A dependent kernel behind a wait for it may begin earlier.
    pub(crate) fn stand_for(&self, seq: Seq) {
        *lock(&self.recorded) = Recorded {
            seq,
            ..Recorded::default()
        };
    }

    /// The last record that any process made, if processes share the event and the device has not
    /// passed it.
    pub(crate) fn open_record(&self) -> Option<(Arc<Shared>, u64)> {
        let shared = self.shared.clone()?;
        let number = shared.told();
        (!shared.has_passed(number)).then_some((shared, number))
    }

    /// The event stands for a point in a capture from now on.
    pub(crate) fn set_captured(&self, captured: CapturedEvent) {
        lock(&self.recorded).captured = Some(captured);
    }

    /// The point in a capture the event stands for.
    pub(crate) fn captured(&self) -> Option<CapturedEvent> {
        lock(&self.recorded).captured.clone()
    }

    /// The record's operation on the device; `Seq::NONE` if there is none.
    pub(crate) fn seq(&self) -> Seq {
        lock(&self.recorded).seq
    }

    /// The record and its time. An event that stands for a point in a capture has none.
    pub(crate) fn recorded(&self) -> R<(Seq, Option<Arc<Mark>>)> {
        let recorded = lock(&self.recorded);
        if let Some(captured) = &recorded.captured {
            return Err(captured.misused());
        }
        Ok((recorded.seq, recorded.mark.clone()))
    }
}

pub(crate) fn forget_context(context: &Arc<Context>) {
    for (handle, event) in EVENTS.all() {
        if Arc::ptr_eq(&event.context, context) {
            let _ = EVENTS.take(handle);
        }
    }
}
