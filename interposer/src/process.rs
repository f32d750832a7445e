// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's life in this process, and the C library's turning points: a fork and the end.
//!
//! One word is the state of the library's life ([`LibraryLife`]). All other modules read it here.
//!
//! A forked child owns nothing of its parent's session. Its handler runs in one thread, while locks
//! may be held by threads that no longer exist. It makes one system call per mapping and stores a
//! few words. It closes and joins nothing.
//!
//! An orderly end stores one word in the lane, from which `weft status` sees that it was no kill.
//! It sends and closes nothing: other exit handlers may still launch kernels. It waits, bounded,
//! and only for queued launches.
//!
//! A child made without the C library (`clone`, `_Fork`) runs no handler. It is recognised by a
//! page that the kernel wipes in every copy of the process's memory.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// State of the library's life in a process.
///
/// | from | to | when |
/// | --- | --- | --- |
/// | `Idle`, `Copied` | `Beginning` | the driver is initialised: [`begin`] |
/// | `Beginning` | `PassingThrough`, `Recording`, `Serving` | that is done: [`begun`] |
/// | all from `Beginning` to `Serving` | `Ending` | the first exit handler runs: [`end`] |
/// | all from `Beginning` on | `Leaving` | the process calls `_exit`: [`leave`] |
/// | all | `Copied` | a child begins: [`copied`], or the kernel wipes the page |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum LibraryLife {
    /// A child with its parent's memory, which owns neither session nor queue. A child that shares
    /// its parent's memory (`vfork`) is no copy.
    Copied = 0,
    /// The driver was not initialised.
    Idle = 1,
    /// A thread makes the session or the recorder.
    Beginning = 2,
    /// Weft is off, or has failed: calls go to the driver.
    PassingThrough = 3,
    /// Trace mode.
    Recording = 4,
    /// There is a session, with or without a broker.
    Serving = 5,
    /// The exit handlers run.
    Ending = 6,
    /// The process ends at once.
    Leaving = 7,
}

impl LibraryLife {
    fn of(word: u32) -> LibraryLife {
        match word >> PID_BITS {
            0 => LibraryLife::Copied,
            1 => LibraryLife::Idle,
            2 => LibraryLife::Beginning,
            3 => LibraryLife::PassingThrough,
            4 => LibraryLife::Recording,
            5 => LibraryLife::Serving,
            6 => LibraryLife::Ending,
            _ => LibraryLife::Leaving,
        }
    }

    /// Whether the library may begin.
    pub fn is_before(self) -> bool {
        matches!(self, LibraryLife::Copied | LibraryLife::Idle)
    }

    /// Whether the process ends.
    pub fn is_end(self) -> bool {
        matches!(self, LibraryLife::Ending | LibraryLife::Leaving)
    }
}

/// Low bits of the word: the id of the process that began, 0 before. Linux's ids have 22 bits.
const PID_BITS: u32 = 24;

/// The word of [`LibraryLife`] and process id until a page for it is there.
static FIRST: AtomicU32 = AtomicU32::new((LibraryLife::Idle as u32) << PID_BITS);

/// The word in a page that the kernel wipes in every copy, which is then [`LibraryLife::Copied`].
/// Null before the first session; the page is never unmapped.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Bytes of the word's page: the kernel wipes whole pages.
const PAGE_BYTES: usize = 4096;

fn word() -> &'static AtomicU32 {
    // SAFETY: null, or a page that is never unmapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }.unwrap_or(&FIRST)
}

/// The state of the library's life.
#[inline]
pub fn life() -> LibraryLife {
    LibraryLife::of(word().load(Ordering::SeqCst))
}

/// Whether this process is a copy of the one that began: a child that has not begun itself.
#[inline]
pub fn is_copy() -> bool {
    life() == LibraryLife::Copied
}

fn own_id() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().unsigned_abs()
}

/// Whether this process began. A child that only shares its memory did not. Takes no lock.
pub fn is_own() -> bool {
    word().load(Ordering::SeqCst) & ((1 << PID_BITS) - 1) == own_id()
}

/// Changes this process's state to `to` if `from` allows it. Takes no lock.
fn change(to: LibraryLife, from: impl Fn(LibraryLife) -> bool) -> bool {
    let changed = |now| from(LibraryLife::of(now)).then(|| (to as u32) << PID_BITS | own_id());
    word().fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed).is_ok()
}

