// SPDX-License-Identifier: MIT OR Apache-2.0
//! Order of work on streams, for memory that is freed there: which stream it was, and an event
//! after the work so far.
//!
//! A stream that no longer exists equals no other: its work may still run when its handle, or its
//! thread's place, is reused.

use std::sync::Mutex;

use super::abi::{CuContext, CuEvent, CuResult, CuStream};
use super::stream::PER_THREAD_STREAM;
use super::{calls, capture, queries};
use crate::lock::lock;
use crate::thread;

/// CU_EVENT_DISABLE_TIMING.
const WITHOUT_TIME: u32 = 2;

const LEGACY: CuStream = 1;

/// Device work that runs in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamOrder {
    Stream(CuStream),
    /// A context's legacy default stream.
    Legacy(CuContext),
    /// A thread's default stream. The number is never reused.
    Thread(u64, CuContext),
    /// Gone or unknown.
    Gone,
}

impl StreamOrder {
    /// The order of a stream that is used in this context.
    pub fn of(stream: CuStream, context: CuContext) -> StreamOrder {
        match stream {
            0 | LEGACY => StreamOrder::Legacy(context),
            PER_THREAD_STREAM => StreamOrder::Thread(thread::number(), context),
            stream => StreamOrder::Stream(stream),
        }
    }
}

/// An event after a stream's work (0: none possible), and its context.
pub type Mark = (CuEvent, CuContext);

/// Events that no mark uses, with their contexts.
static EVENTS: Mutex<Vec<(CuContext, CuEvent)>> = Mutex::new(Vec::new());

/// Marks the work on a stream so far.
pub fn mark(stream: CuStream) -> Result<Mark, CuResult> {
    let context = queries::current_context();
    if capture::any() || context == 0 {
        return Ok((0, context));
    }
    let kept = || {
        let mut events = lock(&EVENTS);
        let at = events.iter().position(|(of, _)| *of == context)?;
        Some(events.swap_remove(at).1)
    };
    let mut event = kept().unwrap_or(0);
    if event == 0 {
        // SAFETY: valid out-parameter.
        if !unsafe { calls::cuEventCreate(&mut event, WITHOUT_TIME) }.ok() {
            return Ok((0, context));
        }
    }
    // SAFETY: our event, the job's stream.
    let result = capture::relaxed(|| unsafe { calls::cuEventRecord(event, stream) });
    if result.ok() {
        return Ok((event, context));
    }
    unmark((event, context));
    // A stream of another context is not the job's error.
    // SAFETY: as above.
    let known = capture::relaxed(|| unsafe { calls::cuStreamQuery(stream) });
    match known {
        CuResult::SUCCESS | CuResult::NOT_READY => Ok((0, context)),
        _ => Err(result),
    }
}

/// Whether the marked work has ended. A capture may begin meanwhile.
pub fn reached(event: CuEvent) -> bool {
    // SAFETY: an event of our own.
    capture::relaxed(|| unsafe { calls::cuEventQuery(event) }).ok()
}

/// Gives a mark's event back for other marks.
pub fn unmark((event, context): Mark) {
    if event != 0 {
        lock(&EVENTS).push((context, event));
    }
}

/// Forgets the events of an ended context; 0 = an unknown one.
pub fn context_ended(context: CuContext) {
    lock(&EVENTS).retain(|(of, _)| context != 0 && *of != context);
}
