// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory as a value: a sealed memfd mapped for as long as the value lives.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Memory of this type may be shared with a process that writes anything at any time.
///
/// # Safety
/// All of the type is atomics (any bit pattern is a value, and every access is atomic), it needs no
/// drop, and all zeroes is a good initial value.
pub(crate) unsafe trait Shared: Sync {}

// SAFETY: atomics throughout, in arrays and transparent wrappers; `initialise` writes the words
// that must not be zero.
unsafe impl Shared for super::lane::Lane {}
// SAFETY: the same.
unsafe impl Shared for super::board::Board {}

/// A mapped `T`, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping<T: Shared> {
    at: NonNull<T>,
}

// SAFETY: the mapping is owned by the value and not tied to a thread; `T` is `Sync` by the trait's
// bound.
unsafe impl<T: Shared> Send for Mapping<T> {}
// SAFETY: only shared references to `T` are given out, and `T` is `Sync` by the trait's bound.
unsafe impl<T: Shared> Sync for Mapping<T> {}

impl<T: Shared> Mapping<T> {
    /// Makes zeroed shared memory of exactly this size, sealed against changes of it.
    pub(crate) fn create(name: &str) -> io::Result<(Mapping<T>, OwnedFd)> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, size_of::<T>() as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Mapping::of(&fd)?, fd))
    }

    /// Maps memory that [`Mapping::create`] made. Refuses another size, and a size that may change.
    pub(crate) fn of(fd: impl AsFd) -> io::Result<Mapping<T>> {
        let stat = rustix::fs::fstat(&fd)?;
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        if stat.st_size != size_of::<T>() as i64 || !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "shared memory of another size",
            ));
        }
        // SAFETY: a fresh mapping chosen by the kernel; it overlaps nothing that Rust knows of.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size_of::<T>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }?;
        let at = NonNull::new(at.cast::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // mmap aligns to a page; a type that needs more cannot be shared this way.
        const { assert!(align_of::<T>() <= 4096) };
        Ok(Mapping { at })
    }
}

impl<T: Shared> Deref for Mapping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `at` points to a live mapping of `size_of::<T>()` bytes, page-aligned; the seal
        // keeps the file that long, and by `Shared` any content of it is a `T`.
        unsafe { self.at.as_ref() }
    }
}

impl<T: Shared> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: `at` and the size are those of the mapping made in `of`; no reference outlives
        // the value.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), size_of::<T>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[repr(C)]
    struct Two(AtomicU64, AtomicU64);
    // SAFETY: two atomics.
    unsafe impl Shared for Two {}

    #[test]
    fn two_mappings_see_one_memory() {
        let (one, fd) = Mapping::<Two>::create("test").unwrap();
        let other = Mapping::<Two>::of(&fd).unwrap();
        one.1.store(7, Ordering::SeqCst);
        assert_eq!(other.1.load(Ordering::SeqCst), 7);
        assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "the size is sealed");
    }

    #[test]
    fn other_memory_is_refused() {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(Mapping::<Two>::of(&fd).is_err(), "empty");
        rustix::fs::ftruncate(&fd, 16).unwrap();
        assert!(Mapping::<Two>::of(&fd).is_err(), "not sealed");
    }
}
