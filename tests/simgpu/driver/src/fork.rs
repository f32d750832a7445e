//! Notices forks. A child shares nothing that works with its parent's device link, so it must learn
//! that it is one.

use std::sync::OnceLock;

use crate::abi::{Error, R};

extern "C" fn in_child() {
    crate::state::forked();
}

/// Has the child of every later fork call [`crate::state::forked`].
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
