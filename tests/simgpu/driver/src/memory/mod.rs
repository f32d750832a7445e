// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: device, pinned, managed, pools, the virtual memory API, arrays, and properties of a
//! pointer.
//!
//! | file | what |
//! |---|---|
//! | `heap.rs` | blocks of device memory, and the device's accounting |
//! | `alloc.rs` | `cuMemAlloc` and its siblings, `cuMemGetInfo` |
//! | `host.rs` | pinned and registered host memory |
//! | `managed.rs` | advice, prefetch, discard, range attributes |
//! | `paging.rs` | managed memory in the device's page ledger, what launches touch |
//! | `pool.rs` | stream-ordered allocation |
//! | `owned.rs` | addresses that belong to graphs |
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
pub(crate) mod owned;
pub(crate) mod paging;
mod pointer;
pub(crate) mod pool;
mod vmm;

use simgpu_device::Op;

pub(crate) use ipc::is_shared;

use crate::abi::{DevicePtr, Error, R};
use crate::context::Context;
use crate::memory::heap::with_heap;
use crate::space::space;
use crate::space::table::{Allocation, AllocationKind, find, insert, of_context, remove};
use crate::state::Driver;
use crate::stream::{Stream, synchronize_context};

/// Device memory for a context.
pub(crate) fn take(driver: &Driver, context: &Context, size: u64, kind: AllocationKind) -> R<u64> {
    if kind == AllocationKind::Managed {
        return paging::take(driver, context, size);
    }
    let (at, room) = with_heap(context.device(), |heap| heap.take(driver, size))?;
    insert(context.owner(), at, size, room, kind);
    Ok(at)
}

/// Takes an allocation out of the table and gives its memory back.
pub(super) fn discard(driver: &Driver, allocation: &Allocation) -> R {
    remove(allocation.start).ok_or(Error::INVALID_VALUE)?;
    match allocation.kind {
        AllocationKind::Device => with_heap(allocation.device, |heap| {
            heap.give(driver, allocation.start, allocation.room);
        }),
        AllocationKind::Managed => paging::give(driver, allocation)?,
        AllocationKind::Pinned(_) => space()?.give_pinned(allocation.start, allocation.room),
        AllocationKind::Registered(_) | AllocationKind::Mapped { .. } => {}
        AllocationKind::Pool(pool) => pool::give(driver, pool, allocation.start, allocation.room),
        AllocationKind::Ipc => ipc::unmap(allocation)?,
    }
    Ok(())
}

/// `cuMemFree`: like the real driver it waits for the context's work first, so that nothing still
/// uses the memory.
pub(crate) fn free(driver: &Driver, at: DevicePtr) -> R {
    // Memory of a graph stays with it: the client only ends its own use.
    if at == 0 || owned::ends(at) {
        return Ok(());
    }
    let allocation = find(at)
        .filter(|allocation| allocation.start == at)
        .ok_or(Error::INVALID_VALUE)?;
    if !matches!(
        allocation.kind,
        AllocationKind::Device | AllocationKind::Managed | AllocationKind::Pool(_)
    ) {
        return Err(Error::INVALID_VALUE);
    }
    if let Some(context) = crate::context::CONTEXTS.find(allocation.context_handle) {
        synchronize_context(driver, &context)?;
    }
    discard(driver, &allocation)
}

/// `cuMemFreeAsync`: the memory is free for others when the stream has got here.
pub(crate) fn free_on(driver: &Driver, stream: &Stream, at: u64) -> R {
    let found = find(at).filter(|found| found.start == at).ok_or(Error::INVALID_VALUE)?;
    let seq = stream.submit(driver, Op::Marker, None, 0)?;
    match found.kind {
        AllocationKind::Pool(pool) => pool::free_after(pool, stream.id, seq, &found),
        // Memory of cuMemAlloc may be freed in stream order too.
        AllocationKind::Device | AllocationKind::Managed => {
            stream.wait(driver, seq)?;
            discard(driver, &found)
        }
        _ => Err(Error::INVALID_VALUE),
    }
}

/// Gives back the memory that a context has not freed when it ends.
pub(crate) fn forget_context(driver: &Driver, context: &Context) {
    for allocation in of_context(context.id) {
        // Pools and physical allocations belong to the device, not to a context.
        if !matches!(allocation.kind, AllocationKind::Pool(_) | AllocationKind::Mapped { .. }) {
            let _: R = discard(driver, &allocation);
        }
    }
}
