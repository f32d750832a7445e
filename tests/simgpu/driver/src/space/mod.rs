// SPDX-License-Identifier: MIT OR Apache-2.0
//! The address space: the ranges for device, pinned and reserved addresses, and the memory behind
//! them.
//!
//! Device memory is host memory at fixed high addresses, sparse (`MAP_NORESERVE`), in one memfd a
//! process, so that another process can map a piece of it (IPC handles). Memory that was given back
//! is punched out, and reads as zero when it is handed out again.
//!
//! Only this file maps and unmaps. Only `raw.rs` reads and writes. `table.rs` knows every
//! allocation.

pub(crate) mod moved;
pub(crate) mod raw;
pub(crate) mod table;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use simgpu_device::lock::lock;

use crate::abi::{Error, R};

/// Granularity of device memory: the real driver's unit for maps and accounts.
pub(crate) const GRANULE: u64 = 2 << 20;
/// Page of the devices' ledgers of managed memory.
pub(crate) const LEDGER_PAGE_BYTES: u64 = 64 << 10;
/// Granularity of pinned memory.
pub(crate) const PAGE: u64 = 4096;

/// Begin of the ranges: far from heap, stacks and libraries, below the 47 bits of user space.
const BASE: u64 = 0x2000_0000_0000;
/// Room for device memory: sixteen times the largest device that is worth simulating.
const DEVICE_ROOM_BYTES: u64 = 1 << 40;
/// Room for pinned host memory.
const PINNED_ROOM_BYTES: u64 = 1 << 40;
/// Room for physical allocations of the virtual memory API (an offset range of a memfd, not
/// addresses).
const PHYSICAL_ROOM_BYTES: u64 = 1 << 40;
/// Room for reserved addresses: clients reserve 18 to 32 GiB at a time, some the whole device
/// several times.
const RESERVED_ROOM_BYTES: u64 = 16 << 40;

const PINNED_BASE: u64 = BASE + DEVICE_ROOM_BYTES;
const RESERVED_BASE: u64 = PINNED_BASE + PINNED_ROOM_BYTES;
const END: u64 = RESERVED_BASE + RESERVED_ROOM_BYTES;

/// The kind of memory at an address, by the range that it lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zone {
    /// `cuMemAlloc`, pools, managed memory, arrays, module variables.
    Device,
    /// `cuMemHostAlloc`.
    Pinned,
    /// `cuMemAddressReserve`, IPC mappings.
    Reserved,
    /// Everything else.
    Host,
}

/// Which zone an address lies in.
#[inline]
pub(crate) fn zone(address: u64) -> Zone {
    match address {
        BASE..PINNED_BASE => Zone::Device,
        PINNED_BASE..RESERVED_BASE => Zone::Pinned,
        RESERVED_BASE..END => Zone::Reserved,
        _ => Zone::Host,
    }
}

/// Free ranges of one zone: first fit by address, neighbours merged.
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        let fits = |(start, length): (&u64, &u64)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(size)? <= start + length).then_some((*start, *length, at))
        };
        let (start, length, at) = self.0.iter().find_map(fits)?;
        self.0.remove(&start);
        if at > start {
            self.0.insert(start, at - start);
        }
        if at + size < start + length {
            self.0.insert(at + size, start + length - at - size);
        }
        Some(at)
    }

    fn take_at(&mut self, at: u64, size: u64) -> Option<()> {
        let (start, length) = self
            .0
            .range(..=at)
            .next_back()
            .map(|(start, length)| (*start, *length))?;
        if at.checked_add(size)? > start + length {
            return None;
        }
        self.0.remove(&start);
        if at > start {
            self.0.insert(start, at - start);
        }
        if at + size < start + length {
            self.0.insert(at + size, start + length - at - size);
        }
        Some(())
    }

    fn give(&mut self, mut at: u64, mut size: u64) {
        if let Some((start, length)) = self.0.range(..at).next_back().map(|(start, length)| (*start, *length))
            && start + length == at
        {
            self.0.remove(&start);
            (at, size) = (start, length + size);
        }
        if let Some(length) = self.0.remove(&(at + size)) {
            size += length;
        }
        self.0.insert(at, size);
    }
}

/// The process's mappings.
pub(crate) struct Space {
    device: OwnedFd,
    physical: OwnedFd,
    free_device: Mutex<Ranges>,
    free_pinned: Mutex<Ranges>,
    free_physical: Mutex<Ranges>,
    free_reserved: Mutex<Ranges>,
}

fn os<T>(result: rustix::io::Result<T>) -> R<T> {
    result.map_err(|error| {
        eprintln!("simcuda[{}] memory: {error}", std::process::id());
        Error::OPERATING_SYSTEM
    })
}

