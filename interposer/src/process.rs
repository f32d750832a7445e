//! The process's own turning points, as the C library tells them: a fork, and the end.
//!
//! A fork's child owns nothing of its parent's session. Its handler runs in a process that has one
//! thread and whatever locks others held: it makes one system call a mapping and stores a few
//! words, no more. Nothing is closed or joined: descriptors and threads are the parent's business.
//! The child is then like a process in which the driver was never used; if it initialises CUDA
//! itself it gets a session of its own.
//!
//! A process that ends in good order says so: with one word in its lane, so that `weft status` can
//! tell it from one that was killed. Nothing is sent, nothing is closed: other libraries' own last
//! acts may still launch kernels after this. Nothing waits but for launches that are in the queue,
//! within a bound.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Once;

unsafe extern "C" {
    fn at_quick_exit(at_end: extern "C" fn()) -> c_int;
}

/// Has `at_end` run when the process calls `exit` or returns from `main`.
pub fn watch_end(at_end: extern "C" fn()) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler is a function of this library, which is preloaded and never unloaded,
        // and stores one word into memory that stays mapped for the life of the process.
        let result = unsafe { libc::atexit(at_end) };
        // SAFETY: as above.
        let _ = unsafe { at_quick_exit(at_end) };
        if result != 0 {
            log::debug!("the process's end will look like a kill: no room for another atexit handler");
        }
    });
}

/// Has `in_child` run in every forked child from now on.
pub fn watch_forks(in_child: extern "C" fn()) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let in_child: unsafe extern "C" fn() = in_child;
        // SAFETY: the handler is a function of this library, which is preloaded and never unloaded,
        // and does only what a forked child may do.
        let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if result != 0 {
            log::warn!("forked children can not be told apart: error {result}");
        }
    });
}
