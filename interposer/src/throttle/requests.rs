//! Requests that a job marks itself, so that what it feels is measured: from its own begin to its
//! own end, alone and beside other jobs.
//!
//! A mark is a look at the clock and a few stores in shared memory. It waits for nobody, and in a
//! job without a broker it does nothing.

use weft_protocol::Ns;
use weft_protocol::lane::Mode;

use super::devices;
use super::state::Session;
use crate::client::clock;
use crate::internal_error;

/// In a token: another job was attached as the request began.
const BESIDE: u64 = 1;

/// Begins a request or step. The token is for [`weft_request_end`]; requests may overlap, and end
/// in another thread.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn weft_request_begin() -> u64 {
    let begun = internal_error::guarded(|| {
        let beside = devices::all().any(|session| is_beside(session.mode()));
        clock::now() << 1 | if beside { BESIDE } else { 0 }
    });
    begun.unwrap_or(0)
}

/// Ends it. A token that is 0 counts nothing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn weft_request_end(token: u64) {
    internal_error::guarded(|| {
        // A begin in the future is no token of ours.
        let Some(took) = clock::now().checked_sub(token >> 1).filter(|_| token != 0) else {
            return;
        };
        for session in devices::all() {
            count(session, token & BESIDE != 0, took);
        }
    });
}

/// Counts a request of `took` ns in this session. `beside`: as it began.
pub(super) fn count(session: &Session, beside: bool, took: Ns) {
    let mode = session.mode();
    let times = &session.link.lane.requests;
    match mode {
        // Nobody reads it, and who else was there is not known.
        Mode::Free => {}
        _ if beside || is_beside(mode) => times.beside.add(took),
        _ => times.alone.add(took),
    }
}

fn is_beside(mode: Mode) -> bool {
    matches!(mode, Mode::Foreground | Mode::Background)
}