fn address(at: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(at as usize)
}

fn sparse_file(name: &str, room: u64) -> R<OwnedFd> {
    let file = os(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC))?;
    os(rustix::fs::ftruncate(&file, room))?;
    Ok(file)
}

fn punch(file: BorrowedFd<'_>, at: u64, size: u64) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(error) = rustix::fs::fallocate(file, flags, at, size) {
        eprintln!("simcuda[{}] memory: {error}", std::process::id());
    }
}

impl Space {
    fn open() -> R<Space> {
        let device = sparse_file("simcuda-device", DEVICE_ROOM_BYTES)?;
        let physical = sparse_file("simcuda-physical", PHYSICAL_ROOM_BYTES)?;
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: FIXED_NOREPLACE maps nothing if something is mapped already.
        os(unsafe { rustix::mm::mmap(address(BASE), DEVICE_ROOM_BYTES as usize, read_write, flags, &device, 0) })?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: as above.
        os(unsafe { rustix::mm::mmap_anonymous(address(PINNED_BASE), PINNED_ROOM_BYTES as usize, read_write, flags) })?;
        // SAFETY: as above.
        os(unsafe {
            rustix::mm::mmap_anonymous(
                address(RESERVED_BASE),
                RESERVED_ROOM_BYTES as usize,
                ProtFlags::empty(),
                flags,
            )
        })?;
        // SAFETY: the range is ours; keeping it out of core dumps changes nothing else.
        let _ = unsafe { rustix::mm::madvise(address(BASE), (END - BASE) as usize, Advice::LinuxDontDump) };
        let all = |base, room| Mutex::new(Ranges(BTreeMap::from([(base, room)])));
        Ok(Space {
            device,
            physical,
            free_device: all(BASE, DEVICE_ROOM_BYTES),
            free_pinned: all(PINNED_BASE, PINNED_ROOM_BYTES),
            free_physical: all(0, PHYSICAL_ROOM_BYTES),
            free_reserved: all(RESERVED_BASE, RESERVED_ROOM_BYTES),
        })
    }

    /// Device addresses for `size` bytes, a multiple of [`GRANULE`], reading as zero.
    pub(crate) fn take_device(&self, size: u64) -> R<u64> {
        lock(&self.free_device).take(size, GRANULE).ok_or(Error::OUT_OF_MEMORY)
    }

    pub(crate) fn give_device(&self, at: u64, size: u64) {
        punch(self.device.as_fd(), at - BASE, size);
        lock(&self.free_device).give(at, size);
    }

    /// Takes device addresses out of the process's page table until they are used again. The file
    /// keeps their content.
    pub(crate) fn hide(&self, at: u64, size: u64) {
        if zone(at) != Zone::Device || size == 0 || zone(at + size - 1) != Zone::Device {
            return;
        }
        // SAFETY: shared pages of a file, which are read from it again when they are used.
        let _ = unsafe { rustix::mm::madvise(address(at), size as usize, Advice::LinuxDontNeed) };
    }

    /// Pinned host memory, a multiple of [`PAGE`], reading as zero.
    pub(crate) fn take_pinned(&self, size: u64) -> R<u64> {
        lock(&self.free_pinned).take(size, PAGE).ok_or(Error::OUT_OF_MEMORY)
    }

    pub(crate) fn give_pinned(&self, at: u64, size: u64) {
        // SAFETY: the range was handed out by `take_pinned` and its owner is done with it.
        let _ = unsafe { rustix::mm::madvise(address(at), size as usize, Advice::LinuxDontNeed) };
        lock(&self.free_pinned).give(at, size);
    }

    /// Physical memory for the virtual memory API: an offset in the shared file.
    pub(crate) fn take_physical(&self, size: u64) -> R<u64> {
        lock(&self.free_physical)
            .take(size, GRANULE)
            .ok_or(Error::OUT_OF_MEMORY)
    }

    pub(crate) fn give_physical(&self, at: u64, size: u64) {
        punch(self.physical.as_fd(), at, size);
        lock(&self.free_physical).give(at, size);
    }

