// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C library's turning points of a process: a fork and the end.
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

/// A word that is 1 in the process that began a session and 0 in a copy of it. Null without a
/// session.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Bytes of the word's page: the kernel wipes whole pages.
const PAGE_BYTES: usize = 4096;

/// Whether this process is a copy of the one that began the session: a child that has not begun its
/// own session. A child that shares its parent's memory is not a copy.
#[inline]
pub fn is_copy() -> bool {
    // SAFETY: null, or a page that is never unmapped.
    unsafe { MARK.load(Ordering::Acquire).as_ref() }.is_some_and(|mark| mark.load(Ordering::Relaxed) == 0)
}

/// Marks the process that begins a session. Without memory, or before Linux 4.14, copies stay
/// unknown.
pub fn mark() {
    if MARK.load(Ordering::Acquire).is_null() {
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
        MARK.store(page.cast(), Ordering::Release);
    }
    // SAFETY: null, or a page that is never unmapped.
    if let Some(mark) = unsafe { MARK.load(Ordering::Acquire).as_ref() } {
        mark.store(1, Ordering::Release);
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
