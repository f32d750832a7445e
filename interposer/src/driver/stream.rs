// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stream and event handles as the hooks pass them on.
//!
//! A stream handle has the meaning of the plain entry points: 0 and 1 are the legacy default
//! stream, 2 is the calling thread's. Hooks of `_ptsz` and `_ptds` turn null into
//! [`PER_THREAD_STREAM`].
#![forbid(unsafe_code)]

use crate::thread;

/// An event handle.
pub type Event = usize;

/// A stream handle of the plain entry points.
pub type Stream = usize;

/// A null stream in `_ptsz` and `_ptds` entry points (CU_STREAM_PER_THREAD).
pub const PER_THREAD_STREAM: Stream = 2;

/// A stream's key, which differs for each thread's default stream. The legacy stream becomes 0.
#[inline(always)]
pub fn own_stream(stream: Stream) -> usize {
    // One comparison for most streams.
    if stream.wrapping_sub(1) >= PER_THREAD_STREAM {
        return stream;
    }
    match stream {
        PER_THREAD_STREAM => (thread::mark() as usize) << 8 | 0xff,
        _ => 0,
    }
}
