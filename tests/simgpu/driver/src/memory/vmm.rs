// SPDX-License-Identifier: MIT OR Apache-2.0
//! The virtual memory API: addresses and memory separately.
//!
//! Memory of `cuMemCreate` is a piece of a file; it has a file of its own if the client wants to
//! export it. Mapping puts the file at reserved addresses. The memory counts against the device
//! from create to the last release and unmap.
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use rustix::fs::MemfdFlags;
use simgpu_device::lock::lock;

use crate::abi::{AccessDescriptor, DevicePtr, Error, Handle, In, Location, Out, R};
use crate::context::{self, current};
use crate::export::export;
use crate::registry::{HandleKind, Registry};
use crate::space::table::{AllocationKind, Owner, find, insert, remove};
use crate::space::{GRANULE, Zone, moved, space, zone};
use crate::state::{self, Driver};
use crate::stream::synchronize_context;
use crate::{device, fd};

/// Physical allocations that have a handle or a mapping.
static ALLOCATIONS: Registry<Physical> = Registry::new(HandleKind::Allocation);
/// Reserved ranges.
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
/// Mappings by address.
static MAPPED: Mutex<BTreeMap<u64, MappedRange>> = Mutex::new(BTreeMap::new());

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTOR: u32 = 1;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocationProperties {
    kind: u32,
    handle_types: u32,
    location: Location,
    metadata: usize,
    flags: [u8; 8],
}

enum Backing {
    /// A range of the process's file.
    Shared(u64),
    /// A file of its own, exported or imported.
    Own(OwnedFd),
}

struct Physical {
    size: u64,
    properties: AllocationProperties,
    backing: Backing,
    /// Handles the client holds, and mappings.
    uses: AtomicU32,
    /// Whether it is this process that took it from the device.
    counted: bool,
}

struct MappedRange {
    size: u64,
    handle: Handle,
}

/// The reserved range an address lies in: start and size.
pub(crate) fn reservation(address: u64) -> Option<(u64, u64)> {
    let reserved = lock(&RESERVED);
    let (start, size) = reserved.range(..=address).next_back()?;
    (address - start < *size).then_some((*start, *size))
}

impl AllocationProperties {
    fn is_host(&self) -> bool {
        // CU_MEM_LOCATION_TYPE_HOST, HOST_NUMA, HOST_NUMA_CURRENT.
        (2..=4).contains(&self.location.kind)
    }

    /// Device that has the memory; checked when the memory was made.
    fn device(&self) -> usize {
        usize::try_from(self.location.id).unwrap_or(0)
    }

    fn check(&self) -> R {
        if self.kind != 1 {
            return Err(Error::INVALID_VALUE);
        }
        match self.location.kind {
            Location::DEVICE => device::check(self.location.id).map(drop),
            _ => Err(Error::NOT_SUPPORTED),
        }
    }
}

/// Whether a test has this call find the device full: `SIMGPU_FULL=FIRST:TIMES`.
fn finds_full() -> bool {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    static FULL: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    let full = FULL.get_or_init(|| {
        let text = std::env::var("SIMGPU_FULL").ok()?;
        let (first, times) = text.split_once(':')?;
        Some((first.parse().ok()?, times.parse().ok()?))
    });
    let call = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    full.is_some_and(|(first, times)| (first..first.saturating_add(times)).contains(&call))
}

fn create(driver: &Driver, size: u64, properties: AllocationProperties) -> R<Handle> {
    let device = properties.device();
    if finds_full() {
        return Err(Error::OUT_OF_MEMORY);
    }
    driver.timeline.reserve(device, size)?;
    let backing = || -> R<Backing> {
        if properties.handle_types & FILE_DESCRIPTOR == 0 {
            return Ok(Backing::Shared(space()?.take_physical(size)?));
        }
        let file = rustix::fs::memfd_create("simcuda-physical", MemfdFlags::CLOEXEC);
        let file = file.map_err(|_| Error::OPERATING_SYSTEM)?;
        rustix::fs::ftruncate(&file, size).map_err(|_| Error::OPERATING_SYSTEM)?;
        Ok(Backing::Own(file))
    };
    let backing = backing().inspect_err(|_| driver.timeline.release(device, size))?;
    Ok(ALLOCATIONS.add(Physical {
        size,
        properties,
        backing,
        uses: AtomicU32::new(1),
        counted: true,
    }))
}

