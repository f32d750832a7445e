//! `cuMemAlloc` and its siblings, freeing, and how much there is.
#![deny(unsafe_code)]

use crate::abi::{DevicePtr, Error, Out, R};
use crate::context::{Context, current};
use crate::export::export;
use crate::graph;
use crate::memory::space::{PAGE, space};
use crate::memory::{Allocation, Kind, find, insert, ipc, paging, pool, remove, with_heap};
use crate::state::{self, Driver};

/// Rows of a pitched allocation begin at multiples of this, as on the A100.
const PITCH: usize = 512;

/// Device memory for a context.
pub(crate) fn take(driver: &Driver, context: &Context, size: u64, kind: Kind) -> R<u64> {
    if kind == Kind::Managed {
        return paging::take(driver, context, size);
    }
    let (at, room) = with_heap(context.device(), |heap| heap.take(driver, size))?;
    insert(context, at, size, room, kind);
    Ok(at)
}

/// Gives back an allocation that the table no longer holds, or takes it out.
pub(crate) fn discard(driver: &Driver, allocation: &Allocation) -> R {
    remove(allocation.start).ok_or(Error::INVALID_VALUE)?;
    match allocation.kind {
        Kind::Device => with_heap(allocation.device, |heap| {
            heap.give(driver, allocation.start, allocation.room);
        }),
        Kind::Managed => paging::give(driver, allocation)?,
        Kind::Pinned(_) => space()?.give_pinned(allocation.start, allocation.room),
        Kind::Registered(_) | Kind::Mapped { .. } => {}
        Kind::Pool(pool) => pool::give(driver, pool, allocation.start, allocation.room),
        Kind::Ipc => ipc::unmap(allocation)?,
    }
    Ok(())
}

/// `cuMemFree`: like the real driver it waits for the context's work first, so that nothing still
/// uses the memory.
pub(crate) fn free(driver: &Driver, at: DevicePtr) -> R {
    // What belongs to a graph stays with it: the client only ends its own use.
    if at == 0 || graph::ends(at) {
        return Ok(());
    }
    let allocation = find(at)
        .filter(|allocation| allocation.start == at)
        .ok_or(Error::INVALID_VALUE)?;
    if !matches!(allocation.kind, Kind::Device | Kind::Managed | Kind::Pool(_)) {
        return Err(Error::INVALID_VALUE);
    }
    if let Some(context) = crate::context::CONTEXTS.find(allocation.context_handle) {
        context.synchronize(driver)?;
    }
    discard(driver, &allocation)
}

fn allocate(out: Out<DevicePtr>, size: usize, kind: Kind) -> R {
    let context = current::get()?;
    graph::may_query()?;
    if size == 0 || out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.set(take(state::driver()?, &context, size as u64, kind)?)
}

export! {
    fn cuMemAlloc_v2(pointer: Out<DevicePtr>, size: usize) {
        allocate(pointer, size, Kind::Device)
    }

    fn cuMemAllocManaged(pointer: Out<DevicePtr>, size: usize, flags: u32) {
        // CU_MEM_ATTACH_GLOBAL, HOST or SINGLE.
        if ![1, 2, 4].contains(&flags) {
            return Err(Error::INVALID_VALUE);
        }
        allocate(pointer, size, Kind::Managed)
    }

    fn cuMemAllocPitch_v2(pointer: Out<DevicePtr>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        if width == 0 || height == 0 || ![4, 8, 16].contains(&element) {
            return Err(Error::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(Error::OUT_OF_MEMORY)?;
        allocate(pointer, row.checked_mul(height).ok_or(Error::OUT_OF_MEMORY)?, Kind::Device)?;
        pitch.set(row)
    }

    fn cuMemFree_v2(pointer: DevicePtr) {
        graph::may_query()?;
        current::get()?;
        free(state::driver()?, pointer)
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let device = current::get()?.device();
        let (left, all) = state::driver()?.timeline.memory(device);
        free.set_if(left as usize);
        total.set_if(all as usize);
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: Out<DevicePtr>, size: Out<usize>, pointer: DevicePtr) {
        state::driver()?;
        let allocation = find(pointer).ok_or(Error::NOT_FOUND)?;
        base.set_if(allocation.start);
        size.set_if(allocation.size as usize);
        Ok(())
    }

    fn cuMemGetHandleForAddressRange(handle: Out<i32>, pointer: DevicePtr, size: usize, kind: u32, flags: u64) {
        let _ = (handle, pointer, size, kind, flags);
        state::driver()?;
        Err(Error::NOT_SUPPORTED)
    }
}

/// Bytes rounded up to whole pages.
pub(crate) fn pages(size: usize) -> R<u64> {
    (size as u64).checked_next_multiple_of(PAGE).ok_or(Error::OUT_OF_MEMORY)
}
