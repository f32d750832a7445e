// SPDX-License-Identifier: MIT OR Apache-2.0
//! Takes managed memory when the job asks for device memory, and gives it back.
//!
//! `cuMemAllocManaged` replaces `cuMemAlloc`, call for call, with equal rules for contexts. During
//! captures no further call (query, advice) is made.
//!
//! Freeing managed memory waits for the whole context. Before CUDA 13 the driver cannot allocate it
//! in stream order. So blocks freed in stream order are kept for reuse ([`super::pool`]).

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use weft_protocol::amount::MemoryNeed;
use weft_protocol::host;

use weft_protocol::control::ToBroker;

use super::ranges::{ManagedRange, Origin};
use super::{capacity, mem_advise, pool, ranges};
use crate::driver::abi::{CuDevicePtr, CuResult, CuStream};
use crate::driver::queries::here;
use crate::driver::{calls, capture, stream_order};
use crate::report;

/// CU_MEM_ATTACH_GLOBAL: for all streams and devices.
const ATTACH_GLOBAL: u32 = 1;
/// CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: pages move on demand, beyond the device's size.
const CONCURRENT_MANAGED_ACCESS: i32 = 89;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagedOutcome {
    At(CuDevicePtr),
    Refused(CuResult),
    /// Stays device memory: the job's own call goes to the driver.
    Plain,
}

/// Support by device: 0 unknown, else one of these.
static SUPPORT: [AtomicU8; 32] = [const { AtomicU8::new(0) }; 32];
const SUPPORTED: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// Whether a device can back managed memory as weft needs it. One query per device.
pub fn supported(device: i32) -> bool {
    let Some(known) = usize::try_from(device).ok().and_then(|at| SUPPORT.get(at)) else {
        return false;
    };
    match known.load(Ordering::Acquire) {
        SUPPORTED => return true,
        UNSUPPORTED => return false,
        _ => {}
    }
    if capture::any() {
        return false;
    }
    let (mut concurrent, mut total) = (0, 0usize);
    // SAFETY: valid out-parameter.
    let asked = unsafe { calls::cuDeviceGetAttribute(&mut concurrent, CONCURRENT_MANAGED_ACCESS, device) };
    // SAFETY: valid out-parameter.
    let sized = unsafe { calls::cuDeviceTotalMem_v2(&mut total, device) };
    let fine = asked.ok() && concurrent == 1 && sized.ok() && total > 0;
    if fine {
        // The settings reported an invalid value.
        let said = std::env::var("WEFT_MEMORY").ok();
        let said = said.and_then(|text| Some(text.parse::<MemoryNeed>().ok()?.request));
        let larger = said.is_some_and(|said| said > capacity::of_total(total as u64));
        let spare = if larger { host::available() } else { 0 };
        capacity::set_limit(device, total as u64, said, spare);
    }
    known.store(if fine { SUPPORTED } else { UNSUPPORTED }, Ordering::Release);
    fine
}

/// Whether auto backing may choose managed memory on a device of this name: only if
/// oversubscription was tested there. On some real drivers jobs hang for good in the kernel module
/// (NVIDIA/open-gpu-kernel-modules, 1223 and others). An explicit request is granted anyway.
pub fn tried(name: &str) -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    let tried = TRIED.iter().any(|part| name.contains(part));
    if !tried {
        report::once(
            &SAID,
            "WEFT_BACKING=auto uses device memory on this device: managed memory larger than a device was tried only on the simulated one (set managed to use it)",
        );
    }
    tried
}

const TRIED: [&str; 1] = ["(simulated)"];

pub fn take(bytes: u64, origin: Origin) -> ManagedOutcome {
    static NO_DEVICE: AtomicBool = AtomicBool::new(false);
    static NO_DRIVER: AtomicBool = AtomicBool::new(false);
    if bytes == 0 {
        return ManagedOutcome::Plain;
    }
    // The driver's own error is right.
    let Some((device, context)) = here() else {
        return ManagedOutcome::Plain;
    };
    if !supported(device) {
        capacity::stays_plain(
            &NO_DEVICE,
            "this device has no concurrent managed access: the job's memory stays device memory",
        );
        return ManagedOutcome::Plain;
    }
    // Kept blocks are freed before the job is refused.
    let booked = capacity::take(device, bytes) || (pool::trim(device) && capacity::take(device, bytes));
    if !booked {
        return ManagedOutcome::Refused(CuResult::OUT_OF_MEMORY);
    }
    // Kept blocks may use only the rest of the capacity.
    if capacity::taken(device).saturating_add(pool::kept(device)) > capacity::limit(device) {
        pool::trim(device);
    }
    let result = match managed(bytes) {
        Err(CuResult::OUT_OF_MEMORY) if pool::trim(device) => managed(bytes),
        result => result,
    };
    match result {
        Ok(at) => {
            let range = ManagedRange {
                bytes,
                room: bytes,
                origin,
                context,
                device,
            };
            mem_advise::forget(at, bytes);
            ranges::add(at, range);
            capacity::send(ToBroker::Backed { start: at, bytes });
            mem_advise::prefer(at, bytes, device);
            ManagedOutcome::At(at)
        }
        Err(CuResult::OUT_OF_MEMORY) => {
            capacity::give_back(device, bytes);
            ManagedOutcome::Refused(CuResult::OUT_OF_MEMORY)
        }
        Err(error) => {
            capacity::give_back(device, bytes);
            capacity::stays_plain(
                &NO_DRIVER,
                &format!(
                    "the driver does not provide managed memory (error {}): this allocation stays device memory",
                    error.0
                ),
            );
            ManagedOutcome::Plain
        }
    }
}