/// One use less; the last one gives the memory back.
fn drop_use(driver: &Driver, handle: Handle) -> R {
    let physical = ALLOCATIONS.get(handle)?;
    if physical.uses.fetch_sub(1, Ordering::AcqRel) > 1 {
        return Ok(());
    }
    ALLOCATIONS.remove(handle)?;
    if let Backing::Shared(offset) = physical.backing {
        space()?.give_physical(offset, physical.size);
    }
    if physical.counted {
        driver.timeline.release(physical.properties.device(), physical.size);
    }
    Ok(())
}

/// A handle for the memory mapped at an address.
pub(crate) fn retain(address: u64) -> R<Handle> {
    let mapped = lock(&MAPPED);
    let (start, mapping) = mapped.range(..=address).next_back().ok_or(Error::INVALID_VALUE)?;
    if address - start >= mapping.size {
        return Err(Error::INVALID_VALUE);
    }
    ALLOCATIONS.get(mapping.handle)?.uses.fetch_add(1, Ordering::AcqRel);
    Ok(mapping.handle)
}

fn map(at: u64, size: u64, offset: u64, handle: Handle) -> R {
    // The virtual memory API belongs to the device: a thread without a context may map too
    // (PyTorch's backward threads do).
    let physical = ALLOCATIONS.get(handle)?;
    let device = physical.properties.device();
    let context = match current::get() {
        Ok(context) => context,
        Err(_) => context::primary_of(device)?.clone(),
    };
    context.check()?;
    let (start, room) = reservation(at).ok_or(Error::INVALID_VALUE)?;
    let whole = at.is_multiple_of(GRANULE) && size.is_multiple_of(GRANULE) && size > 0;
    if !whole || offset != 0 || size > physical.size || at + size > start + room || find(at).is_some() {
        return Err(Error::INVALID_VALUE);
    }
    match &physical.backing {
        Backing::Shared(offset) => space()?.map(at, size, space()?.physical_file(), *offset)?,
        Backing::Own(file) => space()?.map(at, size, file.as_fd(), 0)?,
    }
    physical.uses.fetch_add(1, Ordering::AcqRel);
    lock(&MAPPED).insert(at, MappedRange { size, handle });
    let kind = AllocationKind::Mapped {
        handle_types: physical.properties.handle_types,
        host: physical.properties.is_host(),
    };
    let owner = Owner {
        device,
        ..context.owner()
    };
    insert(owner, at, size, size, kind);
    Ok(())
}

fn unmap(driver: &Driver, at: u64, size: u64) -> R {
    // Nothing may still use the memory: work that does would be a fault.
    for primary in context::primaries()?.iter().filter(|primary| primary.is_alive()) {
        synchronize_context(driver, primary)?;
    }
    if let Ok(context) = current::get() {
        synchronize_context(driver, &context)?;
    }
    let end = at.checked_add(size).ok_or(Error::INVALID_VALUE)?;
    let gone: Vec<(u64, MappedRange)> = {
        let mut mapped = lock(&MAPPED);
        let starts: Vec<u64> = mapped.range(at..end).map(|(start, _)| *start).collect();
        starts
            .into_iter()
            .filter_map(|start| Some((start, mapped.remove(&start)?)))
            .collect()
    };
    if gone.is_empty() {
        return Err(Error::INVALID_VALUE);
    }
    for (start, mapping) in gone {
        let unhashed = moved::leaves(start, mapping.size);
        remove(start);
        space()?.unmap(start, mapping.size);
        drop(unhashed);
        drop_use(driver, mapping.handle)?;
    }
    Ok(())
}

