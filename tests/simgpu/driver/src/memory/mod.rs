//! Memory: device, pinned, managed, pools, the virtual memory API, arrays, and what a pointer is.
//!
//! | file | what |
//! |---|---|
//! | `space.rs` | address ranges and mappings |
//! | `heap.rs` | blocks of device memory, and the device's accounting |
//! | `raw.rs` | touches the bytes |
//! | `alloc.rs` | `cuMemAlloc` and its siblings, `cuMemGetInfo` |
//! | `host.rs` | pinned and registered host memory |
//! | `managed.rs` | advice, prefetch, discard, range attributes |
//! | `paging.rs` | managed memory in the device's page ledger, what launches touch |
//! | `page_table.rs` | managed pages on the device leave the process's page table |
//! | `pool.rs`, `pool_api.rs` | stream-ordered allocation |
//! | `vmm.rs` | reserve, create, map |
//! | `pointer.rs` | pointer attributes |
//! | `ipc.rs` | handles for other processes |
//! | `array.rs` | arrays, kept as pitched linear memory |

mod alloc;
pub(crate) mod array;
pub(crate) mod heap;
mod host;
mod ipc;
mod managed;
pub(crate) mod page_table;
pub(crate) mod paging;
mod pointer;
mod pool;
mod pool_api;
pub(crate) mod raw;
pub(crate) mod space;
mod vmm;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use simgpu_device::lock::lock;

use crate::abi::{Handle, R};
use crate::context::Context;
use crate::state::Driver;
use heap::Heap;
use space::{Zone, zone};

pub(crate) use alloc::{free, take};

/// What an allocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocManaged`.
    Managed,
    /// From a pool.
    Pool(Handle),
    /// `cuMemHostAlloc`, with its flags.
    Pinned(u32),
    /// `cuMemHostRegister`, with its flags.
    Registered(u32),
    /// Mapped by `cuMemMap`: the allocation's handle types, and whether the memory is the host's.
    Mapped {
        /// `CUmemAllocationHandleType`.
        handle_types: u32,
        /// `CU_MEM_LOCATION_TYPE_HOST*`.
        host: bool,
    },
    /// Another process's, by `cuIpcOpenMemHandle`.
    Ipc,
}

/// One allocation, by its first address in [`TABLE`].
#[derive(Debug, Clone)]
pub(crate) struct Allocation {
    pub(crate) start: u64,
    /// As the client asked.
    pub(crate) size: u64,
    /// As it was taken.
    pub(crate) room: u64,
    pub(crate) kind: Kind,
    /// Whose memory it is.
    pub(crate) device: usize,
    pub(crate) context: u64,
    pub(crate) context_handle: Handle,
    pub(crate) id: u64,
}

/// Every allocation, by its first address.
static TABLE: RwLock<BTreeMap<u64, Allocation>> = RwLock::new(BTreeMap::new());
/// What `cuMemAlloc` hands out, by device.
static HEAPS: Mutex<BTreeMap<usize, Heap>> = Mutex::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The allocation an address lies in.
pub(crate) fn find(address: u64) -> Option<Allocation> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let (_, allocation) = table.range(..=address).next_back()?;
    (address - allocation.start < allocation.size.max(1)).then(|| allocation.clone())
}

fn insert(context: &Context, start: u64, size: u64, room: u64, kind: Kind) {
    insert_on(context.device(), context, start, size, room, kind);
}

/// Takes in an allocation that need not be on its context's device.
fn insert_on(device: usize, context: &Context, start: u64, size: u64, room: u64, kind: Kind) {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let allocation = Allocation {
        start,
        size,
        room,
        kind,
        device,
        context: context.id,
        context_handle: context.handle,
        id,
    };
    TABLE
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(start, allocation);
}

fn remove(start: u64) -> Option<Allocation> {
    TABLE.write().unwrap_or_else(PoisonError::into_inner).remove(&start)
}

fn with_heap<T>(device: usize, body: impl FnOnce(&mut Heap) -> T) -> T {
    body(lock(&HEAPS).entry(device).or_insert_with(|| Heap::of(device)))
}

/// How an address takes part in a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The device's memory.
    Device,
    /// Host memory the device can reach by itself.
    Pinned,
    /// Host memory that the driver has to copy to or from a buffer first.
    Pageable,
}

/// How an address takes part in a copy.
pub(crate) fn side(address: u64) -> Side {
    match zone(address) {
        Zone::Device => Side::Device,
        Zone::Pinned => Side::Pinned,
        Zone::Reserved => match find(address).map(|allocation| allocation.kind) {
            Some(Kind::Mapped { host: true, .. }) => Side::Pinned,
            _ => Side::Device,
        },
        Zone::Host => match find(address) {
            Some(_) => Side::Pinned,
            None => Side::Pageable,
        },
    }
}

/// May a stream operation touch this address? Ordinary host memory counts as not mapped.
pub(crate) fn is_mapped(address: u64) -> bool {
    match zone(address) {
        // Mapped whole for the life of the process, handed out or not.
        Zone::Device | Zone::Pinned => true,
        Zone::Reserved | Zone::Host => find(address).is_some(),
    }
}

/// May a copy touch `size` bytes from this address? Refuses reserved addresses without memory,
/// which would be a fault.
pub(crate) fn is_reachable(address: u64, size: u64) -> bool {
    if size == 0 {
        return true;
    }
    let Some(last) = address.checked_add(size - 1) else {
        return false;
    };
    match (zone(address), zone(last)) {
        (Zone::Reserved, Zone::Reserved) => {
            // Several mappings may follow one another.
            let mut at = address;
            while let Some(allocation) = find(at) {
                at = allocation.start + allocation.size;
                if at > last {
                    return true;
                }
            }
            false
        }
        (Zone::Host, Zone::Host) => address != 0,
        (first, second) => first == second,
    }
}

/// Gives back what a context that ends has not freed.
pub(crate) fn forget_context(driver: &Driver, context: &Arc<Context>) {
    let left: Vec<Allocation> = {
        let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
        table
            .values()
            .filter(|allocation| allocation.context == context.id)
            .cloned()
            .collect()
    };
    for allocation in left {
        // Pools and physical allocations belong to the device, not to a context.
        if !matches!(allocation.kind, Kind::Pool(_) | Kind::Mapped { .. }) {
            let _: R = alloc::discard(driver, &allocation);
        }
    }
}
