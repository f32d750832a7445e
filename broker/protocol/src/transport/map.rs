// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared memory: the only code that turns a descriptor into a [`Lane`] or an [`EpochPage`].
//!
//! * The broker makes a memfd of the exact size, seals it and maps it: [`Shared`]. A client that
//!   truncated it would cause a SIGBUS.
//! * A client maps it into a [`Mapping`]: one readable address for the life of the process. Without
//!   a broker the place holds zeroed private memory, with [`Mode::Free`](crate::lane::Mode::Free).
//!   So a launch never checks whether a lane exists. One system call swaps the memory.
//!
//! Only types made of atomics are shared: a reference stays sound whatever the other process
//! writes.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::TransportError;
use crate::epoch_page::EpochPage;
use crate::lane::Lane;

/// Page size: mappings are multiples of it.
const PAGE: usize = 4096;

/// Types that may be shared.
///
/// # Safety
/// The type consists only of atomics and padding, and is valid for every pattern of bytes. Its
/// alignment divides the page's.
pub unsafe trait Plain: Sync + Send + 'static {
    /// Name of the memory in `/proc/PID/maps`.
    const NAME: &'static CStr;
}

// SAFETY: every field of a lane, its slots included, is an atomic integer; it is aligned to a page.
unsafe impl Plain for Lane {
    const NAME: &'static CStr = c"weft-lane";
}

// SAFETY: every field of an epoch page is an atomic integer; it is aligned to 64 bytes.
unsafe impl Plain for EpochPage {
    const NAME: &'static CStr = c"weft-epoch_page";
}

const fn length<T>() -> usize {
    size_of::<T>().next_multiple_of(PAGE)
}

/// The broker's mapping, unmapped on drop.
#[derive(Debug)]
pub struct Shared<T: Plain> {
    address: NonNull<T>,
    memory: OwnedFd,
}

// SAFETY: a `Shared` is a reference to a `T`, which is `Send` and `Sync` by `Plain`; the descriptor
// is only read.
unsafe impl<T: Plain> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Shared<T> {}

/// A lane in the broker.
pub type SharedLane = Shared<Lane>;
/// The epoch page in its broker.
pub type SharedEpochPage = Shared<EpochPage>;

impl<T: Plain> Shared<T> {
    fn make() -> Result<Shared<T>, TransportError> {
        let memory = memfd_create(T::NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(TransportError::system("making shared memory"))?;
        ftruncate(&memory, length::<T>() as u64).map_err(TransportError::system("sizing shared memory"))?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(TransportError::system("sealing shared memory"))?;
        let flags = MapFlags::SHARED;
        // SAFETY: a null hint lets the kernel choose the address, so nothing that exists is
        // replaced.
        let address = unsafe {
            mmap(
                ptr::null_mut(),
                length::<T>(),
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                &memory,
                0,
            )
        }
        .map_err(TransportError::system("mapping shared memory"))?;
        let address =
            NonNull::new(address.cast::<T>()).ok_or(TransportError::Nonsense("shared memory at address zero"))?;
        Ok(Shared { address, memory })
    }

    /// Descriptor of the memory, for a client.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl SharedLane {
    /// Makes a lane: mode `Free`, otherwise zero.
    pub fn lane() -> Result<SharedLane, TransportError> {
        let lane = Shared::<Lane>::make()?;
        lane.initialise();
        Ok(lane)
    }
}

impl SharedEpochPage {
    /// Makes an epoch page.
    pub fn epoch_page() -> Result<SharedEpochPage, TransportError> {
        use std::sync::atomic::Ordering;
        let epoch_page = Shared::<EpochPage>::make()?;
        epoch_page.version.store(crate::VERSION, Ordering::Relaxed);
        epoch_page.magic.store(crate::epoch_page::MAGIC, Ordering::Release);
        Ok(epoch_page)
    }
}

impl<T: Plain> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `make` mapped `length::<T>()` bytes there, page aligned, and only `drop` unmaps
        // them; any bytes are a valid `T` by `Plain`; the size is sealed, so the pages cannot
        // vanish.
        unsafe { self.address.as_ref() }
    }
}

impl<T: Plain> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours since `make`, and no reference outlives `self`.
        let gone = unsafe { munmap(self.address.as_ptr().cast(), length::<T>()) };
        debug_assert!(gone.is_ok(), "munmap of a mapping that was made here");
    }
}

/// A client's address of a `T`: always readable, never freed.
#[derive(Debug)]
pub struct Mapping<T: Plain> {
    address: NonNull<T>,
}

