// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pinned and registered host memory. Its device address is its host address.
#![deny(unsafe_code)]

use crate::abi::{DevicePtr, Error, Out, R};
use crate::context::current;
use crate::export::export;
use crate::memory::alloc::pages;
use crate::memory::discard;
use crate::space::space;
use crate::space::table::{Allocation, AllocationKind, find, insert};
use crate::state;
use crate::stream::synchronize_context;

fn allocate(out: Out<usize>, size: usize, flags: u32) -> R {
    let context = current::get()?;
    if size == 0 || out.is_null() || flags & !7 != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let room = pages(size)?;
    let at = space()?.take_pinned(room)?;
    insert(context.owner(), at, size as u64, room, AllocationKind::Pinned(flags));
    out.set(at as usize)
}

fn register(pointer: usize, size: usize, flags: u32) -> R {
    let context = current::get()?;
    if pointer == 0 || size == 0 || flags & !15 != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let (start, end) = (pointer as u64, pointer as u64 + size as u64);
    if find(start).is_some() || find(end - 1).is_some() {
        return Err(Error::HOST_MEMORY_ALREADY_REGISTERED);
    }
    insert(
        context.owner(),
        start,
        size as u64,
        size as u64,
        AllocationKind::Registered(flags),
    );
    Ok(())
}

fn host(pointer: usize) -> R<Allocation> {
    let allocation = find(pointer as u64).ok_or(Error::INVALID_VALUE)?;
    match allocation.kind {
        AllocationKind::Pinned(_) | AllocationKind::Registered(_) | AllocationKind::Managed => Ok(allocation),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Waits for the context's work, which may still use the memory, and gives it back.
fn release(pointer: usize, wanted: fn(AllocationKind) -> bool, missing: Error) -> R {
    let driver = state::driver()?;
    let found = find(pointer as u64).filter(|found| found.start == pointer as u64 && wanted(found.kind));
    let found = found.ok_or(missing)?;
    if let Some(context) = crate::context::CONTEXTS.find(found.context_handle) {
        synchronize_context(driver, &context)?;
    }
    discard(driver, &found)
}

export! {
    fn cuMemAllocHost_v2(pointer: Out<usize>, size: usize) {
        allocate(pointer, size, 0)
    }

    fn cuMemHostAlloc(pointer: Out<usize>, size: usize, flags: u32) {
        allocate(pointer, size, flags)
    }

    fn cuMemFreeHost(pointer: usize) {
        if pointer == 0 {
            return Ok(());
        }
        release(pointer, |kind| matches!(kind, AllocationKind::Pinned(_)), Error::INVALID_VALUE)
    }

    fn cuMemHostRegister(pointer: usize, size: usize, flags: u32) {
        register(pointer, size, flags)
    }

    fn cuMemHostRegister_v2(pointer: usize, size: usize, flags: u32) {
        register(pointer, size, flags)
    }

    fn cuMemHostUnregister(pointer: usize) {
        release(pointer, |kind| matches!(kind, AllocationKind::Registered(_)), Error::HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<DevicePtr>, pointer: usize, flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        host(pointer)?;
        device.set(pointer as u64)
    }

    fn cuMemHostGetFlags(flags: Out<u32>, pointer: usize) {
        match host(pointer)?.kind {
            // Every allocation is reachable by the device: CU_MEMHOSTALLOC_DEVICEMAP.
            AllocationKind::Pinned(given) => flags.set(given | 2),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}
