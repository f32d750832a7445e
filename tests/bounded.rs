// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bound on the time of a test: the fixtures of the test programs include this file (`#[path]`)
//! and hold a [`Bounded`] for as long as a test uses them.
//!
//! A test that waits for a child, a pipe, a thread or a driver call that never comes back cannot
//! fail by itself. So a thread watches, and ends the whole test program, with a line that names the
//! test. The tests after it are lost, but the run continues, and its output names the place to look
//! at.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// No test takes a tenth of this on two busy cores.
const BOUND: Duration = Duration::from_secs(300);

/// While it lives the test that made it is watched.
#[derive(Debug)]
pub struct Bounded(#[allow(dead_code, reason = "its end is what is waited for")] Sender<()>);

impl Bounded {
    /// Begins to watch the calling test.
    pub fn new() -> Bounded {
        Bounded::within(BOUND)
    }

    fn within(bound: Duration) -> Bounded {
        let (end, ended) = channel::<()>();
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        std::thread::spawn(move || {
            if ended.recv_timeout(bound) == Err(RecvTimeoutError::Timeout) {
                eprintln!("test {test} has not ended within {bound:?}: the test program is ended");
                std::process::abort();
            }
        });
        Bounded(end)
    }
}

impl Default for Bounded {
    fn default() -> Bounded {
        Bounded::new()
    }
}
