//! Memory that is mostly read: how the driver is told, and how such memory leaves the device.
//!
//! Of memory advised as mostly read the driver makes copies where it would move: a prefetch to the
//! device leaves the host's copy good, which is what the advice is for, and a prefetch to the host
//! leaves the device's copy, and its room, where they are. What gives that room back without
//! copying anything is to end the advice: the copies collapse into one, at the preferred location
//! where one of them lies there. So
//!
//! * what becomes mostly read prefers the host from then on; as long as the advice holds that
//!   changes nothing, since it goes before the preferred location;
//! * to leave, it is no longer mostly read (what the host has too is gone from the device), is
//!   prefetched to the host (which moves what the device alone has: on the first time, or where it
//!   was written against all forecasts), and is advised again once that has ended: before, the
//!   prefetch would only copy;
//! * what is mostly read no more prefers the device first, whose copy is left then.
//!
//! All of it is advice: where a step fails, memory lies elsewhere or is copied once more.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::backing::{PREFER, advise};
use super::evicted::GRANULE;
use crate::driver::abi::{CuDevice, CuResult};

/// CU_MEM_ADVISE_SET_READ_MOSTLY and its opposite.
const READ_MOSTLY: u32 = 1;
const NOT_READ_MOSTLY: u32 = 2;
/// CU_DEVICE_CPU.
pub const HOST: CuDevice = -1;

/// What is advised now: where each granule's part of an allocation begins.
static ADVISED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
/// How many there are: most jobs have none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Memory to be advised again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Again {
    start: u64,
    bytes: u64,
    device: CuDevice,
}

fn locked() -> MutexGuard<'static, BTreeSet<u64>> {
    // Nothing that runs under the lock can leave the set half changed.
    ADVISED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the granules' parts of a range begin. A range begins where its allocation or a granule
/// does.
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

/// The runs of a range that are advised.
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

/// Fresh memory: no advice has been given about it.
pub fn forget(start: u64, bytes: u64) {
    if COUNT.load(Ordering::Acquire) > 0 {
        keep(start, bytes, false);
    }
}

/// It is mostly read.
pub fn mostly_read(start: u64, bytes: u64, device: CuDevice) -> CuResult {
    let result = advise(start, bytes, READ_MOSTLY, device);
    if result.ok() {
        // Where this fails, what leaves is copied.
        let _ = advise(start, bytes, PREFER, HOST);
        keep(start, bytes, true);
    }
    result
}

/// It is no more: the device's copy is the one that counts.
pub fn written(start: u64, bytes: u64, device: CuDevice) -> CuResult {
    keep(start, bytes, false);
    // Where this fails, it is copied to the device once more.
    let _ = advise(start, bytes, PREFER, device);
    advise(start, bytes, NOT_READ_MOSTLY, device)
}

/// It is about to leave the device by a prefetch. Answers what is to be advised again when that has
/// ended.
pub fn leaves(start: u64, bytes: u64, device: CuDevice) -> Vec<Again> {
    let mut again = Vec::new();
    for (start, bytes) in runs(start, bytes) {
        if advise(start, bytes, NOT_READ_MOSTLY, device).ok() {
            keep(start, bytes, false);
            again.push(Again { start, bytes, device });
        }
    }
    again
}

/// It has left, or does not. What is the job's no more the driver refuses.
pub fn left(again: Vec<Again>) {
    for Again { start, bytes, device } in again {
        let _ = mostly_read(start, bytes, device);
    }
}

/// What is still to be advised again once this is mostly read no more.
pub fn without(again: &mut Vec<Again>, start: u64, bytes: u64) {
    let end = start.saturating_add(bytes);
    again.retain(|one| one.start >= end || one.start.saturating_add(one.bytes) <= start);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the set is the process's.
    #[test]
    fn what_is_advised_is_known_by_granules_of_each_allocation() {
        let base = 0x7100_0000_0000;
        // An allocation that begins within a granule, and one behind it in its last granule.
        let (first, second) = (base + 4096, base + 2 * GRANULE + 8192);
        keep(first, 2 * GRANULE, true);
        assert_eq!(runs(first, 2 * GRANULE), [(first, 2 * GRANULE)]);
        assert_eq!(runs(second, 4096), [], "another allocation in the same granule");
        assert_eq!(runs(base + GRANULE, GRANULE), [(base + GRANULE, GRANULE)]);
        keep(base + GRANULE, GRANULE, false);
        let last = (base + 2 * GRANULE, 4096);
        assert_eq!(runs(first, 2 * GRANULE), [(first, GRANULE - 4096), last]);
        let mut again = vec![Again {
            start: last.0,
            bytes: last.1,
            device: 0,
        }];
        without(&mut again, base, 2 * GRANULE);
        assert_eq!(again.len(), 1);
        without(&mut again, last.0 + 1, 1);
        assert_eq!(again, []);
        forget(first, 2 * GRANULE);
        assert_eq!((runs(first, 2 * GRANULE), COUNT.load(Ordering::Relaxed)), (vec![], 0));
    }
}
