// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that a job marks itself, from its own start to its own end. They measure the latency
//! that the job sees, with and without other jobs.
//!
//! A mark reads the clock and writes a few words of shared memory. It never waits, and in a job
//! without a broker it does nothing.

use weft_protocol::Ns;
use weft_protocol::lane::Mode;

use super::devices;
use super::session::Session;
use crate::client::clock;
use crate::internal_error;

/// Bit in a token: another job was attached when the request began.
const BESIDE: u64 = 1;

/// Begins a request or step. The token is for [`weft_request_end`]. Requests may overlap, and may
/// end in another thread.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn weft_request_begin() -> u64 {
    let begun = internal_error::guarded(|| {
        let beside = devices::all().any(|session| is_beside(session.link.mode()));
        clock::now() << 1 | if beside { BESIDE } else { 0 }
    });
    begun.unwrap_or(0)
}

/// Ends a request. A token of 0 counts nothing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn weft_request_end(token: u64) {
    internal_error::guarded(|| {
        // A token with a start in the future is not weft's.
        let Some(took) = clock::now().checked_sub(token >> 1).filter(|_| token != 0) else {
            return;
        };
        for session in devices::all() {
            count(session, token & BESIDE != 0, took);
        }
    });
}

/// Counts a request of `took` ns in this session, with or without other jobs at its start.
pub(super) fn count(session: &Session, beside: bool, took: Ns) {
    let mode = session.link.mode();
    let times = &session.link.lane.requests;
    match mode {
        // No broker reads it, and the other jobs are unknown.
        Mode::Free => {}
        _ if beside || is_beside(mode) => times.beside.add(took),
        _ => times.alone.add(took),
    }
}

fn is_beside(mode: Mode) -> bool {
    matches!(mode, Mode::Foreground | Mode::Background)
}
