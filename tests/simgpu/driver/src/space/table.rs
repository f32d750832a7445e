// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every allocation of the process by its address, and how copies and kernels treat an address.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::abi::Handle;
use crate::space::{Zone, zone};

/// The origin of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllocationKind {
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
    pub(crate) kind: AllocationKind,
    /// Device that has the memory.
    pub(crate) device: usize,
    pub(crate) context: u64,
    pub(crate) context_handle: Handle,
    pub(crate) id: u64,
}

/// Every allocation, by its first address.
static TABLE: RwLock<BTreeMap<u64, Allocation>> = RwLock::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The allocation an address lies in.
pub(crate) fn find(address: u64) -> Option<Allocation> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let (_, allocation) = table.range(..=address).next_back()?;
    (address - allocation.start < allocation.size.max(1)).then(|| allocation.clone())
}

/// The context that an allocation is made in, and the device whose memory it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    /// The device. It need not be the context's.
    pub(crate) device: usize,
    /// The context's number.
    pub(crate) context: u64,
    pub(crate) context_handle: Handle,
}

/// Takes an allocation in.
pub(crate) fn insert(owner: Owner, start: u64, size: u64, room: u64, kind: AllocationKind) {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let allocation = Allocation {
        start,
        size,
        room,
        kind,
        device: owner.device,
        context: owner.context,
        context_handle: owner.context_handle,
        id,
    };
    TABLE
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(start, allocation);
}

/// Takes an allocation out.
pub(crate) fn remove(start: u64) -> Option<Allocation> {
    TABLE.write().unwrap_or_else(PoisonError::into_inner).remove(&start)
}

/// Whether any memory is managed.
pub(crate) fn has_managed() -> bool {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table
        .values()
        .any(|allocation| allocation.kind == AllocationKind::Managed)
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
            Some(AllocationKind::Mapped { host: true, .. }) => Side::Pinned,
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

/// Allocations that were made in a context and are still there.
pub(crate) fn of_context(context: u64) -> Vec<Allocation> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table
        .values()
        .filter(|allocation| allocation.context == context)
        .cloned()
        .collect()
}
