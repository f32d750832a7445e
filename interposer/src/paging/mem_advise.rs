// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advice and prefetches: the calls that place managed memory.
//!
//! The driver copies *read-mostly* memory instead of moving it: a prefetch leaves the other side's
//! copy valid. Ending the advice leaves one copy, at the preferred location if there is one there,
//! and frees the device without a transfer. So:
//!
//! * Memory that becomes mostly read prefers the host, which has no effect while the advice holds.
//! * Before memory leaves, the advice ends, which drops the device's copies of memory that the host
//!   has. A prefetch to the host moves the rest. Then the advice is given again; given earlier, it
//!   would turn the prefetch into a copy.
//! * Memory that is written again first prefers the device, whose copy then remains.
//!
//! If a step fails, memory is elsewhere or is copied once more.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_protocol::control::GRANULE;

use crate::driver::abi::{CuDevice, CuDevicePtr, CuResult, CuStream, Location};
use crate::driver::{calls, capture};

/// CU_MEM_ADVISE_SET_READ_MOSTLY.
const READ_MOSTLY: u32 = 1;
/// CU_MEM_ADVISE_UNSET_READ_MOSTLY.
const NOT_READ_MOSTLY: u32 = 2;
/// CU_MEM_ADVISE_SET_PREFERRED_LOCATION.
const PREFER: u32 = 3;
/// CU_DEVICE_CPU.
const HOST: CuDevice = -1;

/// Memory under the advice: starts of the granules' parts of allocations.
static ADVISED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Memory to be advised as mostly read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepeatedAdvice {
    start: u64,
    bytes: u64,
    device: CuDevice,
}

fn locked() -> MutexGuard<'static, BTreeSet<u64>> {
    // No code under the lock can leave the set half changed.
    ADVISED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parts(start: u64, bytes: u64) -> impl Iterator<Item = u64> {
    let later = (start / GRANULE + 1..).map(|granule| granule * GRANULE);
    let end = start.saturating_add(bytes);
    std::iter::once(start).chain(later).take_while(move |part| *part < end)
}

fn keep(start: u64, bytes: u64, on: bool) {
    let mut advised = locked();
    for part in parts(start, bytes) {
        if on {
            advised.insert(part);
        } else {
            advised.remove(&part);
        }
    }
    COUNT.store(advised.len(), Ordering::Release);
}

/// Advised runs of a range.
fn runs(start: u64, bytes: u64) -> Vec<(u64, u64)> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Vec::new();
    }
    let advised = locked();
    let end = start.saturating_add(bytes);
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for part in parts(start, bytes).filter(|part| advised.contains(part)) {
        let to = ((part / GRANULE + 1) * GRANULE).min(end);
        match runs.last_mut() {
            Some(last) if last.0 + last.1 == part => last.1 = to - last.0,
            _ => runs.push((part, to - part)),
        }
    }
    runs
}

fn advise(at: CuDevicePtr, bytes: u64, advice: u32, device: CuDevice) -> CuResult {
    // SAFETY: a range that the job holds; else the driver returns an error.
    unsafe { calls::cuMemAdvise(at, bytes as usize, advice, device) }
}

/// Prefers the device as a range's location. A hint.
pub fn prefer(at: CuDevicePtr, bytes: u64, device: CuDevice) {
    if !capture::any() {
        let _ = advise(at, bytes, PREFER, device);
    }
}

/// Moves a range to a device or the host.
pub fn prefetch(start: u64, bytes: u64, device: Option<CuDevice>, stream: CuStream) -> CuResult {
    let to = device.map_or(Location::HOST, Location::device);
    // SAFETY: a range that the job holds; else the driver returns an error.
    match unsafe { calls::cuMemPrefetchAsync_v2(start, bytes as usize, to, 0, stream) } {
        // SAFETY: as above.
        CuResult::NOT_FOUND => unsafe {
            calls::cuMemPrefetchAsync(start, bytes as usize, device.unwrap_or(HOST), stream)
        },
        result => result,
    }
}

/// Forgets the advice for fresh memory.
pub fn forget(start: u64, bytes: u64) {
    if COUNT.load(Ordering::Acquire) > 0 {
        keep(start, bytes, false);
    }
}

pub fn mostly_read(start: u64, bytes: u64, device: CuDevice) -> CuResult {
    let result = advise(start, bytes, READ_MOSTLY, device);
    if result.ok() {
        // If this fails, memory that leaves is copied.
        let _ = advise(start, bytes, PREFER, HOST);
        keep(start, bytes, true);
    }
    result
}

/// Ends the advice for a range that is written: the device's copy counts.
pub fn end_mostly_read(start: u64, bytes: u64, device: CuDevice) -> CuResult {
    keep(start, bytes, false);
    // If this fails, the range is copied to the device once more.
    let _ = advise(start, bytes, PREFER, device);
    advise(start, bytes, NOT_READ_MOSTLY, device)
}

/// Ends the advice for a range that leaves the device. Returns the advice to repeat after the
/// prefetch.
pub fn end_before_leaving(start: u64, bytes: u64, device: CuDevice) -> Vec<RepeatedAdvice> {
    let mut again = Vec::new();
    for (start, bytes) in runs(start, bytes) {
        if advise(start, bytes, NOT_READ_MOSTLY, device).ok() {
            keep(start, bytes, false);
            again.push(RepeatedAdvice { start, bytes, device });
        }
    }
    again
}

/// Gives the advice again. The driver refuses it for memory that the job no longer holds.
pub fn advise_again(again: Vec<RepeatedAdvice>) {
    for RepeatedAdvice { start, bytes, device } in again {
        let _ = mostly_read(start, bytes, device);
    }
}

/// Removes a range that is no longer mostly read.
pub fn exclude(again: &mut Vec<RepeatedAdvice>, start: u64, bytes: u64) {
    let end = start.saturating_add(bytes);
    again.retain(|one| one.start >= end || one.start.saturating_add(one.bytes) <= start);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_advised_is_known_by_granules_of_each_allocation() {
        let base = 0x7100_0000_0000;
        // The second begins in the first's last granule.
        let (first, second) = (base + 4096, base + 2 * GRANULE + 8192);
        keep(first, 2 * GRANULE, true);
        assert_eq!(runs(first, 2 * GRANULE), [(first, 2 * GRANULE)]);
        assert_eq!(runs(second, 4096), [], "another allocation in the same granule");
        assert_eq!(runs(base + GRANULE, GRANULE), [(base + GRANULE, GRANULE)]);
        keep(base + GRANULE, GRANULE, false);
        let last = (base + 2 * GRANULE, 4096);
        assert_eq!(runs(first, 2 * GRANULE), [(first, GRANULE - 4096), last]);
        let mut again = vec![RepeatedAdvice {
            start: last.0,
            bytes: last.1,
            device: 0,
        }];
        exclude(&mut again, base, 2 * GRANULE);
        assert_eq!(again.len(), 1);
        exclude(&mut again, last.0 + 1, 1);
        assert_eq!(again, []);
        forget(first, 2 * GRANULE);
        assert_eq!((runs(first, 2 * GRANULE), COUNT.load(Ordering::Relaxed)), (vec![], 0));
    }
}
