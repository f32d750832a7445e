//! The C library's turning points of a process: a fork and the end.
//!
//! A forked child owns nothing of its parent's session. Its handler runs in one thread among locks
//! that others held: it makes one system call per mapping and stores a few words. It closes and
//! joins nothing.
//!
//! An orderly end stores one word in the lane, by which `weft status` tells it from a kill. It
//! sends and closes nothing: other exit handlers may still launch kernels. It waits, bounded, for
//! queued launches alone.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Once;

unsafe extern "C" {
    fn on_exit(at_end: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    fn at_quick_exit(at_end: extern "C" fn()) -> c_int;
}

/// Registers `at_end` for `exit` and a return from `main`, which hand it the exit code, and
/// `at_quick_end` for `quick_exit`, which tells no code.
pub fn watch_end(at_end: extern "C" fn(c_int, *mut c_void), at_quick_end: extern "C" fn()) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: a function of this never unloaded library that reads no argument; it stores words
        // into memory that stays mapped.
        let result = unsafe { on_exit(at_end, ptr::null_mut()) };
        // SAFETY: as above.
        let _ = unsafe { at_quick_exit(at_quick_end) };
        if result != 0 {
            log::debug!("the process's end will look like a kill: no room for another exit handler");
        }
    });
}

/// Registers `in_child` for forked children.
pub fn watch_forks(in_child: extern "C" fn()) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let in_child: unsafe extern "C" fn() = in_child;
        // SAFETY: a function of this never unloaded library that does only what a forked child may.
        let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if result != 0 {
            log::warn!("forked children can not be told apart: error {result}");
        }
    });
}
