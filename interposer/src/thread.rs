// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identity of the calling thread, protection from `pthread_cancel`, and weft's threads.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;

use crate::processor::thread_pointer;

thread_local! {
    // No destructor, no lazy initialisation: usable until the thread ends.
    static ID: Cell<u32> = const { Cell::new(0) };
    // Likewise.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// A number unique over the life of the process, from 1 on.
pub fn number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if NUMBER.get() == 0 {
        NUMBER.set(LAST.fetch_add(1, Ordering::Relaxed).saturating_add(1));
    }
    NUMBER.get()
}

/// The low half of the thread's id.
#[inline]
pub fn id() -> u32 {
    let known = ID.get();
    if known != 0 { known } else { ask() }
}

/// A number unique among living threads, read with one instruction from the address of the thread's
/// control block. Thread-local storage costs a preloaded library 3 to 5 ns per launch.
#[inline(always)]
pub fn mark() -> u32 {
    // Control blocks are aligned to cache lines; stacks lie within 2^38 bytes.
    (thread_pointer() >> 6) as u32
}

#[cold]
fn ask() -> u32 {
    let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    ID.set(id);
    id
}

/// Resets the id: a forked child's only thread has its own.
pub fn forget() {
    ID.set(0);
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: std::ffi::c_int, before: *mut std::ffi::c_int) -> std::ffi::c_int;
}

const CANCEL_DISABLE: std::ffi::c_int = 1;

/// Deferral of the calling thread's cancellation, to the job's next cancellation point after its
/// drop.
///
/// The C library cancels by unwinding the stack from calls such as `nanosleep`, `read` and `write`.
/// Catching panics would stop that unwinding and abort the process.
#[derive(Debug)]
#[must_use]
pub struct Uncancelled {
    before: Option<std::ffi::c_int>,
}

/// Defers cancellation, with two stores to the thread's memory.
pub fn uncancelled() -> Uncancelled {
    let mut before = 0;
    // SAFETY: valid out-parameter.
    let done = unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut before) };
    Uncancelled {
        before: (done == 0).then_some(before),
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the former state; null: the old state is not wanted.
            unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
        }
    }
}

/// Sleeps for `time`, or until a signal. No cancellation point; keeps `errno`.
pub fn rest(time: std::time::Duration) {
    #[cfg(test)]
    if crate::client::clock::played::rest(time.as_nanos() as u64) {
        return;
    }
    if let Ok(time) = rustix::time::Timespec::try_from(time) {
        let _ = rustix::thread::nanosleep(&time);
    }
}

/// Starts a thread that no signal of the job reaches.
pub fn spawn(thread: Builder, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let before = block_signals();
    let spawned = thread.spawn(body);
    if let Some(before) = before {
        restore_signals(&before);
    }
    spawned.map(|_| ())
}

/// Blocks all signals of this thread, for its new threads to inherit. Returns the former set.
fn block_signals() -> Option<libc::sigset_t> {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the local is large enough for a set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: both locals are sets; the first is filled.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: zeroed or filled by the call, a set is valid.
    (result == 0).then_some(unsafe { before.assume_init() })
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set is pthread_sigmask's former one.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}
