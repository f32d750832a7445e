// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that matter only for jobs with movable memory: queries about it are answered as for plain
//! memory, and further devices get access to it.

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;

use super::declare::hooks;
use crate::driver::abi::{CuContext, CuDevicePtr, CuResult};
use crate::driver::queries::here;
use crate::internal_error::guarded;
use crate::movable::blocks::{self, BlockView};
use crate::report;

/// `CU_POINTER_ATTRIBUTE_CONTEXT`: it and the next two differ between mapped and plain memory.
const CONTEXT: u32 = 1;
/// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`.
const RANGE_START: u32 = 11;
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`.
const RANGE_SIZE: u32 = 12;

/// The answer for plain memory, if it differs.
fn instead(block: &BlockView, asked: u32) -> Option<u64> {
    match asked {
        CONTEXT => Some(block.context as u64),
        RANGE_START => Some(block.start),
        RANGE_SIZE => Some(block.bytes),
        _ => None,
    }
}

/// # Safety
/// `data` is null, or has room for this attribute.
unsafe fn put(data: *mut c_void, asked: u32, block: &BlockView) {
    if let (false, Some(word)) = (data.is_null(), instead(block, asked)) {
        // SAFETY: the caller's promise; these attributes are words.
        unsafe { data.cast::<u64>().write_unaligned(word) };
    }
}

fn block(result: CuResult, at: CuDevicePtr) -> Option<BlockView> {
    if result.ok() {
        guarded(|| blocks::of(at)).flatten()
    } else {
        None
    }
}

hooks! {
    fn cuPointerGetAttribute(data: *mut c_void, asked: u32, at: CuDevicePtr) |real| {
        let result = real();
        if let Some(block) = block(result, at) {
            // SAFETY: the call's own arguments.
            unsafe { put(data, asked, &block) };
        }
        result
    }
    fn cuPointerGetAttributes(count: u32, asked: *const u32, data: *const *mut c_void, at: CuDevicePtr) |real| {
        let result = real();
        if let Some(block) = block(result, at) && !asked.is_null() && !data.is_null() {
            for nth in 0..count as usize {
                // SAFETY: the arrays have as many entries as the call's count.
                let asked = unsafe { asked.wrapping_add(nth).read() };
                // SAFETY: as above.
                let data = unsafe { data.wrapping_add(nth).read() };
                // SAFETY: the driver wrote this attribute there.
                unsafe { put(data, asked, &block) };
            }
        }
        result
    }
    fn cuMemGetAddressRange_v2(start: *mut CuDevicePtr, bytes: *mut usize, at: CuDevicePtr) |real| {
        let result = real();
        if let Some(block) = block(result, at) {
            if !start.is_null() {
                // SAFETY: the call's own out-parameter.
                unsafe { start.write(block.start) };
            }
            if !bytes.is_null() {
                // SAFETY: as above.
                unsafe { bytes.write(block.bytes as usize) };
            }
        }
        result
    }
    /// The driver itself refuses mapped memory.
    fn cuIpcGetMemHandle(handle: *mut c_void, at: CuDevicePtr) |real| {
        static SAID: AtomicBool = AtomicBool::new(false);
        let result = real();
        if !result.ok() && guarded(|| blocks::of(at)).flatten().is_some() {
            report::once(
                &SAID,
                "this job's memory is movable and cannot be shared with other processes: run it with --backing device",
            );
        }
        result
    }
    fn cuCtxEnablePeerAccess(peer: CuContext, flags: u32) |real| {
        let result = real();
        if result.ok() {
            guarded(|| {
                if let Some((device, _)) = here() {
                    blocks::peer_enabled(device, peer);
                }
            });
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_from_plain_memory_is_answered_by_weft() {
        let block = BlockView {
            start: 0x1000,
            bytes: 77,
            room: 0x1000,
            context: 5,
        };
        assert_eq!(instead(&block, CONTEXT), Some(5));
        assert_eq!(instead(&block, RANGE_START), Some(0x1000));
        assert_eq!(instead(&block, RANGE_SIZE), Some(77), "not what it was rounded up to");
        assert_eq!(instead(&block, 2), None);
    }
}
