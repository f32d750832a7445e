// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that matter only for jobs with movable memory: queries about it are answered as for plain
//! memory, further devices get access to it, and pools answer for their movable blocks too.
//!
//! A pool and its movable blocks each keep as much as its release threshold.

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;

use super::declare::{hooks, written};
use super::{mem_info, pools};
use crate::driver::abi::{CuContext, CuDevicePtr, CuResult, LOCATION_DEVICE, MemoryAccess};
use crate::driver::queries::here;
use crate::driver::{calls, capture};
use crate::internal_error::guarded;
use crate::movable::blocks::{self, BlockView};
use crate::movable::{self, kept};
use crate::report;

/// `CU_POINTER_ATTRIBUTE_CONTEXT`: it and the next ones differ between mapped and plain memory.
/// Neither mapped memory nor that of pools has a context.
const CONTEXT: u32 = 1;
/// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`.
const RANGE_START: u32 = 11;
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`.
const RANGE_SIZE: u32 = 12;

/// `CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE`.
const POOL: u32 = 17;

/// The answer for plain memory, if it differs.
fn instead(block: &BlockView, asked: u32) -> Option<u64> {
    match asked {
        CONTEXT => block.pool.is_none().then_some(block.context as u64),
        POOL => block.pool.map(|pool| pools::handle_of(pool).unwrap_or(0) as u64),
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

/// Adds a pool's movable blocks to the driver's figure.
///
/// # Safety
/// As `cuMemPoolGetAttribute`, which answered `result`.
unsafe fn add_blocks(result: CuResult, pool: usize, asked: u32, value: *mut u64) {
    let known = || kept::figures(pools::key_of(pool)?);
    let Some(blocks) = guarded(known).flatten().filter(|_| result.ok() && !value.is_null()) else {
        return;
    };
    // SAFETY: the driver wrote the attribute, which has 64 bits if it is one of these.
    let theirs = || unsafe { value.read_unaligned() };
    let figure = match asked {
        pools::RESERVED => theirs().saturating_add(blocks.reserved),
        pools::USED => theirs().saturating_add(blocks.used),
        pools::RESERVED_HIGH => theirs().max(blocks.reserved_high),
        pools::USED_HIGH => theirs().max(blocks.used_high),
        _ => return,
    };
    // SAFETY: as above.
    unsafe { value.write_unaligned(figure) };
}

/// Handles the success of a call that set an attribute of a pool.
fn attribute_set(pool: usize, asked: u32, value: Option<u64>) {
    let Some(key) = pools::key_of(pool) else { return };
    match asked {
        pools::THRESHOLD => kept::change(key, |blocks| blocks.threshold = value.unwrap_or(0)),
        // The peaks begin anew at the present figures.
        pools::RESERVED_HIGH => kept::change(key, |blocks| blocks.reserved_high = 0),
        pools::USED_HIGH => kept::change(key, |blocks| blocks.used_high = 0),
        _ => return,
    }
    pools::note_peaks(key);
}

/// Trims the movable blocks of a pool, and the driver's part as far as both exceed `keep` bytes.
fn trim_blocks(pool: usize, keep: u64) {
    let known = pools::key_of(pool).filter(|key| kept::figures(*key).is_some());
    let Some(key) = known.filter(|_| !capture::any()) else {
        return;
    };
    kept::trim(
        key,
        keep.saturating_sub(pools::asked(pool, pools::RESERVED).unwrap_or(0)),
    );
    let blocks = kept::figures(key).map_or(0, |blocks| blocks.reserved);
    let _ = pools::trim(pool, || {
        // SAFETY: the job has just trimmed this pool.
        unsafe { calls::cuMemPoolTrimTo(pool, keep.saturating_sub(blocks) as usize) }
    });
}

hooks! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |real| {
        guarded(|| kept::tidy(0));
        // SAFETY: the call's own out-parameters.
        unsafe { mem_info::answer(free, total, real) }
    }
    fn cuMemPoolGetAttribute(pool: usize, asked: u32, value: *mut u64) |real| {
        if asked == pools::RESERVED {
            guarded(|| kept::tidy(0));
        }
        let result = real();
        // SAFETY: the call's own arguments.
        unsafe { add_blocks(result, pool, asked, value) };
        result
    }
    fn cuMemPoolSetAttribute(pool: usize, asked: u32, value: *const u64) |real| {
        let result = pools::trim(pool, real);
        if result.ok() {
            // SAFETY: the driver read this attribute, which has 64 bits.
            let value = if asked == pools::THRESHOLD { unsafe { written(value) } } else { None };
            guarded(|| attribute_set(pool, asked, value));
        }
        result
    }
    fn cuMemPoolTrimTo(pool: usize, keep: usize) |real| {
        let result = pools::trim(pool, real);
        if result.ok() {
            guarded(|| trim_blocks(pool, keep as u64));
        }
        result
    }
    /// Memory that other devices use does not move.
    fn cuMemPoolSetAccess(pool: usize, access: *const MemoryAccess, count: usize) |real| {
        let result = real();
        if result.ok() && !access.is_null() {
            // SAFETY: the driver read that many.
            let opened = (0..count).map(|nth| unsafe { access.wrapping_add(nth).read() });
            let own = here().map(|(device, _)| device);
            for opened in opened.filter(|one| one.location.kind == LOCATION_DEVICE && Some(one.location.id) != own) {
                guarded(|| {
                    movable::shared();
                    if let Some(key) = pools::key_of(pool) {
                        blocks::pool_opened(opened.location.id, key);
                    }
                });
            }
        }
        result
    }
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
            pool: None,
        };
        assert_eq!(instead(&block, CONTEXT), Some(5));
        assert_eq!(instead(&block, RANGE_START), Some(0x1000));
        assert_eq!(instead(&block, RANGE_SIZE), Some(77), "not what it was rounded up to");
        assert_eq!((instead(&block, 2), instead(&block, POOL)), (None, None));
        let block = BlockView {
            pool: Some(kept::NO_POOL),
            ..block
        };
        assert_eq!((instead(&block, CONTEXT), instead(&block, POOL)), (None, Some(0)));
    }
}
