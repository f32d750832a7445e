// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that is taken for an input. A sender of a few bytes must not get a machine's memory for
//! them; libFuzzer by itself sees only touched memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counting.
pub struct Counted;

/// Bytes that are taken now, and the most that may be. All threads together: a target has one.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

fn take(bytes: usize) {
    let taken = TAKEN.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
    if taken > MOST.load(Ordering::Relaxed) {
        MOST.store(usize::MAX, Ordering::Relaxed);
        eprintln!("an input has {bytes} bytes taken at once, {taken} in all: more than it may");
        std::process::abort();
    }
}

// SAFETY: all is the system's allocator's; counting changes nothing of it.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        take(size);
        TAKEN.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(place, layout, size) }
    }
}

/// Runs with a bound on the bytes that are taken in addition to the present ones.
pub fn within(bytes: usize, body: impl FnOnce()) {
    MOST.store(TAKEN.load(Ordering::Relaxed).saturating_add(bytes), Ordering::Relaxed);
    body();
    MOST.store(usize::MAX, Ordering::Relaxed);
}
