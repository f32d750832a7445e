// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notices forks. A child shares nothing that works with its parent's device link, so it must learn
//! that it is one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::{Error, R};

/// The process has called `cuInit`.
static STARTED: AtomicBool = AtomicBool::new(false);
/// Set in a child that was forked after its parent had called `cuInit`: like the real driver, ours
/// does not survive that.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    if STARTED.load(Ordering::Relaxed) {
        FORKED.store(true, Ordering::Relaxed);
    }
}

/// Is this a child that was forked after its parent's `cuInit`?
#[inline]
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// From now on a child cannot use the driver.
pub(crate) fn started() {
    STARTED.store(true, Ordering::Relaxed);
}

/// Has the child of every later fork learn that it is one.
pub(crate) fn watch() -> R {
    static WATCHING: OnceLock<i32> = OnceLock::new();
    let failed = *WATCHING.get_or_init(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded, and only
        // stores to atomics.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) }
    });
    if failed == 0 {
        Ok(())
    } else {
        Err(Error::OPERATING_SYSTEM)
    }
}
