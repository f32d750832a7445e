// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that matter only for jobs on managed memory: the job's queries about its memory, and calls
//! that make memory that cannot be managed.
//!
//! After a job's backing is decided as device memory, it no longer has these hooks.

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;

use super::declare::{hooks, written};
use super::{mem_info, pools};
use crate::driver::abi::{CuDevice, CuDevicePtr, CuResult, LOCATION_DEVICE, PoolProperties};
use crate::driver::calls;
use crate::driver::queries::here;
use crate::paging::{self, backing, pointer_attributes, pool, ranges};
use crate::report;

/// The default pool of a device's stream-ordered allocations; 0 if the driver does not return it.
pub fn current_pool(device: CuDevice) -> usize {
    let mut pool = 0;
    // SAFETY: the out-parameter is valid.
    if unsafe { calls::cuDeviceGetMemPool(&mut pool, device) }.ok() {
        pool
    } else {
        0
    }
}

/// # Safety
/// As `cuMemPoolGetAttribute`, which answered `result`.
unsafe fn add_used(result: CuResult, pool_handle: usize, asked: u32, value: *mut u64) {
    if !result.ok() || value.is_null() {
        return;
    }
    let mut used = pool::used(pool_handle);
    if let Some((device, _)) = here()
        && current_pool(device) == pool_handle
    {
        let own = pool::used(0);
        used.now += own.now;
        used.high += own.high;
    }
    let ours = match asked {
        pools::RESERVED | pools::USED => used.now,
        pools::RESERVED_HIGH | pools::USED_HIGH => used.high,
        _ => return,
    };
    // SAFETY: the driver wrote a number of this size there.
    let theirs = unsafe { value.read_unaligned() };
    // SAFETY: as above.
    unsafe { value.write_unaligned(theirs.saturating_add(ours)) };
}

hooks! {
    fn cuPointerGetAttribute(data: *mut c_void, asked: u32, at: CuDevicePtr) |real| {
        // SAFETY: the call's own arguments.
        unsafe { pointer_attributes::one(real(), data, asked, at, current_pool) }
    }
    fn cuPointerGetAttributes(count: u32, asked: *const u32, data: *const *mut c_void, at: CuDevicePtr) |real| {
        let result = real();
        // SAFETY: the call's own arguments.
        unsafe { pointer_attributes::several(result, count, asked, data, at, current_pool) };
        result
    }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |real| {
        pools::synced();
        let result = real();
        if !paging::settled() {
            // SAFETY: the call's own out-parameters.
            unsafe { mem_info::tell(result, free, total) };
            return result;
        }
        if result.ok()
            && !free.is_null()
            && let Some((device, _)) = here()
            && backing::supported(device)
            && let Some(left) = pointer_attributes::free(device, super::allocation::plain())
        {
            // SAFETY: the driver wrote it.
            unsafe { free.write(left as usize) };
            if !total.is_null() {
                // SAFETY: the driver wrote it.
                let of = unsafe { total.read() } as u64;
                // SAFETY: as above.
                unsafe { total.write(pointer_attributes::size(device, of) as usize) };
            }
        }
        result
    }
    fn cuMemGetAddressRange_v2(start: *mut CuDevicePtr, bytes: *mut usize, at: CuDevicePtr) |real| {
        let result = real();
        if result.ok()
            && !bytes.is_null()
            && let Some((_, range)) = ranges::of(at)
        {
            // SAFETY: the driver wrote it.
            unsafe { bytes.write(range.bytes as usize) };
        }
        result
    }
    /// The driver itself refuses managed memory.
    fn cuIpcGetMemHandle(handle: *mut c_void, at: CuDevicePtr) |real| {
        static SAID: AtomicBool = AtomicBool::new(false);
        let result = real();
        if !result.ok() && ranges::of(at).is_some() {
            report::once(
                &SAID,
                "this job's memory is managed and cannot be shared with other processes: run it with --backing device",
            );
        }
        result
    }
    fn cuMemPoolCreate(pool_handle: *mut usize, properties: *const PoolProperties) |real| {
        // SAFETY: the call's own arguments.
        let result = unsafe { pools::create(pool_handle, properties, real) };
        if result.ok() {
            // SAFETY: the driver read the properties.
            let properties = unsafe { written(properties) }.map(|properties| properties.head);
            // SAFETY: the driver wrote the handle.
            let made = unsafe { written(pool_handle.cast_const()) };
            if let (Some(properties), Some(made)) = (properties, made)
                && let [_, handle_types] = properties.types
                && (handle_types != 0 || properties.location_kind != LOCATION_DEVICE)
            {
                pool::foreign(made);
            }
        }
        result
    }
    fn cuMemPoolDestroy(pool_handle: usize) |real| {
        let result = pools::destroy(pool_handle, real);
        if result.ok() {
            pool::ended(pool_handle);
        }
        result
    }
    fn cuMemPoolTrimTo(pool_handle: usize, keep: usize) |real| {
        let result = pools::trim(pool_handle, real);
        if result.ok() && let Some((device, _)) = here() {
            pool::trim(device);
        }
        result
    }
    fn cuMemPoolGetAttribute(pool_handle: usize, asked: u32, value: *mut u64) |real| {
        let result = real();
        // SAFETY: the call's own arguments.
        unsafe { add_used(result, pool_handle, asked, value) };
        result
    }
    fn cuMemPoolSetAttribute(pool_handle: usize, asked: u32, value: *const u64) |real| {
        let result = pools::trim(pool_handle, real);
        if result.ok() && matches!(asked, pools::RESERVED_HIGH | pools::USED_HIGH) {
            pool::reset_high(pool_handle);
            pool::reset_high(0);
        }
        result
    }
}
