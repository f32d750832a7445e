//! Which streams are being captured.
//!
//! What is launched into a captured stream runs later, as part of a graph: it is neither held nor
//! timed. And while anybody captures, weft makes no driver call of its own except the one that asks
//! whether a stream is captured, which is legal at any time: any other could spoil the client's
//! capture. With no capture on, all of this costs one load.
//!
//! A stream joins a capture by waiting for an event of it, too, so with a capture on the driver is
//! asked about every stream.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::driver::abi::{CAPTURE_STATUS_NONE, CuResult, CuStream};
use crate::driver::calls;

/// Captures that are on. Changed together with [`STREAMS`], under its lock.
static ON: AtomicUsize = AtomicUsize::new(0);

/// The streams they began on.
static STREAMS: Mutex<Vec<CuStream>> = Mutex::new(Vec::new());

/// Hears of each capture that begins (true) or has ended.
static LISTENER: OnceLock<fn(bool)> = OnceLock::new();

/// Has `listener` hear of each capture that begins (true) or has ended. The first caller's counts.
pub fn listen(listener: fn(bool)) {
    let _ = LISTENER.set(listener);
}

fn say(began: bool) {
    if let Some(listener) = LISTENER.get() {
        listener(began);
    }
}

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
    let result = unsafe { calls::cuStreamIsCapturing(stream, &mut status) };
    // An error means that the stream cannot be used while somebody captures: the client's own call
    // will say so.
    let capturing = !result.ok() || status != CAPTURE_STATUS_NONE;
    if !capturing {
        // A capture that ended without our seeing it (its stream was destroyed, say, and the handle
        // lives again).
        ended(stream);
    }
    capturing
}

/// Makes driver calls of ours such that they can not spoil a capture that another thread has begun
/// in the meantime.
pub fn relaxed<T>(calls: impl FnOnce() -> T) -> T {
    /// CU_STREAM_CAPTURE_MODE_RELAXED.
    const RELAXED: u32 = 2;
    let mut mode = RELAXED;
    // SAFETY: the pointer is to a local that lives through the call.
    let changed = unsafe { calls::cuThreadExchangeStreamCaptureMode(&mut mode) };
    let done = calls();
    if changed.ok() {
        // SAFETY: as above; `mode` now holds what the thread had before.
        let _ = unsafe { calls::cuThreadExchangeStreamCaptureMode(&mut mode) };
    }
    done
}

fn began(stream: CuStream) {
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if !streams.contains(&stream) {
        streams.push(stream);
        ON.store(streams.len(), Ordering::Release);
        drop(streams);
        say(true);
    }
}

/// A capture that began on this stream is over, if there was one.
pub fn ended(stream: CuStream) {
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = streams.iter().position(|other| *other == stream) {
        streams.swap_remove(at);
        ON.store(streams.len(), Ordering::Release);
        drop(streams);
        say(false);
    }
}

/// A call that begins a capture. Counted before it is made: from then on nothing of ours may come
/// between.
pub fn begin(stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    let already = STREAMS.lock().unwrap_or_else(PoisonError::into_inner).contains(&stream);
    began(stream);
    let result = real();
    if result.ok() {
        // Another thread that used the stream before the driver began may have taken it off the
        // list again.
        began(stream);
    } else if !already {
        ended(stream);
    }
    result
}

/// A call that ends one. It may fail and end it all the same (a capture that something spoilt), or
/// fail and leave it on (the wrong thread): the driver knows.
pub fn end(stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if result.ok() {
        ended(stream);
    } else if any() {
        // Takes it off the list if the stream is not captured any more.
        let _ = asked(stream);
    }
    result
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
        let at = crate::driver::symbols::index::cuThreadExchangeStreamCaptureMode;
        crate::driver::symbols::learn(at, exchange as *mut ());
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