/// Begins. False if that was done.
pub fn begin() -> bool {
    change(LibraryLife::Beginning, LibraryLife::is_before)
}

/// Ends the beginning, unless the process ends.
pub fn begun(to: LibraryLife) {
    change(to, |from| from == LibraryLife::Beginning);
}

/// Notes that the exit handlers run. False if they ran before, or the library's life is not this
/// process's.
pub fn end() -> bool {
    is_own() && change(LibraryLife::Ending, |from| !from.is_before() && !from.is_end())
}

/// Notes that the process calls `_exit`. False if the library's life is not this process's.
pub fn leave() -> bool {
    is_own() && change(LibraryLife::Leaving, |from| !from.is_before())
}

/// Notes that this process is a copy.
pub fn copied() {
    word().store(LibraryLife::Copied as u32, Ordering::SeqCst);
}

/// Lets the kernel wipe the word in copies. Without memory, or before Linux 4.14, copies that run
/// no fork handler stay unknown. Only the thread that begins calls it.
pub fn mark() {
    if PAGE.load(Ordering::Acquire).is_null() {
        // SAFETY: a new mapping of its own.
        let page = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let Ok(page) = page else { return };
        // SAFETY: the page just mapped.
        if unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) }.is_err() {
            // SAFETY: as above; no thread knows it.
            let _ = unsafe { munmap(page, PAGE_BYTES) };
            return;
        }
        let word = page.cast::<AtomicU32>();
        // SAFETY: the page just mapped; no other thread knows it.
        unsafe { &*word }.store(FIRST.load(Ordering::SeqCst), Ordering::SeqCst);
        PAGE.store(word, Ordering::Release);
    }
}

/// Maps a page by whose name `weft status` sees that the process opens the driver through weft.
/// Children of a fork have it, too. Without memory it is missing.
pub fn mark_driver() {
    let Ok(file) = memfd_create(c"weft-driver", MemfdFlags::CLOEXEC) else {
        return;
    };
    if ftruncate(&file, PAGE_BYTES as u64).is_ok() {
        // SAFETY: a new mapping of its own, which no code reads.
        let _ = unsafe { mmap(ptr::null_mut(), PAGE_BYTES, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
    }
}

unsafe extern "C" {
    fn on_exit(at_end: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    fn at_quick_exit(at_end: extern "C" fn()) -> c_int;
}

/// Registers `at_end` for `exit` and a return from `main`, which pass the exit code, and
/// `at_quick_end` for `quick_exit`, which passes no code.
pub fn watch_end(at_end: extern "C" fn(c_int, *mut c_void), at_quick_end: extern "C" fn()) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: a function of this never unloaded library that reads no argument; it stores words
        // into memory that stays mapped.
        let result = unsafe { on_exit(at_end, ptr::null_mut()) };
        // SAFETY: as above.
        let _ = unsafe { at_quick_exit(at_quick_end) };
        if result != 0 {
            log::debug!("the broker will see the exit of this process as a kill: cannot add an exit handler");
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
            log::warn!("cannot detect forked children: error {result}");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exit code of a child that runs `body`; 0: true.
    fn in_a_child(body: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child makes system calls and atomic accesses only, then ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(!body());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: the pointer is to a local.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        status
    }

    #[test]
    fn a_process_begins_and_ends_once() {
        let lives = || {
            let begins = life() == LibraryLife::Idle && !is_own() && begin() && !begin() && is_own();
            begun(LibraryLife::Serving);
            let serves = life() == LibraryLife::Serving && end() && !end();
            begun(LibraryLife::Serving);
            begins && serves && life() == LibraryLife::Ending && leave() && life() == LibraryLife::Leaving
        };
        assert_eq!(in_a_child(lives), 0);
    }

    #[test]
    fn a_copy_owns_nothing_until_it_begins() {
        let copy = || is_copy() && !is_own() && !end() && !leave() && begin() && !is_copy();
        let parent = || {
            begin();
            mark();
            begun(LibraryLife::Serving);
            in_a_child(copy) == 0 && life() == LibraryLife::Serving && is_own()
        };
        assert_eq!(in_a_child(parent), 0);
    }
}
