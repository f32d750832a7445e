// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory as shown to a job with a quota.
//!
//! Only for jobs without managed memory; for the others see [`super::managed_memory`].

use super::declare::hooks;
use super::pools;
use crate::driver::abi::CuResult;
use crate::throttle;

/// Replaces the driver's numbers by the job's view, if they differ.
///
/// # Safety
/// The out-parameters of a `cuMemGetInfo` that answered `result`.
pub(super) unsafe fn tell(result: CuResult, free: *mut usize, total: *mut usize) {
    if !result.ok() || free.is_null() || total.is_null() {
        return;
    }
    // SAFETY: the driver wrote both.
    let said_free = unsafe { free.read() };
    // SAFETY: as above.
    let said_total = unsafe { total.read() };
    if let Some((seen, of)) = throttle::memory_view(said_free as u64, said_total as u64) {
        // SAFETY: as above.
        unsafe { free.write(seen as usize) };
        // SAFETY: as above.
        unsafe { total.write(of as usize) };
    }
}

/// Makes the call, with the job's view as its answer.
///
/// # Safety
/// The arguments are those of `real`.
pub(super) unsafe fn answer(free: *mut usize, total: *mut usize, real: impl FnOnce() -> CuResult) -> CuResult {
    pools::synced();
    let result = real();
    // SAFETY: the call's own out-parameters.
    unsafe { tell(result, free, total) };
    result
}

hooks! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |real| {
        // SAFETY: the call's own out-parameters.
        unsafe { answer(free, total, real) }
    }
}
