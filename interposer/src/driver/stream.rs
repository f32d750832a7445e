//! Streams and events as the hooks hand them on.
//!
//! A stream is the handle that the plain (not per-thread) entry points take: 0 and 1 are the legacy
//! default stream, 2 is the calling thread's default stream. A hook of a `_ptsz` or `_ptds` entry
//! point turns a null stream into [`PER_THREAD_STREAM`] before it hands it on.
#![forbid(unsafe_code)]

use crate::thread;

/// An event handle.
pub type Event = usize;

/// A stream handle as the plain entry points take it.
pub type Stream = usize;

/// What a null stream means in a `_ptsz` or `_ptds` entry point (CU_STREAM_PER_THREAD in cuda.h).
pub const PER_THREAD_STREAM: Stream = 2;

/// Tells the default streams of threads apart, which share a handle; the two names of the legacy
/// one are one stream.
#[inline(always)]
pub fn own_stream(stream: Stream) -> usize {
    // One comparison for the many streams that have a name of their own.
    if stream.wrapping_sub(1) >= PER_THREAD_STREAM {
        return stream;
    }
    match stream {
        PER_THREAD_STREAM => (thread::mark() as usize) << 8 | 0xff,
        _ => 0,
    }
}
