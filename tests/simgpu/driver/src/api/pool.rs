// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points about pools.
#![deny(unsafe_code)]

use simgpu_device::lock::lock;

use crate::abi::{AccessDescriptor, DevicePtr, Error, Handle, In, Location, Out, R};
use crate::context::current;
use crate::export::export;
use crate::graph::memory;
use crate::memory::pool::{self, CURRENT, POOLS};
use crate::memory::{free_on, owned};
use crate::state;
use crate::{device, stream};

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolProperties {
    kind: u32,
    handle_types: u32,
    location: Location,
    security: usize,
    limit: usize,
    usage: u16,
    reserved: [u8; 54],
}

fn allocate(out: Out<DevicePtr>, size: usize, pool: Option<Handle>, stream: Handle) -> R {
    let driver = state::driver()?;
    let stream = stream::resolve(driver, stream)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    if size == 0 {
        return out.set(0);
    }
    if stream.is_capturing() {
        return out.set(memory::capture_alloc(&stream, size as u64)?);
    }
    let pool = pool.unwrap_or_else(|| pool::current(stream.context.device()));
    out.set(pool::take(driver, pool, &stream, size as u64)?)
}

fn attribute(pool: Handle, attribute: u32, value: Out<u64>) -> R {
    let driver = state::driver()?;
    let pool = POOLS.get(pool)?;
    let mut inner = lock(&pool.inner);
    inner.settle(driver);
    match attribute {
        1..=3 => value.cast::<i32>().set(inner.reuse[attribute as usize - 1]),
        4 => value.set(inner.heap.keep),
        5 => value.set(inner.heap.reserved),
        6 => value.set(inner.reserved_high.max(inner.heap.reserved)),
        7 => value.set(inner.used),
        8 => value.set(inner.used_high),
        9 => value.cast::<u32>().set(1), // pinned
        10 => value.cast::<u32>().set(pool.handle_types),
        11 => value.cast::<i32>().set(i32::try_from(inner.heap.device).unwrap_or(0)),
        12 => value.cast::<u32>().set(Location::DEVICE),
        13 => value.set(inner.heap.limit),
        14 => value.cast::<i32>().set(0),
        _ => Err(Error::INVALID_VALUE),
    }
}

fn set_attribute(pool: Handle, attribute: u32, value: In<u64>) -> R {
    let driver = state::driver()?;
    let pool = POOLS.get(pool)?;
    let mut inner = lock(&pool.inner);
    match attribute {
        1..=3 => inner.reuse[attribute as usize - 1] = In::<i32>::from_address(value.address()).get()?,
        4 => {
            inner.heap.keep = value.get()?;
            inner.settle(driver);
            let keep = inner.heap.keep;
            inner.heap.trim(driver, keep);
        }
        // Only a reset to zero is allowed.
        6 if value.get()? == 0 => inner.reserved_high = inner.heap.reserved,
        8 if value.get()? == 0 => inner.used_high = inner.used,
        _ => return Err(Error::INVALID_VALUE),
    }
    Ok(())
}

fn on_device(location: In<Location>) -> R<usize> {
    let location = location.get()?;
    if location.kind == Location::DEVICE {
        device::check(location.id)
    } else {
        Err(Error::NOT_SUPPORTED)
    }
}

/// A pool serves its own device only.
fn make_current(device: usize, pool: Handle) -> R {
    if lock(&POOLS.get(pool)?.inner).heap.device != device {
        return Err(Error::INVALID_VALUE);
    }
    lock(&CURRENT).insert(device, pool);
    Ok(())
}

export! {
    fn cuMemAllocAsync(pointer: Out<DevicePtr>, size: usize, stream: Handle) {
        allocate(pointer, size, None, stream)
    }

    fn cuMemAllocFromPoolAsync(pointer: Out<DevicePtr>, size: usize, pool: Handle, stream: Handle) {
        POOLS.get(pool)?;
        allocate(pointer, size, Some(pool), stream)
    }

    fn cuMemFreeAsync(pointer: DevicePtr, stream: Handle) {
        let driver = state::driver()?;
        let stream = stream::resolve(driver, stream)?;
        if pointer == 0 {
            return Ok(());
        }
        if stream.is_capturing() {
            return memory::capture_free(&stream, pointer);
        }
        if owned::ends(pointer) {
            return Ok(());
        }
        free_on(driver, &stream, pointer)
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) {
        pool.set(pool::default(device::check(device)?))
    }

    fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) {
        pool.set(pool::current(device::check(device)?))
    }

    fn cuDeviceSetMemPool(device: i32, pool: Handle) {
        let device = device::check(device)?;
        make_current(device, pool)?;
        Ok(())
    }

    fn cuMemGetDefaultMemPool(pool: Out<Handle>, location: In<Location>, kind: u32) {
        let _ = kind;
        state::driver()?;
        pool.set(pool::default(on_device(location)?))
    }

    fn cuMemGetMemPool(pool: Out<Handle>, location: In<Location>, kind: u32) {
        let _ = kind;
        state::driver()?;
        pool.set(pool::current(on_device(location)?))
    }

    fn cuMemSetMemPool(location: In<Location>, kind: u32, pool: Handle) {
        let _ = kind;
        state::driver()?;
        make_current(on_device(location)?, pool)?;
        Ok(())
    }

    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<PoolProperties>) {
        state::driver()?;
        let asked = properties.get()?;
        if asked.kind != 1 || pool.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        if asked.location.kind != Location::DEVICE {
            return Err(Error::NOT_SUPPORTED);
        }
        let device = device::check(asked.location.id)?;
        pool.set(pool::create(device, asked.limit as u64, asked.handle_types))
    }

    fn cuMemPoolDestroy(pool: Handle) {
        let driver = state::driver()?;
        if pool::is_default(pool) {
            return Err(Error::INVALID_VALUE);
        }
        pool::destroy(driver, pool)
    }

    fn cuMemPoolTrimTo(pool: Handle, keep: usize) {
        let driver = state::driver()?;
        let pool = POOLS.get(pool)?;
        let mut inner = lock(&pool.inner);
        inner.settle(driver);
        inner.heap.trim(driver, keep as u64);
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: Handle, attribute_number: u32, value: Out<u64>) {
        attribute(pool, attribute_number, value)
    }

    fn cuMemPoolSetAttribute(pool: Handle, attribute_number: u32, value: In<u64>) {
        set_attribute(pool, attribute_number, value)
    }

    fn cuMemPoolSetAccess(pool: Handle, access: In<AccessDescriptor>, count: usize) {
        state::driver()?;
        POOLS.get(pool)?;
        for wanted in access.list(count)? {
            if wanted.location.kind == Location::DEVICE {
                device::check(wanted.location.id)?;
            }
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: Handle, location: In<Location>) {
        state::driver()?;
        POOLS.get(pool)?;
        let location = location.get()?;
        flags.set(if location.kind == Location::DEVICE { 3 } else { 0 })
    }

    fn cuMemPoolExportToShareableHandle(handle: Out<i32>, pool: Handle, kind: u32, flags: u64) {
        let _ = (handle, kind, flags);
        state::driver()?;
        POOLS.get(pool)?;
        Err(Error::NOT_SUPPORTED)
    }

    fn cuMemPoolImportFromShareableHandle(pool: Out<Handle>, handle: usize, kind: u32, flags: u64) {
        let _ = (pool, handle, kind, flags);
        state::driver()?;
        current::get()?;
        Err(Error::NOT_SUPPORTED)
    }
}
