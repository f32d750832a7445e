// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocks of movable memory: reserved addresses on which physical memory is mapped. The physical
//! memory can leave and come back; the addresses stay.
//!
//! A step that fails undoes the steps before it. An allocation then becomes plain memory. Frees
//! during a capture wait for its end, because the driver's own free would wait for the context.
//! Blocks that are freed in stream order, and those of pools, are kept ([`super::kept`]).

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::host_copy::HostCopy;
use super::kept::{self, Freed, NO_POOL, PoolKey};
use crate::driver::abi::{
    AllocationProperties, CuContext, CuDevice, CuDevicePtr, CuResult, CuStream, LOCATION_DEVICE, Location,
    MemoryAccess, PhysicalProperties,
};
use crate::driver::queries::{free_memory, here, within};
use crate::driver::{calls, capture};
use crate::lock::lock;
use crate::report;
use crate::throttle::DeviceNumber;

/// Smallest movable allocation, bytes. Physical memory comes in pieces of this size.
pub const LEAST_BYTES: u64 = 2 << 20;

/// CU_MEM_ALLOCATION_TYPE_PINNED: memory of the device that does not migrate.
const ON_DEVICE: u32 = 1;
/// CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
const READ_WRITE: u32 = 3;
/// CU_MEM_ALLOC_GRANULARITY_MINIMUM.
const MINIMUM: u32 = 0;

#[derive(Debug)]
pub(super) struct MovableBlock {
    /// Bytes that the job asked for.
    pub(super) bytes: u64,
    /// Bytes of the addresses and of the physical memory.
    pub(super) room: u64,
    /// Its contents are copied there. 0: none is left.
    pub(super) context: CuContext,
    device: CuDevice,
    /// Further devices with access.
    peers: Vec<CuDevice>,
    pub(super) at: DeviceNumber,
    /// The pool that it was asked from. It belongs to no context then.
    pub(super) pool: Option<PoolKey>,
    /// Contents while it is away.
    copy: Option<HostCopy>,
    /// Whether physical memory is mapped.
    mapped: bool,
}

/// Properties of a block, for the job's queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockView {
    pub start: CuDevicePtr,
    pub bytes: u64,
    pub room: u64,
    pub context: CuContext,
    pub pool: Option<PoolKey>,
}

static BLOCKS: Mutex<BTreeMap<CuDevicePtr, MovableBlock>> = Mutex::new(BTreeMap::new());

/// Freed during a capture.
static FREED: Mutex<Vec<(CuDevicePtr, MovableBlock)>> = Mutex::new(Vec::new());

/// Copies whose contents are back on the device.
static SPENT: Mutex<Vec<(CuContext, HostCopy)>> = Mutex::new(Vec::new());

/// Whether the job made its devices peers. Memory from then on stays plain.
static PEERS: AtomicBool = AtomicBool::new(false);

/// Bytes that an allocation takes as a block.
pub fn room(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(LEAST_BYTES).unwrap_or(bytes)
}

/// The range around an address.
pub fn of(address: CuDevicePtr) -> Option<BlockView> {
    let blocks = lock(&BLOCKS);
    let (start, block) = blocks.range(..=address).next_back()?;
    (address - start < block.bytes).then_some(BlockView {
        start: *start,
        bytes: block.bytes,
        room: block.room,
        context: block.context,
        pool: block.pool,
    })
}

/// Bytes of all blocks, and bytes of those that are away.
pub fn totals() -> (u64, u64) {
    let blocks = lock(&BLOCKS);
    let sum = |away: bool| {
        blocks
            .values()
            .filter(|block| !away || !block.mapped)
            .map(|block| block.room)
            .sum()
    };
    (sum(false), sum(true))
}

/// The job's device in the broker's books.
pub fn place() -> Option<DeviceNumber> {
    lock(&BLOCKS).values().next().map(|block| block.at)
}

/// Contexts of the blocks, each once.
pub fn contexts() -> Vec<CuContext> {
    let mut contexts: Vec<CuContext> = lock(&BLOCKS).values().map(|block| block.context).collect();
    contexts.retain(|context| *context != 0);
    contexts.sort_unstable();
    contexts.dedup();
    contexts
}

fn checked(result: CuResult) -> Result<(), CuResult> {
    if result.ok() { Ok(()) } else { Err(result) }
}

