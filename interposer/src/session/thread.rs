//! Numbers of the calling thread: the system's, asked once a thread, and one that tells it from the process's others.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    // No destructor and no lazy initialisation: a word in the thread's own storage, usable to the thread's very end.
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

/// A number that no other living thread of the process has (one that ended may have had it). It is where the thread's control block lies, which one
/// instruction reads; the thread's own storage takes a preloaded library a call into the dynamic linker, 3 to 5 ns of each launch.
#[inline(always)]
pub fn mark() -> u32 {
    let block: u64;
    // SAFETY: on x86-64 the word at the thread pointer is the thread pointer itself (System V ABI, thread-local storage); nothing is written.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) block, options(pure, readonly, nostack, preserves_flags));
    }
    // Control blocks are aligned to cache lines, and threads' stacks, where they lie, are all within less than 2^38 bytes.
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
