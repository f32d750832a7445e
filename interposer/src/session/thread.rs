//! The calling thread's number, asked of the system once a thread.
#![forbid(unsafe_code)]

use std::cell::Cell;

thread_local! {
    // No destructor and no lazy initialisation: a word in the thread's own storage, usable to the thread's very end.
    static ID: Cell<u32> = const { Cell::new(0) };
}

/// The low half of the thread's id.
#[inline]
pub fn id() -> u32 {
    let known = ID.get();
    if known != 0 { known } else { ask() }
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
