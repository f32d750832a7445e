// SPDX-License-Identifier: MIT OR Apache-2.0
//! The streams that are being captured.
//!
//! A launch into a captured stream runs later, in a graph: it is neither held nor timed. During a
//! capture weft makes only queries ([`calls`]); other calls could spoil it.
//! Without a capture the check costs one load.
//!
//! A stream also joins a capture by waiting for one of its events, so during captures weft queries
//! every stream.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::driver::abi::{CAPTURE_STATUS_NONE, CuResult, CuStream};
use crate::driver::calls;

/// Active captures. Changed together with [`STREAMS`], under its lock.
static ON: AtomicUsize = AtomicUsize::new(0);

static STREAMS: Mutex<Vec<CuStream>> = Mutex::new(Vec::new());

static LISTENER: OnceLock<fn(bool)> = OnceLock::new();

/// Registers a function that gets captures that begin (true) or end (false). The first caller's
/// counts.
pub fn listen(listener: fn(bool)) {
    let _ = LISTENER.set(listener);
}

fn say(began: bool) {
    if let Some(listener) = LISTENER.get() {
        listener(began);
    }
}

#[inline]
pub fn any() -> bool {
    ON.load(Ordering::Relaxed) != 0
}

#[inline]
pub fn on(stream: CuStream) -> bool {
    any() && asked(stream)
}

#[cold]
fn asked(stream: CuStream) -> bool {
    let mut status = CAPTURE_STATUS_NONE;
    // SAFETY: valid out-parameter; the client is about to use this stream.
    let result = unsafe { calls::cuStreamIsCapturing(stream, &mut status) };
    // An error: the stream is unusable during the capture, as the client's own call will show.
    let capturing = !result.ok() || status != CAPTURE_STATUS_NONE;
    if !capturing {
        // The capture ended without a call that weft saw: the stream was destroyed and its handle
        // reused.
        ended(stream);
    }
    capturing
}

/// Makes driver calls that cannot spoil another thread's capture.
pub fn relaxed<T>(calls: impl FnOnce() -> T) -> T {
    /// CU_STREAM_CAPTURE_MODE_RELAXED.
    const RELAXED: u32 = 2;
    let mut mode = RELAXED;
    // SAFETY: a local that outlives the call.
    let changed = unsafe { calls::cuThreadExchangeStreamCaptureMode(&mut mode) };
    let done = calls();
    if changed.ok() {
        // SAFETY: as above; `mode` holds the thread's former mode.
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

/// Removes a capture of this stream, if any.
pub fn ended(stream: CuStream) {
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = streams.iter().position(|other| *other == stream) {
        streams.swap_remove(at);
        ON.store(streams.len(), Ordering::Release);
        drop(streams);
        say(false);
    }
}

/// Begins a capture. Counted before the call: from then on weft makes no other call.
pub fn begin(stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    let already = STREAMS.lock().unwrap_or_else(PoisonError::into_inner).contains(&stream);
    began(stream);
    let result = real();
    if result.ok() {
        // Another thread may have removed it before the driver began.
        began(stream);
    } else if !already {
        ended(stream);
    }
    result
}

/// Ends a capture. A failed call may have ended it (spoilt) or not (wrong thread), so weft queries
/// the driver.
pub fn end(stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if result.ok() {
        ended(stream);
    } else if any() {
        // Removes the stream if it is no longer captured.
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
        // This is the client's error; the capture continues.
        assert!(!begin(a, || CuResult::INVALID_VALUE).ok());
        assert_eq!(ON.load(Ordering::Relaxed), before + 2);
        assert!(end(a, || CuResult::SUCCESS).ok());
        assert!(end(b, || CuResult::SUCCESS).ok());
        assert!(!begin(a, || CuResult::INVALID_VALUE).ok());
        assert_eq!(ON.load(Ordering::Relaxed), before);
    }
}
