// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turning points of the process, and the modules that handle them: `cuInit`, a fork, the end, and
//! the ends of contexts and streams.
//!
//! This module is above the session, the memory and the launch queue, which do not know each
//! other's ends.
//!
//! `_exit` and `_Exit` run no handlers, so weft wraps them to issue queued launches first. A
//! program may call them anywhere, in signal handlers and in children that share memory (`vfork`).
//! So the wrappers take no lock and allocate nothing. A signal that ends the process bypasses them.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};

use crate::client::settings::{Purpose, Settings};
use crate::driver::events::EventCalls;
use crate::driver::linker::elf;
use crate::driver::stream::Stream;
use crate::driver::symbols;
use crate::internal_error::{failpoint, guarded};
use crate::process::LibraryLife;
use crate::{deferred, movable, paging, process, throttle, trace};
use weft_protocol::variables;

/// Begins the session after a successful `cuInit`; cheap after the first call. Waits for a broker
/// for at most 5 s.
pub fn initialised() {
    if process::is_copy() {
        in_child();
    }
    if process::begin() {
        process::begun(guarded(begin).unwrap_or(LibraryLife::PassingThrough));
    }
}

/// Makes the session or the recorder.
#[cold]
fn begin() -> LibraryLife {
    failpoint("begin");
    let watch = || {
        process::mark();
        process::watch_forks(in_child);
        process::watch_end(at_end, at_quick_end);
    };
    let driver = || EventCalls::find(|name| symbols::find(name).and_then(symbols::real));
    if trace::on() {
        if !trace::begin(driver()) {
            return LibraryLife::PassingThrough;
        }
        watch();
        return LibraryLife::Recording;
    }
    let (settings, complaints) = Settings::of_process();
    if settings.purpose == Purpose::Off {
        return LibraryLife::PassingThrough;
    }
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    let mistyped = names.filter_map(|name| Some(format!("{name}: {}", variables::mistyped(&name)?)));
    for complaint in mistyped.chain(complaints) {
        log::warn!("{complaint}");
    }
    if let Err(why) = throttle::begin(driver(), settings, watch) {
        log::warn!("this job runs without weft: {why}");
        return LibraryLife::PassingThrough;
    }
    deferred::start();
    LibraryLife::Serving
}

/// Runs at the process's own end, with its exit code.
extern "C" fn at_end(code: c_int, _: *mut c_void) {
    if process::is_own() {
        throttle::tell_exit(code);
    }
    at_quick_end();
}

/// Runs at the process's own end, also by `quick_exit`.
extern "C" fn at_quick_end() {
    // Otherwise the session, the queue and the memory are the parent's.
    if !process::end() {
        return;
    }
    deferred::at_exit();
    paging::report_last();
    throttle::farewell();
    trace::farewell();
    // The driver ends after this, and must find no thread of weft in it.
    paging::context_ending();
    movable::ending();
    throttle::end_if_turned_away();
}

/// Runs in a forked child, which has no session and may begin a new one.
pub extern "C" fn in_child() {
    process::copied();
    paging::forget();
    movable::forget();
    deferred::forget();
    trace::forget();
    throttle::forget();
}

/// Announces a call that may end a context (`cuCtxDestroy`, `cuCtxDetach`,
/// `cuDevicePrimaryCtxReset`, `cuDevicePrimaryCtxRelease`, in all versions). Drop the guard after
/// [`context_ended`].
pub fn context_ending() -> throttle::ContextEnding {
    trace::context_ending();
    throttle::context_ending()
}

/// Forgets all objects made in an ended context. 0: an unknown context.
pub fn context_ended(context: usize) {
    trace::context_ended(context);
    deferred::context_ended(context);
    throttle::context_ended(context);
}

/// Announces the end of a stream (`cuStreamDestroy` in all versions).
pub fn stream_ending(stream: Stream) {
    deferred::stream_ending(stream);
    throttle::stream_ending(stream);
}

/// Ends the process after queued launches are issued.
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
    if process::leave() {
        throttle::tell_exit(code);
        deferred::at_once();
    }
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
