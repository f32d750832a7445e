//! A process that ends in good order says so: with one word in its lane, so that `weft status` can tell it from one that was killed.
//!
//! Nothing is sent, nothing is closed: other libraries' own last acts may still launch kernels after this. Nothing waits but for launches that are in the queue, within a bound.
//!
//! `_exit` and `_Exit` run no handlers, so they are ours: launches that the job has made and that are in the queue go to the device first. They may be called anywhere, in handlers of signals
//! and in children that share the parent's memory (`vfork`), so nothing is locked and nothing allocated on the way. A signal that ends the process does so without us.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::sync::Once;

use crate::driver::linker::elf;
use crate::queue;

unsafe extern "C" {
    fn at_quick_exit(at_end: extern "C" fn()) -> c_int;
}

/// Has `at_end` run when the process calls `exit` or returns from `main`.
pub fn watch(at_end: extern "C" fn()) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler is a function of this library, which is preloaded and never unloaded, and stores one word into memory that stays
        // mapped for the life of the process.
        let result = unsafe { libc::atexit(at_end) };
        // SAFETY: as above.
        let _ = unsafe { at_quick_exit(at_end) };
        if result != 0 {
            log::debug!("the process's end will look like a kill: no room for another atexit handler");
        }
    });
}

/// Ends the process, when what is in the queue has gone.
///
/// # Safety
/// As `_exit`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, non_snake_case))]
pub unsafe extern "C" fn _exit(code: c_int) -> ! {
    leave(c"_exit", code)
}

/// As [`_exit`].
///
/// # Safety
/// As `_Exit`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, non_snake_case))]
pub unsafe extern "C" fn _Exit(code: c_int) -> ! {
    leave(c"_Exit", code)
}

fn leave(name: &CStr, code: c_int) -> ! {
    type Exit = unsafe extern "C" fn(c_int) -> !;
    queue::at_once();
    if let Some(next) = elf::after_us_at_once(name) {
        // SAFETY: a function of that name has that type.
        let next = unsafe { std::mem::transmute::<*mut (), Exit>(next) };
        // SAFETY: the caller's own wish.
        unsafe { next(code) }
    }
    loop {
        // SAFETY: takes no pointers, and does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}