fn properties(device: CuDevice) -> PhysicalProperties {
    PhysicalProperties {
        head: AllocationProperties {
            types: [ON_DEVICE, 0],
            location_kind: LOCATION_DEVICE,
            location_id: device,
        },
        metadata: 0,
        flags: [0; 8],
    }
}

/// Maps new physical memory on reserved addresses.
fn map(start: CuDevicePtr, room: u64, device: CuDevice, peers: &[CuDevice]) -> Result<(), CuResult> {
    let (size, mut handle) = (room as usize, 0);
    // SAFETY: valid out-parameter and properties.
    checked(unsafe { calls::cuMemCreate(&mut handle, size, &properties(device), 0) })?;
    // SAFETY: the range is reserved and nothing is mapped there.
    let mapped = unsafe { calls::cuMemMap(start, size, 0, handle, 0) };
    // The mapping keeps the memory.
    // SAFETY: the handle just made.
    let _ = unsafe { calls::cuMemRelease(handle) };
    checked(mapped)?;
    let access = |device: &CuDevice| MemoryAccess {
        location: Location::device(*device),
        flags: READ_WRITE,
    };
    let access: Vec<MemoryAccess> = [device].iter().chain(peers).map(access).collect();
    // SAFETY: the range is mapped; the list is that long.
    let open = unsafe { calls::cuMemSetAccess(start, size, access.as_ptr(), access.len()) };
    if !open.ok() {
        let _ = unmap(start, room);
    }
    checked(open)
}

fn unmap(start: CuDevicePtr, room: u64) -> Result<(), CuResult> {
    // SAFETY: a range that was mapped as a whole, and which no work uses.
    checked(unsafe { calls::cuMemUnmap(start, room as usize) })
}

/// Takes movable memory in the current context, for a pool or none. `None`: it has to be plain
/// memory.
pub fn take(bytes: u64, at: DeviceNumber, pool: Option<PoolKey>) -> Option<CuDevicePtr> {
    static SAID: AtomicBool = AtomicBool::new(false);
    if capture::any() || PEERS.load(Ordering::Acquire) {
        return None;
    }
    free_late();
    let (device, context) = here()?;
    let block = || {
        let mut granularity = 0;
        // SAFETY: valid out-parameter and properties.
        checked(unsafe { calls::cuMemGetAllocationGranularity(&mut granularity, &properties(device), MINIMUM) })?;
        if granularity == 0 || !LEAST_BYTES.is_multiple_of(granularity as u64) {
            return Err(CuResult::INVALID_VALUE);
        }
        let (room, mut start) = (room(bytes), 0);
        // SAFETY: valid out-parameter.
        checked(unsafe { calls::cuMemAddressReserve(&mut start, room as usize, 0, 0, 0) })?;
        if let Err(error) = map(start, room, device, &[]) {
            // SAFETY: the range reserved above.
            let _ = unsafe { calls::cuMemAddressFree(start, room as usize) };
            return Err(error);
        }
        Ok((start, room))
    };
    match block() {
        Ok((start, room)) => {
            let block = MovableBlock {
                bytes,
                room,
                context,
                device,
                peers: Vec::new(),
                at,
                pool,
                copy: None,
                mapped: true,
            };
            insert(start, block);
            Some(start)
        }
        // The plain allocation has the same answer.
        Err(CuResult::OUT_OF_MEMORY) => None,
        Err(error) => {
            report::once(
                &SAID,
                &format!(
                    "the driver does not map memory as weft asks (error {}): this allocation cannot be moved",
                    error.0
                ),
            );
            None
        }
    }
}

/// Hands a block to the job.
pub(super) fn insert(start: CuDevicePtr, block: MovableBlock) {
    lock(&BLOCKS).insert(start, block);
}

/// Frees a block that no work uses.
pub(super) fn release(start: CuDevicePtr, block: &MovableBlock) -> Result<(), CuResult> {
    if block.mapped {
        unmap(start, block.room)?;
    }
    // SAFETY: the block's own range, with nothing mapped.
    checked(unsafe { calls::cuMemAddressFree(start, block.room as usize) })
}

