// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells a child of fork from its parent for the price of a load: by a page that the kernel wipes
//! in the child.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Size of the mapping: the smallest page of any machine; the kernel rounds up.
const SIZE: usize = 4096;

/// True in the process that made it, false in children of fork.
#[derive(Debug)]
pub(crate) struct ForkGuard {
    page: NonNull<AtomicU32>,
}

// SAFETY: the page belongs to the value, and an atomic may be used from any thread.
unsafe impl Send for ForkGuard {}
// SAFETY: the same.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    pub(crate) fn new() -> io::Result<ForkGuard> {
        // SAFETY: a fresh anonymous mapping at a place of the kernel's choice.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                SIZE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let page = NonNull::new(at.cast::<AtomicU32>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let guard = ForkGuard { page };
        // SAFETY: the range is the mapping just made; wiping it in a child only changes an atomic
        // there.
        unsafe { rustix::mm::madvise(at, SIZE, Advice::LinuxWipeOnFork) }?;
        guard.word().store(1, Ordering::Relaxed);
        Ok(guard)
    }

    /// Whether this is the process that made the guard.
    pub(crate) fn same_process(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 1
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped for as long as the value lives, aligned, and zeroes or a
        // stored 1 are an atomic's value.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, of that size; no reference to it outlives the value.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), SIZE) };
    }
}