fn managed(bytes: u64) -> Result<CuDevicePtr, CuResult> {
    let Ok(bytes) = usize::try_from(bytes) else {
        return Err(CuResult::OUT_OF_MEMORY);
    };
    let mut at = 0;
    // SAFETY: valid out-parameter.
    let result = unsafe { calls::cuMemAllocManaged(&mut at, bytes, ATTACH_GLOBAL) };
    if result.ok() { Ok(at) } else { Err(result) }
}

/// Gives a range back by `free`, the job's own driver call.
pub fn give_back(at: CuDevicePtr, free: impl FnOnce() -> CuResult) -> CuResult {
    // Before the call: after it another thread may get this address.
    let Some(range) = ranges::remove(at) else {
        return free();
    };
    pool::count_freed(&range);
    let result = free();
    if result.ok() {
        capacity::give_back(range.device, range.room);
        capacity::send(ToBroker::Unbacked { start: at });
    } else {
        ranges::add(at, range);
        pool::count_taken(&range);
    }
    result
}

/// Takes memory in stream order. `pool` 0 is the device's own.
pub fn take_ordered(bytes: u64, pool: usize, stream: CuStream) -> ManagedOutcome {
    if bytes == 0 || pool::is_foreign(pool) {
        return ManagedOutcome::Plain;
    }
    let origin = Origin::Pool(pool);
    if let Some((at, kept)) = pool::reuse(bytes, stream) {
        let range = ManagedRange { bytes, origin, ..kept };
        // Fails only if another thread took the capacity.
        if capacity::take(range.device, range.room) {
            ranges::add(at, range);
            pool::count_taken(&range);
            return ManagedOutcome::At(at);
        }
        // SAFETY: no other code holds the block.
        let _ = unsafe { calls::cuMemFree_v2(at) };
        capacity::send(ToBroker::Unbacked { start: at });
        return ManagedOutcome::Refused(CuResult::OUT_OF_MEMORY);
    }
    let outcome = take(bytes, origin);
    if let ManagedOutcome::At(at) = outcome
        && let Some(range) = ranges::at(at)
    {
        pool::count_taken(&range);
    }
    outcome
}

/// Frees memory in stream order. `None` if weft does not hold it.
pub fn give_back_ordered(at: CuDevicePtr, stream: CuStream) -> Option<CuResult> {
    ranges::at(at)?;
    let mark = match stream_order::mark(stream) {
        Ok(mark) => mark,
        // An invalid stream: the job keeps its memory.
        Err(error) => return Some(error),
    };
    // A double free, with the driver's answer.
    let Some(range) = ranges::remove(at) else {
        return Some(CuResult::INVALID_VALUE);
    };
    pool::count_freed(&range);
    capacity::give_back(range.device, range.room);
    capacity::send(ToBroker::Resting { start: at });
    pool::keep(at, range, stream, mark);
    Some(CuResult::SUCCESS)
}

/// Row alignment of pitched memory, learnt from one small allocation; 0 = unknown.
static PITCH: AtomicU64 = AtomicU64::new(0);

/// The driver's pitch for rows of `width` bytes, if the driver returns one.
pub fn pitch(width: u64, element: u32) -> Option<u64> {
    let mut unit = PITCH.load(Ordering::Relaxed);
    if unit == 0 {
        let (mut at, mut pitch) = (0, 0usize);
        // SAFETY: valid out-parameters.
        if !unsafe { calls::cuMemAllocPitch_v2(&mut at, &mut pitch, 1, 1, element) }.ok() {
            return None;
        }
        // SAFETY: just taken, never used.
        let _ = unsafe { calls::cuMemFree_v2(at) };
        unit = pitch as u64;
        if !unit.is_power_of_two() {
            return None;
        }
        PITCH.store(unit, Ordering::Relaxed);
    }
    width.checked_next_multiple_of(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_open_stays_device_memory_on_drivers_that_were_not_tried() {
        assert!(tried("NVIDIA A100-SXM4-40GB (simulated)"));
        assert!(!tried("NVIDIA H200") && !tried(""));
    }
}