/// Frees a block as the driver frees memory: after all work of its context, or in the order of a
/// stream. `None`: no block begins there.
pub fn give_back(start: CuDevicePtr, stream: Option<CuStream>) -> Option<CuResult> {
    // First: after the free another thread may get this address.
    let block = lock(&BLOCKS).remove(&start)?;
    let freed = match (stream, block.pool) {
        (Some(stream), _) => Freed::on(stream).map(Some),
        (None, Some(_)) => Ok(Some(Freed::UNUSED)),
        (None, None) => Ok(None),
    };
    match freed {
        Ok(Some(freed)) => kept::keep(start, block, freed),
        Ok(None) if capture::any() => lock(&FREED).push((start, block)),
        Ok(None) => {
            free_late();
            let freed = within(block.context, || {
                // SAFETY: no pointers.
                checked(unsafe { calls::cuCtxSynchronize() })?;
                release(start, &block)
            });
            if let Err(error) = freed {
                insert(start, block);
                return Some(error);
            }
        }
        Err(error) => {
            insert(start, block);
            return Some(error);
        }
    }
    Some(CuResult::SUCCESS)
}

/// Frees the blocks that were freed during a capture.
fn free_late() {
    let freed = std::mem::take(&mut *lock(&FREED));
    for (start, block) in freed {
        let _ = within(block.context, || {
            // SAFETY: no pointers.
            checked(unsafe { calls::cuCtxSynchronize() })?;
            release(start, &block)
        });
    }
}

/// Frees the blocks of an ended context, which the driver would keep. Those of pools live on:
/// their contents are copied in another context.
pub fn context_ended(context: CuContext, other: CuContext) {
    let mut gone: Vec<(CuDevicePtr, MovableBlock)> = Vec::new();
    let mut blocks = lock(&BLOCKS);
    gone.extend(blocks.extract_if(.., |_, block| block.context == context && block.pool.is_none()));
    blocks
        .values_mut()
        .filter(|block| block.context == context)
        .for_each(|block| block.context = other);
    drop(blocks);
    gone.extend(lock(&FREED).extract_if(.., |(_, block)| block.context == context));
    for (start, block) in gone {
        let _ = release(start, &block);
    }
}

/// Gives blocks of pools whose context ended a new one.
pub fn context_made(context: CuContext) {
    let mut blocks = lock(&BLOCKS);
    let orphans = blocks.values_mut().filter(|block| block.context == 0);
    orphans.for_each(|block| block.context = context);
}

/// Notes that a pool has ended: its blocks in use belong to none.
pub(super) fn pool_ended(pool: PoolKey) {
    let mut blocks = lock(&BLOCKS);
    let its = blocks.values_mut().filter(|block| block.pool == Some(pool));
    its.for_each(|block| block.pool = Some(NO_POOL));
}

/// Gives a device access to the blocks of a context that became its peer.
pub fn peer_enabled(device: CuDevice, peer: CuContext) {
    access(device, |block| block.context == peer && block.pool.is_none());
}

/// Gives a device access to the blocks of a pool.
pub fn pool_opened(device: CuDevice, pool: PoolKey) {
    kept::retire(pool);
    access(device, |block| block.pool == Some(pool));
}

fn access(device: CuDevice, which: impl Fn(&MovableBlock) -> bool) {
    PEERS.store(true, Ordering::Release);
    let mut blocks = lock(&BLOCKS);
    for (start, block) in blocks.iter_mut().filter(|(_, block)| which(block)) {
        let access = MemoryAccess {
            location: Location::device(device),
            flags: READ_WRITE,
        };
        // SAFETY: the block is mapped: no block leaves while this call is made.
        let _ = unsafe { calls::cuMemSetAccess(*start, block.room as usize, &access, 1) };
        block.peers.push(device);
    }
}

/// Copies all blocks to the host while `goes_on`. Returns whether all are copied. If not, no copy
/// is left.
pub fn copy_out(goes_on: impl Fn() -> bool) -> Result<bool, CuResult> {
    let mut blocks = lock(&BLOCKS);
    let copied = blocks.iter_mut().try_fold(true, |all, (start, block)| {
        if !all || !goes_on() {
            return Ok(false);
        }
        let copy = within(block.context, || HostCopy::of(*start, block.bytes as usize))?;
        block.copy = Some(copy);
        Ok(true)
    });
    if copied != Ok(true) {
        drop_copies(&mut blocks);
    }
    copied
}

/// Gives the physical memory of all copied blocks back. If that fails, all are mapped as before.
/// Returns the bytes.
pub fn unmap_all() -> Result<u64, CuResult> {
    let mut blocks = lock(&BLOCKS);
    let unmapped = blocks
        .iter_mut()
        .filter(|(_, block)| block.mapped)
        .try_for_each(|(start, block)| {
            unmap(*start, block.room)?;
            block.mapped = false;
            Ok(())
        });
    unmapped.map(|()| blocks.values().map(|block| block.room).sum())
}

