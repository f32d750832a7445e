// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses that belong to graphs: whether the client holds them, and how much there is.
//!
//! A launch gives a graph's memory into the client's hands; the client's free takes it back.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use simgpu_device::lock::lock;

use crate::abi::{Error, R};

/// One of the graphs' allocations.
struct Owned {
    device: usize,
    bytes: u64,
    /// A launch has made it the client's, and it was not freed since.
    in_use: bool,
}

/// Graphs' memory by address.
static OWNED: Mutex<BTreeMap<u64, Owned>> = Mutex::new(BTreeMap::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// `CU_GRAPH_MEM_ATTR_USED_MEM_HIGH` and `CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH`, by device.
static HIGH: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());

fn total(owned: &BTreeMap<u64, Owned>, device: usize) -> u64 {
    let there = owned.values().filter(|owned| owned.device == device);
    there.map(|owned| owned.bytes).sum()
}

/// Takes an address in that a graph's allocation node got.
pub(crate) fn add(device: usize, address: u64, bytes: u64) {
    let mut owned = lock(&OWNED);
    let added = Owned {
        device,
        bytes,
        in_use: false,
    };
    owned.insert(address, added);
    COUNT.store(owned.len(), Ordering::Release);
    let mut high = lock(&HIGH);
    let most = high.entry(device).or_default();
    *most = total(&owned, device).max(*most);
}

/// The graphs are done with an address. Says whether it stays the client's.
pub(crate) fn remove(address: u64) -> bool {
    let mut owned = lock(&OWNED);
    let left = owned.remove(&address);
    COUNT.store(owned.len(), Ordering::Release);
    left.is_some_and(|left| left.in_use)
}

/// A launch came to an allocation node (`in_use`) or to a free node, or the client frees the
/// address. Says whether the address is a graph's: freeing it is over with that.
fn mark(address: u64, in_use: bool) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 {
        return false;
    }
    let mut owned = lock(&OWNED);
    let found = owned.get_mut(&address);
    if let Some(owned) = found {
        owned.in_use = in_use;
        return true;
    }
    false
}

/// A launch makes a graph's memory the client's.
pub(crate) fn begins(address: u64) {
    mark(address, true);
}

/// Ends the use of a graph's memory, for a client's free or a free node. Returns whether the
/// address was a graph's.
#[inline]
pub(crate) fn ends(address: u64) -> bool {
    mark(address, false)
}

/// Is the address a graph's?
pub(crate) fn owns(address: u64) -> bool {
    COUNT.load(Ordering::Acquire) != 0 && lock(&OWNED).contains_key(&address)
}

/// `CUgraphMem_attribute`: used, used at most, reserved, reserved at most.
pub(crate) fn attribute(device: usize, attribute: u32) -> R<u64> {
    match attribute {
        0 | 2 => Ok(total(&lock(&OWNED), device)),
        1 | 3 => Ok(lock(&HIGH).get(&device).copied().unwrap_or(0)),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Restarts the high-water marks from the present use.
pub(crate) fn reset_high(device: usize) {
    let now = total(&lock(&OWNED), device);
    lock(&HIGH).insert(device, now);
}