    /// The file that `take_physical`'s offsets mean.
    pub(crate) fn physical_file(&self) -> BorrowedFd<'_> {
        self.physical.as_fd()
    }

    /// The file behind device addresses, and the offset of one in it.
    pub(crate) fn device_file(&self, at: u64) -> (BorrowedFd<'_>, u64) {
        (self.device.as_fd(), at - BASE)
    }

    /// Addresses without memory; at `wanted` if that is free.
    pub(crate) fn reserve(&self, size: u64, align: u64, wanted: u64) -> R<u64> {
        let mut free = lock(&self.free_reserved);
        if wanted != 0 && wanted.is_multiple_of(GRANULE) && free.take_at(wanted, size).is_some() {
            return Ok(wanted);
        }
        free.take(size, align.max(GRANULE)).ok_or(Error::OUT_OF_MEMORY)
    }

    pub(crate) fn unreserve(&self, at: u64, size: u64) {
        self.unmap(at, size);
        lock(&self.free_reserved).give(at, size);
    }

    /// Puts a piece of a file at reserved addresses.
    pub(crate) fn map(&self, at: u64, size: u64, file: BorrowedFd<'_>, offset: u64) -> R {
        if zone(at) != Zone::Reserved || zone(at + size - 1) != Zone::Reserved {
            return Err(Error::INVALID_VALUE);
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the addresses lie in the reserved zone, which is ours: only PROT_NONE pages or an
        // older mapping of ours are replaced.
        os(unsafe { rustix::mm::mmap(address(at), size as usize, read_write, flags, file, offset) })?;
        Ok(())
    }

    /// Makes reserved addresses empty again.
    pub(crate) fn unmap(&self, at: u64, size: u64) {
        if zone(at) != Zone::Reserved || size == 0 || zone(at + size - 1) != Zone::Reserved {
            return;
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as in `map`.
        let _ = os(unsafe { rustix::mm::mmap_anonymous(address(at), size as usize, ProtFlags::empty(), flags) });
    }
}

/// Pieces of device memory as host memory: which file, the offset in it, and the bytes.
pub(crate) struct Contents(Vec<(bool, u64, Vec<u8>)>);

/// Longest piece, bytes.
const PIECE_BYTES: u64 = 8 << 20;

/// Used ranges of a sparse file, in pieces.
fn used(file: BorrowedFd<'_>) -> R<Vec<(u64, u64)>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    loop {
        let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            // Nothing is used from there on.
            Err(rustix::io::Errno::NXIO) => return Ok(ranges),
            found => os(found)?,
        };
        let end = os(rustix::fs::seek(file, SeekFrom::Hole(begin)))?;
        let starts = (begin..end).step_by(PIECE_BYTES as usize);
        ranges.extend(starts.map(|start| (start, PIECE_BYTES.min(end - start))));
        at = end;
    }
}

impl Space {
    fn file(&self, is_physical: bool) -> BorrowedFd<'_> {
        match is_physical {
            true => self.physical.as_fd(),
            false => self.device.as_fd(),
        }
    }

    /// Takes the contents out of all device memory, which then reads as zero.
    pub(crate) fn take_contents(&self) -> R<Contents> {
        let mut pieces = Vec::new();
        for is_physical in [false, true] {
            let file = self.file(is_physical);
            for (start, size) in used(file)? {
                let mut bytes = vec![0; size as usize];
                let mut done = 0;
                while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
                    match os(rustix::io::pread(file, rest, start + done as u64))? {
                        0 => return Err(Error::OPERATING_SYSTEM),
                        read => done += read,
                    }
                }
                punch(file, start, size);
                pieces.push((is_physical, start, bytes));
            }
        }
        Ok(Contents(pieces))
    }

    /// Puts contents back to where they were taken.
    pub(crate) fn put_contents(&self, contents: &Contents) -> R {
        for (is_physical, start, bytes) in &contents.0 {
            let (file, mut done) = (self.file(*is_physical), 0);
            while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
                done += os(rustix::io::pwrite(file, rest, start + done as u64))?;
            }
        }
        Ok(())
    }
}

/// The process's space, mapped on first use.
pub(crate) fn space() -> R<&'static Space> {
    static SPACE: OnceLock<Space> = OnceLock::new();
    static OPENING: Mutex<()> = Mutex::new(());
    if let Some(space) = SPACE.get() {
        return Ok(space);
    }
    let _one = lock(&OPENING);
    if SPACE.get().is_none() {
        let _ = SPACE.set(Space::open()?);
    }
    SPACE.get().ok_or(Error::UNKNOWN)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Ranges;

    #[test]
    fn ranges_merge() {
        let mut ranges = Ranges(BTreeMap::from([(0x1000, 0x9000)]));
        let first = ranges.take(0x1000, 0x1000).unwrap();
        let second = ranges.take(0x2000, 0x2000).unwrap();
        assert_eq!((first, second), (0x1000, 0x2000));
        assert!(ranges.take_at(0x4000, 0x1000).is_some());
        assert!(ranges.take_at(0x4000, 0x1000).is_none());
        ranges.give(0x2000, 0x2000);
        ranges.give(0x1000, 0x1000);
        ranges.give(0x4000, 0x1000);
        assert_eq!(ranges.0, BTreeMap::from([(0x1000, 0x9000)]));
        assert!(ranges.take(0xa000, 1).is_none());
    }
}
