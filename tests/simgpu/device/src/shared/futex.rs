// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bounded waits on a word that processes share.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex::{Flags, Timespec, wait, wake};

/// Sleeps until the word is woken, differs from `seen`, or the time is over. May return early for
/// no reason.
pub(crate) fn sleep_while(word: &AtomicU32, seen: u32, timeout: Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // Every error means "look again": the word changed, the time is over, a signal came.
    // No PRIVATE flag: the waker is another process.
    let _ = wait(word, Flags::empty(), seen, Some(&timeout));
}

/// Changes the word and wakes all threads that sleep on it.
pub(crate) fn ring(word: &AtomicU32) {
    word.fetch_add(1, Ordering::SeqCst);
    let _ = wake(word, Flags::empty(), i32::MAX as u32);
}
