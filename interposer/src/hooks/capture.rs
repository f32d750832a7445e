//! Which streams are being captured.
//!
//! What is launched into a captured stream runs later, as part of a graph: it is neither held nor timed. And while anybody captures, weft
//! makes no driver call of its own except the one that asks whether a stream is captured, which is legal at any time: any other could
//! spoil the client's capture. With no capture on, all of this costs one load.
//!
//! A stream joins a capture by waiting for an event of it, too, so with a capture on the driver is asked about every stream.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{hooks, per_thread};
use crate::abi::{CAPTURE_STATUS_NONE, CuGraph, CuResult, CuStream};
use crate::{real, session};

/// Captures that are on. Changed together with [`STREAMS`], under its lock.
static ON: AtomicUsize = AtomicUsize::new(0);

/// The streams they began on.
static STREAMS: Mutex<Vec<CuStream>> = Mutex::new(Vec::new());

/// Is any capture on?
#[inline]
pub fn any() -> bool {
    ON.load(Ordering::Relaxed) != 0
}

/// Is this stream being captured?
#[inline]
pub fn on(stream: CuStream) -> bool {
    any() && asked(stream)
}

#[cold]
fn asked(stream: CuStream) -> bool {
    let mut status = CAPTURE_STATUS_NONE;
    // SAFETY: the out-parameter is valid; the client is about to use this stream itself.
    let result = unsafe { real::cuStreamIsCapturing(stream, &mut status) };
    // An error means that the stream cannot be used while somebody captures: the client's own call will say so.
    let capturing = !result.ok() || status != CAPTURE_STATUS_NONE;
    if !capturing {
        // A capture that ended without our seeing it (its stream was destroyed, say, and the handle lives again).
        ended(stream);
    }
    capturing
}

/// Makes driver calls of ours such that they can not spoil a capture that another thread has begun in the meantime.
pub fn relaxed<T>(calls: impl FnOnce() -> T) -> T {
    /// CU_STREAM_CAPTURE_MODE_RELAXED.
    const RELAXED: u32 = 2;
    let mut mode = RELAXED;
    // SAFETY: the pointer is to a local that lives through the call.
    let changed = unsafe { real::cuThreadExchangeStreamCaptureMode(&mut mode) };
    let done = calls();
    if changed.ok() {
        // SAFETY: as above; `mode` now holds what the thread had before.
        let _ = unsafe { real::cuThreadExchangeStreamCaptureMode(&mut mode) };
    }
    done
}

fn began(stream: CuStream) {
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if !streams.contains(&stream) {
        streams.push(stream);
        ON.store(streams.len(), Ordering::Release);
        drop(streams);
        session::capture_began(stream);
    }
}

/// A capture that began on this stream is over, if there was one.
pub fn ended(stream: CuStream) {
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = streams.iter().position(|other| *other == stream) {
        streams.swap_remove(at);
        ON.store(streams.len(), Ordering::Release);
        drop(streams);
        session::capture_ended(stream);
    }
}

/// A call that begins a capture. Counted before it is made: from then on nothing of ours may come between.
fn begin(stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    let already = STREAMS.lock().unwrap_or_else(PoisonError::into_inner).contains(&stream);
    began(stream);
    let result = real();
    if result.ok() {
        // Another thread that used the stream before the driver began may have taken it off the list again.
        began(stream);
    } else if !already {
        ended(stream);
    }
    result
}

/// A call that ends one. It may fail and end it all the same (a capture that something spoilt), or fail and leave it on (the wrong
/// thread): the driver knows.
fn end(stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if result.ok() {
        ended(stream);
    } else if any() {
        // Takes it off the list if the stream is not captured any more.
        let _ = asked(stream);
    }
    result
}

hooks! {
    fn cuStreamBeginCapture(stream: CuStream) |real| { begin(stream, real) }
    fn cuStreamBeginCapture_ptsz(stream: CuStream) |real| { begin(per_thread(stream), real) }
    fn cuStreamBeginCapture_v2(stream: CuStream, mode: u32) |real| { begin(stream, real) }
    fn cuStreamBeginCapture_v2_ptsz(stream: CuStream, mode: u32) |real| { begin(per_thread(stream), real) }
    fn cuStreamBeginCaptureToGraph(
        stream: CuStream, graph: CuGraph, nodes: usize, edges: usize, count: usize, mode: u32,
    ) |real| {
        begin(stream, real)
    }
    fn cuStreamBeginCaptureToGraph_ptsz(
        stream: CuStream, graph: CuGraph, nodes: usize, edges: usize, count: usize, mode: u32,
    ) |real| {
        begin(per_thread(stream), real)
    }
    fn cuStreamBeginRecaptureToGraph(stream: CuStream, a: usize, b: usize, c: usize, d: usize) |real| {
        begin(stream, real)
    }
    fn cuStreamBeginRecaptureToGraph_ptsz(stream: CuStream, a: usize, b: usize, c: usize, d: usize) |real| {
        begin(per_thread(stream), real)
    }
    fn cuStreamBeginCaptureToCig(stream: CuStream, parameters: usize) |real| { begin(stream, real) }
    fn cuStreamBeginCaptureToCig_ptsz(stream: CuStream, parameters: usize) |real| { begin(per_thread(stream), real) }
    fn cuStreamEndCapture(stream: CuStream, graph: *mut CuGraph) |real| { end(stream, real) }
    fn cuStreamEndCapture_ptsz(stream: CuStream, graph: *mut CuGraph) |real| { end(per_thread(stream), real) }
    fn cuStreamEndCaptureToCig(stream: CuStream) |real| { end(stream, real) }
    fn cuStreamEndCaptureToCig_ptsz(stream: CuStream) |real| { end(per_thread(stream), real) }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    unsafe extern "C" fn exchange(mode: *mut u32) -> CuResult {
        // SAFETY: the caller's out-parameter.
        let wanted = unsafe { mode.read() };
        // SAFETY: as above.
        unsafe { mode.write(MODE.replace(wanted)) };
        CuResult::SUCCESS
    }

    #[test]
    fn calls_of_ours_are_made_in_relaxed_capture_mode() {
        let at = crate::table::index::cuThreadExchangeStreamCaptureMode;
        crate::table::learn(at, exchange as *mut ());
        MODE.set(1);
        assert_eq!(relaxed(|| MODE.get()), 2);
        assert_eq!(MODE.get(), 1, "the job's own is what it was");
    }

    #[test]
    fn captures_are_counted_a_stream_once() {
        let (a, b) = (0x1111_0000, 0x2222_0000);
        let before = ON.load(Ordering::Relaxed);
        assert!(begin(a, || CuResult::SUCCESS).ok());
        assert!(begin(b, || CuResult::SUCCESS).ok());
        assert_eq!(ON.load(Ordering::Relaxed), before + 2);
        // Beginning again is the client's error; the capture goes on.
        assert!(!begin(a, || CuResult::INVALID_VALUE).ok());
        assert_eq!(ON.load(Ordering::Relaxed), before + 2);
        assert!(end(a, || CuResult::SUCCESS).ok());
        assert!(end(b, || CuResult::SUCCESS).ok());
        assert!(!begin(a, || CuResult::INVALID_VALUE).ok());
        assert_eq!(ON.load(Ordering::Relaxed), before);
    }
}
