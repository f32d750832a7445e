//! The turning points of the process, and who hears of each: `cuInit`, a fork, the end, and the
//! ends of contexts and streams.
//!
//! It is above the session, the memory and the launch queue, none of which knows the others' ends.
//!
//! `_exit` and `_Exit` run no handlers, so they are ours: launches that the job has made and that
//! are in the queue go to the device first. They may be called anywhere, in handlers of signals and
//! in children that share the parent's memory (`vfork`), so nothing is locked and nothing allocated
//! on the way. A signal that ends the process does so without us.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::client::settings::{Purpose, Settings};
use crate::driver::events::EventCalls;
use crate::driver::linker::elf;
use crate::driver::stream::Stream;
use crate::driver::symbols;
use crate::internal_error::{failpoint, guarded};
use crate::{deferred, paging, process, throttle, trace};

/// Whether the driver was initialised: 0 = no, 1 = yes.
static BEGUN: AtomicU32 = AtomicU32::new(0);

/// `cuInit` succeeded in this process (called each time it does; cheap after the first). Waits for
/// a broker half a second at most.
pub fn initialised() {
    if BEGUN.swap(1, Ordering::AcqRel) == 0 {
        guarded(begin);
    }
}

/// Whether [`initialised`] was called.
pub fn has_begun() -> bool {
    BEGUN.load(Ordering::Acquire) != 0
}

#[cold]
fn begin() {
    failpoint("begin");
    let driver = || EventCalls::find(|name| symbols::find(name).and_then(symbols::real));
    if trace::on() {
        if trace::begin(driver()) {
            process::watch_forks(in_traced_child);
        }
        return;
    }
    let (settings, complaints) = Settings::of_process();
    if settings.purpose == Purpose::Off {
        return;
    }
    for complaint in complaints {
        log::warn!("{complaint}");
    }
    let watch = || {
        process::watch_forks(in_child);
        process::watch_end(at_end);
    };
    match throttle::begin(driver(), settings, watch) {
        Ok(()) => deferred::start(),
        Err(why) => log::warn!("this job runs as without weft: {why}"),
    }
}

/// At the process's own end.
extern "C" fn at_end() {
    if throttle::is_there() {
        deferred::at_exit();
    }
    throttle::farewell();
    // The driver goes down after this, and must find none of our threads in it.
    paging::context_ending();
    throttle::end_if_turned_away();
}

/// In a forked child: it has no session, and may begin anew.
pub extern "C" fn in_child() {
    paging::forget();
    deferred::forget();
    throttle::forget();
    BEGUN.store(0, Ordering::Release);
}

/// In a forked child of a process that is recorded.
extern "C" fn in_traced_child() {
    trace::forget();
    throttle::forget_thread();
    BEGUN.store(0, Ordering::Release);
}

/// A context may end by the call that comes (`cuCtxDestroy`, `cuCtxDetach`,
/// `cuDevicePrimaryCtxReset`, `cuDevicePrimaryCtxRelease`, in all versions).
pub fn context_ending() {
    trace::context_ending();
}

/// It has ended: what was made there is forgotten. 0: some context, nobody knows which.
pub fn context_ended(context: usize) {
    trace::context_ended(context);
    deferred::context_ended(context);
    throttle::context_ended(context);
}

/// A stream is about to be destroyed (`cuStreamDestroy` in all versions).
pub fn stream_ending(stream: Stream) {
    deferred::stream_ending(stream);
    throttle::stream_ending(stream);
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
    deferred::at_once();
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