export! {
    fn cuMemGetAllocationGranularity(granularity: Out<usize>, properties: In<AllocationProperties>, option: u32) {
        let _ = option;
        state::driver()?;
        properties.get()?;
        granularity.set(GRANULE as usize)
    }

    fn cuMemAddressReserve(pointer: Out<DevicePtr>, size: usize, align: usize, wanted: DevicePtr, flags: u64) {
        state::driver()?;
        let size = size as u64;
        if size == 0 || !size.is_multiple_of(GRANULE) || flags != 0 || (align != 0 && !align.is_power_of_two()) {
            return Err(Error::INVALID_VALUE);
        }
        let at = space()?.reserve(size, align as u64, wanted)?;
        lock(&RESERVED).insert(at, size);
        pointer.set(at)
    }

    fn cuMemAddressFree(pointer: DevicePtr, size: usize) {
        state::driver()?;
        let size = size as u64;
        if lock(&MAPPED).range(pointer..pointer.saturating_add(size)).next().is_some() {
            return Err(Error::INVALID_VALUE);
        }
        let mut reserved = lock(&RESERVED);
        if reserved.get(&pointer) != Some(&size) {
            return Err(Error::INVALID_VALUE);
        }
        reserved.remove(&pointer);
        drop(reserved);
        moved::forget(pointer);
        space()?.unreserve(pointer, size);
        Ok(())
    }

    fn cuMemCreate(handle: Out<Handle>, size: usize, properties: In<AllocationProperties>, flags: u64) {
        let driver = state::driver()?;
        let properties = properties.get()?;
        properties.check()?;
        if size == 0 || !(size as u64).is_multiple_of(GRANULE) || flags != 0 || handle.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        handle.set(create(driver, size as u64, properties)?)
    }

    fn cuMemRelease(handle: Handle) {
        drop_use(state::driver()?, handle)
    }

    fn cuMemMap(pointer: DevicePtr, size: usize, offset: usize, handle: Handle, flags: u64) {
        state::driver()?;
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        map(pointer, size as u64, offset as u64, handle)
    }

    fn cuMemUnmap(pointer: DevicePtr, size: usize) {
        unmap(state::driver()?, pointer, size as u64)
    }

    fn cuMemSetAccess(pointer: DevicePtr, size: usize, access: In<AccessDescriptor>, count: usize) {
        state::driver()?;
        if zone(pointer) != Zone::Reserved || reservation(pointer).is_none() || size == 0 {
            return Err(Error::INVALID_VALUE);
        }
        // Mapped memory is always readable and writable here. Only a device or a mapping that does
        // not exist is refused.
        for wanted in access.list(count)? {
            if wanted.location.kind == Location::DEVICE {
                device::check(wanted.location.id)?;
            }
        }
        if find(pointer).is_none() {
            return Err(Error::INVALID_VALUE);
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, pointer: DevicePtr) {
        state::driver()?;
        location.get()?;
        find(pointer).ok_or(Error::INVALID_VALUE)?;
        flags.set(3)
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<AllocationProperties>, handle: Handle) {
        state::driver()?;
        properties.set(ALLOCATIONS.get(handle)?.properties)
    }

    fn cuMemExportToShareableHandle(out: Out<i32>, handle: Handle, kind: u32, flags: u64) {
        state::driver()?;
        if kind != FILE_DESCRIPTOR || flags != 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        match &ALLOCATIONS.get(handle)?.backing {
            Backing::Own(file) => {
                let copy = rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(|_| Error::OPERATING_SYSTEM)?;
                out.set(copy.into_raw_fd())
            }
            Backing::Shared(_) => Err(Error::INVALID_VALUE),
        }
    }

    fn cuMemImportFromShareableHandle(out: Out<Handle>, handle: usize, kind: u32) {
        state::driver()?;
        if kind != FILE_DESCRIPTOR {
            return Err(Error::NOT_SUPPORTED);
        }
        let file = fd::copy_of(i32::try_from(handle).map_err(|_| Error::INVALID_VALUE)?)?;
        let size = rustix::fs::fstat(&file).map_err(|_| Error::INVALID_VALUE)?.st_size;
        let size = u64::try_from(size).unwrap_or(0);
        if size == 0 || !size.is_multiple_of(GRANULE) {
            return Err(Error::INVALID_VALUE);
        }
        let id = current::any().map_or(0, |context| context.ordinal());
        let location = Location { kind: Location::DEVICE, id };
        let properties = AllocationProperties { kind: 1, handle_types: FILE_DESCRIPTOR, location, metadata: 0, flags: [0; 8] };
        // The exporter took the memory from the device; it is not counted twice.
        let imported = Physical { size, properties, backing: Backing::Own(file), uses: AtomicU32::new(1), counted: false };
        out.set(ALLOCATIONS.add(imported))
    }
}
