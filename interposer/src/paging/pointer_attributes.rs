// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pointer attributes and sizes as for device memory: the driver's own answers, corrected if
//! managed memory differs.

use std::ffi::c_void;

use super::ranges::{ManagedRange, Origin};
use super::{capacity, ranges};
use crate::driver::abi::{CuDevicePtr, CuResult, MEMORY_DEVICE};

/// `CUpointer_attribute`s that differ between managed and device memory.
mod attribute {
    /// CU_POINTER_ATTRIBUTE_CONTEXT.
    pub const CONTEXT: u32 = 1;
    /// CU_POINTER_ATTRIBUTE_MEMORY_TYPE.
    pub const MEMORY_TYPE: u32 = 2;
    /// CU_POINTER_ATTRIBUTE_HOST_POINTER.
    pub const HOST_POINTER: u32 = 4;
    /// CU_POINTER_ATTRIBUTE_IS_MANAGED.
    pub const IS_MANAGED: u32 = 8;
    /// CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE. At 0 libraries treat the memory as mapped
    /// memory and look for its handle. NCCL 2.30 then fails even with one rank, because PyTorch
    /// registers its allocations (client `managed-nccl`). At 1 a library that needs an IPC handle
    /// fails; at 0 UCX would run without a handle.
    pub const LEGACY_IPC: u32 = 10;
    /// CU_POINTER_ATTRIBUTE_RANGE_SIZE.
    pub const RANGE_SIZE: u32 = 12;
    /// CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE.
    pub const POOL: u32 = 17;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instead {
    HalfWord(u32),
    Word(u64),
    /// No such attribute: zero, and an error for the single query.
    None,
}

fn instead(range: &ManagedRange, asked: u32, pool: impl Fn(i32) -> usize) -> Option<Instead> {
    let pooled = matches!(range.origin, Origin::Pool(_));
    match asked {
        attribute::CONTEXT if pooled => Some(Instead::Word(0)),
        attribute::MEMORY_TYPE => Some(Instead::HalfWord(MEMORY_DEVICE)),
        attribute::HOST_POINTER => Some(Instead::None),
        attribute::IS_MANAGED => Some(Instead::HalfWord(0)),
        attribute::LEGACY_IPC => Some(Instead::HalfWord(u32::from(!pooled))),
        attribute::RANGE_SIZE => Some(Instead::Word(range.bytes)),
        attribute::POOL => Some(Instead::Word(match range.origin {
            Origin::Plain => 0,
            Origin::Pool(0) => pool(range.device) as u64,
            Origin::Pool(pool) => pool as u64,
        })),
        _ => None,
    }
}

/// # Safety
/// `data` has room for the attribute that is written.
unsafe fn put(data: *mut c_void, instead: Instead) -> CuResult {
    match instead {
        // SAFETY: the caller's promise.
        Instead::HalfWord(value) => unsafe { data.cast::<u32>().write_unaligned(value) },
        // SAFETY: the caller's promise.
        Instead::Word(value) => unsafe { data.cast::<u64>().write_unaligned(value) },
        Instead::None => {
            // SAFETY: the caller's promise.
            unsafe { data.cast::<u64>().write_unaligned(0) };
            return CuResult::INVALID_VALUE;
        }
    }
    CuResult::SUCCESS
}

/// Corrects the answer of `cuPointerGetAttribute`.
///
/// # Safety
/// The arguments are those of the call; `result` is the driver's.
pub unsafe fn one(
    result: CuResult,
    data: *mut c_void,
    asked: u32,
    at: CuDevicePtr,
    pool: impl Fn(i32) -> usize,
) -> CuResult {
    if !result.ok() || data.is_null() {
        return result;
    }
    match ranges::of(at).and_then(|(_, range)| instead(&range, asked, pool)) {
        // SAFETY: the caller's promise.
        Some(instead) => unsafe { put(data, instead) },
        None => result,
    }
}

/// Corrects the answers of `cuPointerGetAttributes`.
///
/// # Safety
/// As [`one`].
pub unsafe fn several(
    result: CuResult,
    count: u32,
    asked: *const u32,
    data: *const *mut c_void,
    at: CuDevicePtr,
    pool: impl Fn(i32) -> usize,
) {
    if !result.ok() || asked.is_null() || data.is_null() {
        return;
    }
    let Some((_, range)) = ranges::of(at) else { return };
    for nth in 0..count as usize {
        // SAFETY: the arrays have as many entries as the call's count.
        let asked = unsafe { asked.wrapping_add(nth).read() };
        // SAFETY: as above.
        let data = unsafe { data.wrapping_add(nth).read() };
        if let (false, Some(instead)) = (data.is_null(), instead(&range, asked, &pool)) {
            // SAFETY: the driver wrote this attribute there. A list fails for no single attribute.
            let _ = unsafe { put(data, instead) };
        }
    }
}

/// Free bytes of a device for this job. `None` if its memory is not managed there.
pub fn free(device: i32, plain: u64) -> Option<u64> {
    capacity::is_known(device).then(|| {
        capacity::limit(device)
            .saturating_sub(capacity::taken(device))
            .saturating_sub(plain)
    })
}

/// Size of a device of `total` bytes for this job, at least its capacity: programs compute parts of
/// this size.
pub fn size(device: i32, total: u64) -> u64 {
    total.max(capacity::limit(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(origin: Origin) -> ManagedRange {
        ManagedRange {
            bytes: 1000,
            room: 1024,
            origin,
            context: 7,
            device: 0,
        }
    }

    #[test]
    fn managed_memory_passes_for_what_was_asked_for() {
        let plain = range(Origin::Plain);
        let say = |range: &ManagedRange, asked| instead(range, asked, |_| 99);
        assert_eq!(say(&plain, attribute::MEMORY_TYPE), Some(Instead::HalfWord(2)));
        assert_eq!(say(&plain, attribute::IS_MANAGED), Some(Instead::HalfWord(0)));
        assert_eq!(say(&plain, attribute::LEGACY_IPC), Some(Instead::HalfWord(1)));
        assert_eq!(say(&plain, attribute::CONTEXT), None);
        assert_eq!(say(&plain, attribute::POOL), Some(Instead::Word(0)));
        assert_eq!(say(&plain, 11), None, "the range's start is the driver's to say");
        let pooled = range(Origin::Pool(0));
        assert_eq!(say(&pooled, attribute::POOL), Some(Instead::Word(99)));
        assert_eq!(say(&pooled, attribute::CONTEXT), Some(Instead::Word(0)));
        assert_eq!(say(&pooled, attribute::RANGE_SIZE), Some(Instead::Word(1000)));
        assert_eq!(say(&range(Origin::Pool(5)), attribute::POOL), Some(Instead::Word(5)));
    }

    #[test]
    fn a_query_of_none_of_ours_stands() {
        let mut data = 77u32;
        let to = (&raw mut data).cast::<c_void>();
        // SAFETY: the data has room for an int.
        let result = unsafe { one(CuResult::SUCCESS, to, attribute::MEMORY_TYPE, 0x10, |_| 0) };
        assert_eq!((result, data), (CuResult::SUCCESS, 77));
        ranges::add(0x4000_0000_0000, range(Origin::Plain));
        // SAFETY: as above.
        let result = unsafe { one(CuResult::SUCCESS, to, attribute::MEMORY_TYPE, 0x4000_0000_0010, |_| 0) };
        assert_eq!((result, data), (CuResult::SUCCESS, 2));
        ranges::remove(0x4000_0000_0000);
    }
}