// SAFETY: a `Mapping` is a `&'static T`, and `T` is `Sync` by `Plain`.
unsafe impl<T: Plain> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Mapping<T> {}

impl<T: Plain> Mapping<T> {
    /// Reserves an address with zeroed private memory.
    pub fn reserve() -> Result<Mapping<T>, TransportError> {
        // SAFETY: a null hint lets the kernel choose the address, so nothing that exists is
        // replaced.
        let address = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                length::<T>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(TransportError::system("reserving an address"))?;
        let address = NonNull::new(address.cast::<T>()).ok_or(TransportError::Nonsense("memory at address zero"))?;
        Ok(Mapping { address })
    }

    /// The present `T`. Its atomics may change at any time, also all at once.
    pub fn get(&self) -> &'static T {
        // SAFETY: `reserve` mapped `length::<T>()` bytes there; `put` and `clear` replace the
        // mapping in one step and nothing unmaps it, so the address stays readable; any bytes are a
        // valid `T` by `Plain`.
        unsafe { self.address.as_ref() }
    }

    /// Maps a broker's memory there, unless it is too small or can shrink.
    pub fn put(&self, memory: &OwnedFd) -> Result<(), TransportError> {
        let facts = fstat(memory).map_err(TransportError::system("examining shared memory"))?;
        if usize::try_from(facts.st_size).unwrap_or(0) < length::<T>() {
            return Err(TransportError::Nonsense(
                "the broker's shared memory has the wrong size",
            ));
        }
        let seals = fcntl_get_seals(memory).map_err(TransportError::system("examining the seals of shared memory"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(TransportError::Nonsense("the broker's shared memory is not sealed"));
        }
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let at = self.address.as_ptr().cast();
        // SAFETY: the range is the one that `reserve` took and that nothing else uses; readers see
        // the old memory or the new, both valid.
        unsafe { mmap(at, length::<T>(), ProtFlags::READ | ProtFlags::WRITE, flags, memory, 0) }
            .map(|_| ())
            .map_err(TransportError::system("mapping the broker's shared memory"))
    }

    /// Maps zeroed private memory there by one system call: the child of a fork may call it.
    pub fn clear(&self) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let at = self.address.as_ptr().cast();
        // SAFETY: as in `put`.
        let cleared = unsafe { mmap_anonymous(at, length::<T>(), ProtFlags::READ | ProtFlags::WRITE, flags) };
        debug_assert!(
            cleared.is_ok(),
            "replacing a mapping by an anonymous one of the same size"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::{Kind, LaneRecord, MAGIC, Mode, Reader};
    use std::sync::atomic::Ordering;

    #[test]
    fn what_one_side_writes_the_other_reads_and_a_cleared_place_is_free() {
        let lane = SharedLane::lane().expect("a lane");
        let place = Mapping::<Lane>::reserve().expect("a place");
        let seen = place.get();
        assert_eq!(
            Mode::from_word(seen.orders.mode.load(Ordering::Relaxed)),
            Some(Mode::Free)
        );
        place
            .put(&lane.memory().try_clone_to_owned().expect("dup"))
            .expect("mapped");
        assert_eq!(seen.magic.load(Ordering::Relaxed), MAGIC);
        lane.orders.mode.store(Mode::Background as u32, Ordering::Relaxed);
        assert_eq!(
            Mode::from_word(seen.orders.mode.load(Ordering::Relaxed)),
            Some(Mode::Background)
        );
        let record = LaneRecord {
            kind: Kind::Launch,
            thread: 1,
            at: 2,
            kernel: 3,
            a: 4,
            b: 5,
        };
        seen.record(record);
        assert_eq!(Reader::default().next(&lane), Some(record));
        place.clear();
        assert_eq!(
            Mode::from_word(seen.orders.mode.load(Ordering::Relaxed)),
            Some(Mode::Free)
        );
        assert_eq!(lane.orders.mode.load(Ordering::Relaxed), Mode::Background as u32);
    }

    #[test]
    fn memory_that_could_shrink_or_is_too_small_is_refused() {
        let place = Mapping::<EpochPage>::reserve().expect("a place");
        let open = memfd_create(c"open", MemfdFlags::ALLOW_SEALING).expect("a memfd");
        assert!(place.put(&open).is_err(), "empty");
        ftruncate(&open, 1 << 20).expect("sized");
        assert!(place.put(&open).is_err(), "not sealed");
        let epoch_page = SharedEpochPage::epoch_page().expect("an epoch page");
        assert!(
            ftruncate(epoch_page.memory(), 0).is_err(),
            "a sealed epoch page can not be truncated"
        );
    }
}
