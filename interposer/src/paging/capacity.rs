// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accounts of managed memory: the bytes of each device that the job may take, and has taken.
//!
//! Programs size themselves by `cuMemGetInfo` and by the error of a full device. So a job gets the
//! memory that it could have without other jobs: `total - total / RESERVE_DIVISOR`. A larger
//! declared need (`--memory`) is granted as far as the host has room at the first look, because the
//! excess lies there. Other jobs do not change this.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weft_protocol::control::ToBroker;

use crate::client::backing_mode;
use crate::client::link::{self, BrokerLink};
use crate::report;

/// Devices with an account; further ones keep plain device memory.
const DEVICES: usize = 32;

/// Divisor of the total for memory that no job can have: contexts, code, the driver's own memory.
/// 1/64 of 80 GB is 1.25 GB; two jobs' contexts take 0.4 to 0.6 GB each there.
const RESERVE_DIVISOR: u64 = 64;

#[derive(Debug)]
struct DeviceAccount {
    /// 0 = unknown.
    limit: AtomicU64,
    taken: AtomicU64,
}

static ACCOUNTS: [DeviceAccount; DEVICES] = [const {
    DeviceAccount {
        limit: AtomicU64::new(0),
        taken: AtomicU64::new(0),
    }
}; DEVICES];

fn account(device: i32) -> Option<&'static DeviceAccount> {
    usize::try_from(device).ok().and_then(|at| ACCOUNTS.get(at))
}

/// Capacity for a job on a device of `total` bytes.
pub fn of_total(total: u64) -> u64 {
    total - total / RESERVE_DIVISOR
}

/// Sets a device's capacity from the declared need and the spare host memory; all in bytes.
pub fn set_limit(device: i32, total: u64, said: Option<u64>, spare: u64) {
    if let Some(account) = account(device) {
        let alone = of_total(total);
        let beyond = said.unwrap_or(0).saturating_sub(alone).min(spare);
        account.limit.store(alone.saturating_add(beyond), Ordering::Relaxed);
    }
}

/// Capacity of a device, bytes; 0 = unknown.
pub fn limit(device: i32) -> u64 {
    account(device).map_or(0, |account| account.limit.load(Ordering::Relaxed))
}

/// Books `bytes`; false if that would exceed the capacity.
#[must_use]
pub fn take(device: i32, bytes: u64) -> bool {
    let Some(account) = account(device) else { return false };
    let most = limit(device);
    let grown = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= most);
    account
        .taken
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, grown)
        .is_ok()
}

/// Books `bytes` back.
pub fn give_back(device: i32, bytes: u64) {
    if let Some(account) = account(device) {
        let _ = account
            .taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                Some(taken.saturating_sub(bytes))
            });
    }
}

pub fn taken(device: i32) -> u64 {
    account(device).map_or(0, |account| account.taken.load(Ordering::Acquire))
}

pub fn taken_of_all() -> u64 {
    ACCOUNTS.iter().fold(0, |sum: u64, account| {
        sum.saturating_add(account.taken.load(Ordering::Relaxed))
    })
}

pub fn is_known(device: i32) -> bool {
    account(device).is_some_and(|account| account.limit.load(Ordering::Relaxed) != 0)
}

static STAYED_PLAIN: AtomicU64 = AtomicU64::new(0);

/// Counts an allocation that stays device memory. Each reason is logged once.
pub fn stays_plain(said: &AtomicBool, why: &str) {
    STAYED_PLAIN.fetch_add(1, Ordering::Relaxed);
    link::only().into_iter().for_each(write_to);
    report::once(said, why);
}

/// Reports a change of managed memory to the broker. Slow path.
pub fn send(change: ToBroker) {
    if let Some(link) = link::only() {
        link.tell(change);
        write_to(link);
    }
}

/// Writes into the lane how much managed memory the job holds, and how many allocations stayed
/// device memory.
pub fn write_to(link: &BrokerLink) {
    if backing_mode::managed() {
        let counters = &link.lane.counters;
        counters.managed.store(taken_of_all(), Ordering::Relaxed);
        counters
            .unmanaged
            .store(STAYED_PLAIN.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_there_is() {
        let device = 31;
        assert!(!is_known(device) && !is_known(32) && !is_known(-1));
        set_limit(device, 6400, None, u64::MAX);
        assert!(take(device, 6000));
        assert!(!take(device, 301));
        assert!(take(device, 300));
        assert!(!take(device, 1) && !take(device, u64::MAX));
        give_back(device, 6000);
        assert_eq!(taken(device), 300);
        give_back(device, 1000);
        assert_eq!(taken(device), 0);
    }

    #[test]
    fn what_was_said_may_exceed_the_device_as_far_as_the_host_has_room() {
        let device = 30;
        for (said, spare, most_of_it) in [
            (9600, 100_000, 9600),
            (9600, 1000, 7300),
            (9600, 0, 6300),
            (3000, 100_000, 6300),
            (u64::MAX, u64::MAX, u64::MAX),
        ] {
            set_limit(device, 6400, Some(said), spare);
            assert_eq!(limit(device), most_of_it, "{said} {spare}");
            assert!(take(device, most_of_it) && !take(device, 1));
            give_back(device, most_of_it);
        }
    }
}
