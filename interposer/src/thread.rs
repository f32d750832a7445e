//! Numbers of the calling thread: the system's, asked once a thread, and one that tells it from the
//! process's others. And what keeps a `pthread_cancel` of the job's out of code of ours.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;

thread_local! {
    // No destructor and no lazy initialisation: a word in the thread's own storage, usable to the
    // thread's very end.
    static ID: Cell<u32> = const { Cell::new(0) };
    // Likewise.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// A number that no other thread of the process has or had. From 1 on.
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

/// A number that no other living thread of the process has (one that ended may have had it). It is
/// where the thread's control block lies, which one instruction reads; the thread's own storage
/// takes a preloaded library a call into the dynamic linker, 3 to 5 ns of each launch.
#[inline(always)]
pub fn mark() -> u32 {
    let block: u64;
    // SAFETY: on x86-64 the word at the thread pointer is the thread pointer itself (System V ABI,
    // thread-local storage); nothing is written.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) block, options(pure, readonly, nostack, preserves_flags));
    }
    // Control blocks are aligned to cache lines, and threads' stacks, where they lie, are all
    // within less than 2^38 bytes.
    (block >> 6) as u32
}

#[cold]
fn ask() -> u32 {
    let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    ID.set(id);
    id
}

/// A forked child's only thread has a number of its own.
pub fn forget() {
    ID.set(0);
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: std::ffi::c_int, before: *mut std::ffi::c_int) -> std::ffi::c_int;
}

/// PTHREAD_CANCEL_DISABLE in pthread.h.
const CANCEL_DISABLE: std::ffi::c_int = 1;

/// While it lives the calling thread is not cancelled; a `pthread_cancel` that comes meanwhile
/// waits for the next cancellation point of the job's own.
///
/// The C library cancels a thread by unwinding its stack, from within calls such as `nanosleep`,
/// `read`, `write` and `getrandom`. That unwinding may not be stopped, and code of ours that
/// catches panics stops it: the process would be aborted. No driver function that weft holds up is
/// a place where the job expects to be cancelled.
#[derive(Debug)]
#[must_use]
pub struct Uncancelled {
    before: Option<std::ffi::c_int>,
}

/// See [`Uncancelled`]. Two stores in the thread's own memory with a C library of today.
pub fn uncancelled() -> Uncancelled {
    let mut before = 0;
    // SAFETY: the out-parameter is valid; the thread is the caller.
    let done = unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut before) };
    Uncancelled {
        before: (done == 0).then_some(before),
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: null means that the caller does not want to know; the state is the one that
            // was there.
            unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
        }
    }
}

/// Sleeps so long, or until a signal comes. No cancellation point, and `errno` stays what it was.
pub fn rest(time: std::time::Duration) {
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

/// Blocks all signals of this thread: for threads of ours, which inherit that. What was before, for
/// [`restore_signals`].
fn block_signals() -> Option<libc::sigset_t> {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the pointer is to a local large enough for a set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: both pointers are to locals; the first was filled above.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: zeroed or filled by the call, a set is valid either way.
    (result == 0).then_some(unsafe { before.assume_init() })
}

/// Undoes [`block_signals`].
fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set is what pthread_sigmask said before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}