/// Maps all blocks that are away. If that fails, those of this call are away again.
pub fn map_all() -> Result<(), CuResult> {
    let mut blocks = lock(&BLOCKS);
    let away = blocks.values().filter(|block| !block.mapped);
    let needed: u64 = away.clone().map(|block| block.room).sum();
    // A part of them would take memory that others are about to take.
    let free = { away }.next().map(|block| within(block.context, || Ok(free_memory())));
    if let Some(Ok(Some(free))) = free
        && free < needed
    {
        return Err(CuResult::OUT_OF_MEMORY);
    }
    let mut fresh = Vec::new();
    let away = blocks.iter_mut().filter(|(_, block)| !block.mapped);
    let mapped = { away }.try_for_each(|(start, block)| {
        within(block.context, || map(*start, block.room, block.device, &block.peers))?;
        block.mapped = true;
        fresh.push(*start);
        Ok(())
    });
    if mapped.is_err() {
        for start in fresh {
            if let Some(block) = blocks.get_mut(&start) {
                block.mapped = unmap(start, block.room).is_err();
            }
        }
    }
    mapped
}

/// Copies the contents of all blocks back. If that succeeds, their copies are spent.
pub fn copy_in() -> Result<(), CuResult> {
    let mut blocks = lock(&BLOCKS);
    for (start, block) in blocks.iter() {
        if let Some(copy) = &block.copy {
            within(block.context, || copy.put(*start))?;
        }
    }
    let mut spent = lock(&SPENT);
    for block in blocks.values_mut() {
        spent.extend(block.copy.take().map(|copy| (block.context, copy)));
    }
    Ok(())
}

/// Frees spent copies, unless a stream is captured. With much memory that takes long: calls need
/// not wait for it.
pub fn free_spent() {
    if capture::any() {
        return;
    }
    let spent = std::mem::take(&mut *lock(&SPENT));
    for (context, copy) in spent {
        free_copy(context, copy);
    }
}

fn free_copy(context: CuContext, copy: HostCopy) {
    let _ = within(context, || {
        drop(copy);
        Ok(())
    });
}

fn drop_copies(blocks: &mut BTreeMap<CuDevicePtr, MovableBlock>) {
    for block in blocks.values_mut() {
        if let Some(copy) = block.copy.take() {
            free_copy(block.context, copy);
        }
    }
}

/// Forgets all blocks, in a forked child: they are its parent's.
pub fn forget() {
    // A thread of the parent may hold a lock for ever.
    if let Ok(mut blocks) = BLOCKS.try_lock() {
        std::mem::forget(std::mem::take(&mut *blocks));
    }
    if let Ok(mut freed) = FREED.try_lock() {
        std::mem::forget(std::mem::take(&mut *freed));
    }
    if let Ok(mut spent) = SPENT.try_lock() {
        std::mem::forget(std::mem::take(&mut *spent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_found_by_the_bytes_that_were_asked_for() {
        let (start, bytes) = (0x4_0000_0000, LEAST_BYTES + 5);
        let block = MovableBlock {
            bytes,
            room: room(bytes),
            context: 7,
            device: 0,
            peers: Vec::new(),
            at: DeviceNumber::FIRST,
            pool: None,
            copy: None,
            mapped: true,
        };
        insert(start, block);
        let view = of(start + bytes - 1).expect("inside");
        assert_eq!(
            (view.start, view.bytes, view.room, view.context),
            (start, bytes, 2 * LEAST_BYTES, 7)
        );
        assert_eq!((of(start + bytes), of(start - 1)), (None, None));
        assert_eq!(totals(), (2 * LEAST_BYTES, 0));
        assert_eq!((place(), contexts()), (Some(DeviceNumber::FIRST), vec![7]));
        lock(&BLOCKS).remove(&start);
    }

    #[test]
    fn sizes_are_rounded_up_and_huge_ones_stay_what_they_are() {
        assert_eq!(room(LEAST_BYTES), LEAST_BYTES);
        assert_eq!(room(LEAST_BYTES + 1), 2 * LEAST_BYTES);
        assert_eq!(room(u64::MAX), u64::MAX);
    }
}
