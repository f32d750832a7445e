// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cuMemAlloc` and its siblings, freeing, and how much there is.
#![deny(unsafe_code)]

use crate::abi::{DevicePtr, Error, Out, R};
use crate::capture::rules;
use crate::context::current;
use crate::export::export;
use crate::memory::{free, take};
use crate::space::PAGE;
use crate::space::table::{AllocationKind, find};
use crate::state;

/// Rows of a pitched allocation begin at multiples of this, as on the A100.
const PITCH: usize = 512;

fn allocate(out: Out<DevicePtr>, size: usize, kind: AllocationKind) -> R {
    let context = current::get()?;
    rules::may_query()?;
    if size == 0 || out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(take(state::driver()?, &context, size as u64, kind)?)
}

export! {
    fn cuMemAlloc_v2(pointer: Out<DevicePtr>, size: usize) {
        allocate(pointer, size, AllocationKind::Device)
    }

    fn cuMemAllocManaged(pointer: Out<DevicePtr>, size: usize, flags: u32) {
        // CU_MEM_ATTACH_GLOBAL, HOST or SINGLE.
        if ![1, 2, 4].contains(&flags) {
            return Err(Error::INVALID_VALUE);
        }
        allocate(pointer, size, AllocationKind::Managed)
    }

    fn cuMemAllocPitch_v2(pointer: Out<DevicePtr>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        if width == 0 || height == 0 || ![4, 8, 16].contains(&element) {
            return Err(Error::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(Error::OUT_OF_MEMORY)?;
        allocate(pointer, row.checked_mul(height).ok_or(Error::OUT_OF_MEMORY)?, AllocationKind::Device)?;
        pitch.set(row)
    }

    fn cuMemFree_v2(pointer: DevicePtr) {
        rules::may_query()?;
        current::get()?;
        free(state::driver()?, pointer)
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let device = current::get()?.device();
        let (left, all) = state::driver()?.timeline.memory(device);
        free.set_if(left as usize);
        total.set_if(all as usize);
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: Out<DevicePtr>, size: Out<usize>, pointer: DevicePtr) {
        state::driver()?;
        let allocation = find(pointer).ok_or(Error::NOT_FOUND)?;
        base.set_if(allocation.start);
        size.set_if(allocation.size as usize);
        Ok(())
    }

    fn cuMemGetHandleForAddressRange(handle: Out<i32>, pointer: DevicePtr, size: usize, kind: u32, flags: u64) {
        let _ = (handle, pointer, size, kind, flags);
        state::driver()?;
        Err(Error::NOT_SUPPORTED)
    }
}

/// Bytes rounded up to whole pages.
pub(crate) fn pages(size: usize) -> R<u64> {
    (size as u64).checked_next_multiple_of(PAGE).ok_or(Error::OUT_OF_MEMORY)
}
