//! A process that ends in good order says so: with one word in its lane, so that `weft status` can tell it from one that was killed.
//!
//! Nothing waits, nothing is sent, nothing is closed: other libraries' own last acts may still launch kernels after this.
#![allow(unsafe_code)]

use std::sync::Once;

/// Has `at_end` run when the process calls `exit` or returns from `main`.
pub fn watch(at_end: extern "C" fn()) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler is a function of this library, which is preloaded and never unloaded, and stores one word into memory that stays
        // mapped for the life of the process.
        let result = unsafe { libc::atexit(at_end) };
        if result != 0 {
            log::debug!("the process's end will look like a kill: no room for another atexit handler");
        }
    });
}
