// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver functions for events.
//!
//! All are optional: without them work counts as ended after its predicted time. Calls bypass
//! weft's hooks. A failed call never changes the job's results.
#![allow(unsafe_code)]

use std::ffi::CStr;

pub type Event = usize;
pub type Context = usize;

type Create = unsafe extern "C" fn(*mut Event, u32) -> u32;
type Record = unsafe extern "C" fn(Event, usize) -> u32;
type OfEvent = unsafe extern "C" fn(Event) -> u32;
type OfStream = unsafe extern "C" fn(usize) -> u32;
type Elapsed = unsafe extern "C" fn(*mut f32, Event, Event) -> u32;
type Current = unsafe extern "C" fn(*mut Context) -> u32;
type Exchange = unsafe extern "C" fn(*mut u32) -> u32;

/// CUDA_SUCCESS.
const SUCCESS: u32 = 0;
/// CUDA_ERROR_NOT_READY.
const NOT_READY: u32 = 600;
/// CU_EVENT_DISABLE_TIMING.
const DISABLE_TIMING: u32 = 2;
/// CU_EVENT_DEFAULT.
const TIMING: u32 = 0;
/// CU_STREAM_CAPTURE_MODE_RELAXED: this thread's calls do not end another's capture.
const RELAXED: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    Yes,
    NotYet,
    /// Useless: the driver answers an error.
    Never,
}

/// The event functions that the driver has.
#[derive(Debug, Default, Clone, Copy)]
pub struct EventCalls {
    create: Option<Create>,
    record: Option<Record>,
    query: Option<OfEvent>,
    ask_stream: Option<OfStream>,
    destroy: Option<OfEvent>,
    elapsed: Option<Elapsed>,
    current: Option<Current>,
    exchange: Option<Exchange>,
}

macro_rules! function {
    ($find:ident, $type:ty, $($name:literal),+) => {
        None$(.or_else(|| $find($name)))+.map(|address: *mut ()| {
            // SAFETY: the driver's function of this name, whose public prototype the type repeats.
            unsafe { std::mem::transmute::<*mut (), $type>(address) }
        })
    };
}

impl EventCalls {
    /// `find` returns the real driver's functions.
    pub fn find(find: impl Fn(&CStr) -> Option<*mut ()>) -> EventCalls {
        EventCalls {
            create: function!(find, Create, c"cuEventCreate"),
            record: function!(find, Record, c"cuEventRecord"),
            query: function!(find, OfEvent, c"cuEventQuery"),
            ask_stream: function!(find, OfStream, c"cuStreamQuery"),
            destroy: function!(find, OfEvent, c"cuEventDestroy_v2", c"cuEventDestroy"),
            elapsed: function!(find, Elapsed, c"cuEventElapsedTime_v2", c"cuEventElapsedTime"),
            current: function!(find, Current, c"cuCtxGetCurrent"),
            exchange: function!(find, Exchange, c"cuThreadExchangeStreamCaptureMode"),
        }
    }

    pub fn has_events(&self) -> bool {
        self.create.is_some() && self.record.is_some() && self.query.is_some() && self.current.is_some()
    }

    pub fn has_times(&self) -> bool {
        self.has_events() && self.elapsed.is_some()
    }

    pub fn current(&self) -> Option<Context> {
        let mut context = 0;
        // SAFETY: a local that outlives the call.
        let result = unsafe { self.current?(&raw mut context) };
        (result == SUCCESS && context != 0).then_some(context)
    }

    /// Creates an event in the current context, with a time or (cheaper) without.
    pub fn create(&self, timing: bool) -> Option<Event> {
        let mut event = 0;
        let flags = if timing { TIMING } else { DISABLE_TIMING };
        // SAFETY: a local that outlives the call.
        let result = unsafe { self.create?(&raw mut event, flags) };
        (result == SUCCESS && event != 0).then_some(event)
    }

    /// Records an event into a stream to which the calling thread is launching.
    pub fn record(&self, event: Event, stream: usize) -> bool {
        let Some(record) = self.record else { return false };
        // SAFETY: the event lives (`context_ending` forgets it); the hook's caller vouches for the
        // stream.
        let result = unsafe { record(event, stream) };
        result == SUCCESS
    }

    pub fn query(&self, event: Event) -> Reached {
        let Some(query) = self.query else { return Reached::Never };
        // SAFETY: weft's event, which lives.
        match unsafe { query(event) } {
            SUCCESS => Reached::Yes,
            NOT_READY => Reached::NotYet,
            _ => Reached::Never,
        }
    }

    /// Whether all work of a stream to which the calling thread is launching has ended, according
    /// to the driver.
    pub fn is_idle(&self, stream: usize) -> bool {
        // SAFETY: the hook's caller vouches for the stream.
        self.ask_stream.is_none_or(|ask| unsafe { ask(stream) } != NOT_READY)
    }

    pub fn destroy(&self, event: Event) {
        let Some(destroy) = self.destroy else { return };
        // SAFETY: weft's event, destroyed once.
        let _ = unsafe { destroy(event) };
    }

    /// Device time between two reached events, ns.
    pub fn elapsed(&self, from: Event, to: Event) -> Option<f64> {
        let mut milliseconds = 0f32;
        // SAFETY: a local that outlives the call; both events live.
        let result = unsafe { self.elapsed?(&raw mut milliseconds, from, to) };
        (result == SUCCESS && milliseconds.is_finite()).then(|| f64::from(milliseconds) * 1e6)
    }

    /// As [`capture::relaxed`](super::capture::relaxed).
    pub fn relaxed<T>(&self, calls: impl FnOnce() -> T) -> T {
        let Some(exchange) = self.exchange else { return calls() };
        let mut mode = RELAXED;
        // SAFETY: a local that outlives the call.
        let result = unsafe { exchange(&raw mut mode) };
        let done = calls();
        if result == SUCCESS {
            // SAFETY: as above; `mode` holds the thread's former mode.
            let _ = unsafe { exchange(&raw mut mode) };
        }
        done
    }
}
