// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory that a process allocates and frees.
//!
//! Counted: allocations of every kind, the memory that pools keep ([`pools`]), arrays
//! ([`super::arrays`]), and physical memory for mapping. Not counted: host memory, and address
//! ranges, of which clients reserve tens of gigabytes. When a context ends, its memory is returned.
//! Physical memory is returned when neither a handle nor a mapping is left. The oldest versions of
//! these functions have 32-bit addresses, which no current device uses.
//!
//! The job's own managed memory counts separately: the driver evicts it under pressure.
//!
//! For a job on managed memory (see [`crate::paging`]) these calls allocate and free managed
//! memory, and answer as the driver would.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};

use dashmap::DashMap;

use super::declare::{hooks, per_thread, written};
use super::pools::{self, PoolNumber};
use crate::driver::abi::{AllocationProperties, CuContext, CuDevicePtr, CuResult, CuStream, LOCATION_DEVICE};
use crate::driver::queries::{self, current_context};
use crate::driver::stream::Stream;
use crate::driver::symbols::StreamOp;
use crate::driver::{calls, capture};
use crate::internal_error::guarded;
use crate::lock::lock;
use crate::movable::{self, kept};
use crate::paging::backing::{self, ManagedOutcome};
use crate::paging::{self, capacity, pool as managed_pool};
use crate::throttle::{self, DeviceNumber, Grant};

/// Attempts at an allocation that the driver refuses within the quota. Other processes may take
/// memory between them.
const GRANT_TRIES: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AllocationKind {
    /// Device memory. It ends with its context.
    Plain,
    /// Pool memory, in stream order; counted by its pool, if the pool is known. Pools belong to the
    /// device; the driver decides whether the memory ends with a context.
    Ordered(Option<PoolNumber>),
    /// An array. It ends with its context.
    Array,
    /// Managed memory in place of device memory.
    Backed,
    /// Managed memory that the job asked for itself.
    Own,
}

/// An allocation of this process.
#[derive(Debug, Clone, Copy)]
struct Block {
    bytes: u64,
    at: DeviceNumber,
    kind: AllocationKind,
    /// The thread's context at allocation.
    context: CuContext,
    /// Value of [`ENDS`] before the allocation.
    born: u64,
}

/// Calls so far that may end a context, which order a block before or after each such call.
static ENDS: AtomicU64 = AtomicU64::new(0);

static ADDRESSES: LazyLock<DashMap<u64, Block>> = LazyLock::new(DashMap::new);

#[derive(Debug, Clone, Copy)]
struct Physical {
    bytes: u64,
    at: DeviceNumber,
    /// Handles that the job has, plus mappings.
    uses: u32,
}

/// Physical memory by handle. The memory lives, and its handle is not reused, while `uses > 0`.
static HANDLES: LazyLock<DashMap<u64, Physical>> = LazyLock::new(DashMap::new);

static MAPPED: Mutex<BTreeMap<u64, Mapped>> = Mutex::new(BTreeMap::new());

#[derive(Debug, Clone, Copy)]
struct Mapped {
    bytes: u64,
    handle: u64,
}

/// Books an allocated address. `claimed`: bytes that its grant had claimed for it.
fn taken(address: u64, block: Block, claimed: u64) {
    guarded(|| {
        change(&block, block.bytes, 0, claimed);
        insert(address, block);
    });
}

fn insert(address: u64, block: Block) {
    if let Some(before) = ADDRESSES.insert(address, block) {
        change(&before, 0, before.bytes, 0);
    }
    // A context that ended meanwhile did not find this block in the list.
    if block.born != ENDS.load(Ordering::Acquire)
        && block.kind != AllocationKind::Array
        && !capture::any()
        && !lives(address)
    {
        given_back(address);
    }
}

fn given_back(address: u64) {
    guarded(|| {
        if let Some((_, block)) = ADDRESSES.remove(&address) {
            change(&block, 0, block.bytes, 0);
        }
    });
}

fn place(address: u64) -> Option<Block> {
    ADDRESSES.get(&address).map(|block| *block)
}

/// Whether the driver knows this address.
fn lives(address: u64) -> bool {
    /// CU_POINTER_ATTRIBUTE_MEMORY_TYPE.
    const MEMORY_TYPE: u32 = 2;
    let mut kind = 0u32;
    // SAFETY: the attribute is an int.
    unsafe { calls::cuPointerGetAttribute((&raw mut kind).cast(), MEMORY_TYPE, address) }.ok()
}

/// Counts a call that may end a context. Returns the largest `born` of the blocks that it may free.
pub fn context_ending() -> u64 {
    ENDS.fetch_add(1, Ordering::AcqRel)
}

/// Books the memory of an ended context as freed: blocks taken there before [`context_ending`]
/// returned `ends`.
pub fn context_ended(context: CuContext, ends: u64) {
    if context == 0 {
        return;
    }
    let of_it = |block: &Block| block.context == context && block.born <= ends;
    let old: Vec<(u64, AllocationKind)> = ADDRESSES
        .iter()
        .filter(|entry| of_it(entry.value()))
        .map(|entry| (*entry.key(), entry.kind))
        .collect();
    for (address, kind) in old {
        let gone = match kind {
            AllocationKind::Plain | AllocationKind::Array => true,
            AllocationKind::Backed | AllocationKind::Own => capture::any() || !queries::is_managed(address),
            AllocationKind::Ordered(_) => capture::any() || !lives(address),
        };
        // Another thread may have got this address anew.
        if gone && let Some((_, block)) = ADDRESSES.remove_if(&address, |_, block| of_it(block)) {
            change(&block, 0, block.bytes, 0);
        }
    }
    pools::synced();
}

static PLAIN: AtomicI64 = AtomicI64::new(0);

/// Bytes that a job on managed memory still holds as device memory.
pub fn plain() -> u64 {
    u64::try_from(PLAIN.load(Ordering::Relaxed)).unwrap_or(0)
}

fn difference(more: u64, less: u64) -> i64 {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    signed(more).saturating_sub(signed(less))
}

/// Books the memory that a pool keeps, and ends a claim.
pub(super) fn kept_changed(at: DeviceNumber, before: u64, after: u64, claimed: u64) {
    let delta = difference(after, before);
    if delta == 0 && claimed == 0 {
        return;
    }
    let _change = throttle::changing(at);
    if paging::managed() {
        PLAIN.fetch_add(delta, Ordering::Relaxed);
    }
    movable::stays(&movable::ORDERED, delta);
    throttle::memory_changed(at, delta, claimed);
}

fn change(block: &Block, taken: u64, given_back: u64, claimed: u64) {
    let delta = difference(taken, given_back);
    if let AllocationKind::Ordered(Some(source)) = block.kind {
        match taken > 0 {
            true => drop(pools::take(source, taken)),
            false => pools::give(source, given_back),
        }
        return;
    }
    if block.kind == AllocationKind::Own {
        throttle::own_managed_changed(block.at, delta);
        return;
    }
    if block.kind == AllocationKind::Ordered(None) {
        movable::stays(&movable::ORDERED, delta);
    }
    if paging::managed() && block.kind != AllocationKind::Backed {
        PLAIN.fetch_add(delta, Ordering::Relaxed);
    }
    throttle::memory_changed(block.at, delta, claimed);
}

impl Physical {
    /// Books this memory as taken or freed.
    fn changed(&self, taken: bool, claimed: u64) {
        let block = Block {
            bytes: self.bytes,
            at: self.at,
            kind: AllocationKind::Plain,
            context: 0,
            born: 0,
        };
        let (more, less) = if taken { (self.bytes, 0) } else { (0, self.bytes) };
        movable::stays(&movable::MAPPED, difference(more, less));
        change(&block, more, less, claimed);
    }
}

/// Adds a use of physical memory; false if the handle is unknown.
fn hold(handle: u64) -> bool {
    let known = HANDLES.get_mut(&handle).map(|mut physical| {
        physical.uses = physical.uses.saturating_add(1);
    });
    known.is_some()
}

/// Ends a use of physical memory. Returns the memory after its last use.
fn let_go(handle: u64) -> Option<Physical> {
    let (_, last) = HANDLES.remove_if_mut(&handle, |_, physical| {
        physical.uses = physical.uses.saturating_sub(1);
        physical.uses == 0
    })?;
    last.changed(false, 0);
    Some(last)
}

/// Undoes [`let_go`] after the driver refused.
fn take_back(handle: u64, last: Option<Physical>) {
    match last {
        Some(physical) => {
            HANDLES.insert(handle, Physical { uses: 1, ..physical });
            physical.changed(true, 0);
        }
        None => {
            hold(handle);
        }
    }
}

fn mapped_at(address: u64) -> Option<Mapped> {
    let mapped = lock(&MAPPED);
    let (start, found) = mapped.range(..=address).next_back()?;
    (address - start < found.bytes).then_some(*found)
}

/// Removes the mappings that begin in a range.
fn unmapped(start: u64, bytes: u64) -> Vec<(u64, Mapped)> {
    let mut mapped = lock(&MAPPED);
    let within = start..start.saturating_add(bytes);
    let starts: Vec<u64> = mapped.range(within).map(|(start, _)| *start).collect();
    let out = starts.into_iter();
    out.filter_map(|start| Some((start, mapped.remove(&start)?))).collect()
}

/// # Safety
/// `address` is the out-parameter of `real`.
pub(super) unsafe fn allocate(
    at: DeviceNumber,
    kind: AllocationKind,
    address: *const CuDevicePtr,
    bytes: u64,
    real: impl Fn() -> CuResult,
) -> CuResult {
    let born = ENDS.load(Ordering::Acquire);
    within_quota(at, bytes, real, |claimed| {
        // SAFETY: the driver wrote the address.
        let Some(address) = (unsafe { written(address) }) else {
            return false;
        };
        let context = current_context();
        let block = Block {
            bytes,
            at,
            kind,
            context,
            born,
        };
        taken(address, block, claimed);
        true
    })
}

/// Allocates movable memory, or plain memory if that is not possible.
///
/// # Safety
/// `address` is the out-parameter of `real`, not null.
unsafe fn allocate_movable(
    at: DeviceNumber,
    address: *mut CuDevicePtr,
    bytes: u64,
    real: impl Fn() -> CuResult,
) -> CuResult {
    let born = ENDS.load(Ordering::Acquire);
    let take = || match guarded(|| movable::take(bytes, at, None)).flatten() {
        Some(start) => {
            // SAFETY: the caller's promise.
            unsafe { address.write(start) };
            CuResult::SUCCESS
        }
        None => real(),
    };
    within_quota(at, movable::blocks::room(bytes), take, |claimed| {
        // SAFETY: written above, or by the driver.
        let address = unsafe { address.read() };
        let bytes = movable::blocks::of(address).map_or(bytes, |block| block.room);
        let (kind, context) = (AllocationKind::Plain, current_context());
        taken(
            address,
            Block {
                bytes,
                at,
                kind,
                context,
                born,
            },
            claimed,
        );
        true
    })
}

/// Allocates movable memory in stream order, or memory of the pool if that is not possible. A kept
/// block needs no permission.
///
/// # Safety
/// `address` is the out-parameter of `real`, not null.
unsafe fn allocate_ordered(
    (source, at): (PoolNumber, DeviceNumber),
    address: *mut CuDevicePtr,
    bytes: u64,
    stream: Stream,
    real: impl Fn() -> CuResult,
) -> CuResult {
    let (born, pool, room) = (ENDS.load(Ordering::Acquire), source.key(), movable::blocks::room(bytes));
    let put = |start: CuDevicePtr| {
        // SAFETY: the caller's promise.
        unsafe { address.write(start) };
        CuResult::SUCCESS
    };
    let reused = guarded(|| kept::reuse(bytes, pool, stream, throttle::beyond(at, room) > 0)).flatten();
    let mut result = reused.map_or(CuResult::OUT_OF_MEMORY, put);
    if !result.ok() {
        let fresh = || kept::in_context_of(stream, || Ok(movable::take(bytes, at, Some(pool))));
        let take = || match guarded(|| fresh().ok().flatten()).flatten() {
            Some(start) => put(start),
            None => real(),
        };
        result = within_quota(at, room, take, |claimed| {
            // SAFETY: written above, or by the driver.
            let address = unsafe { address.read() };
            if movable::blocks::of(address).is_some() {
                pools::block_taken(source, bytes, room);
                throttle::memory_changed(at, difference(room, 0), claimed);
                return true;
            }
            let (kind, context) = (AllocationKind::Ordered(Some(source)), current_context());
            pools::take(source, bytes);
            insert(
                address,
                Block {
                    bytes,
                    at,
                    kind,
                    context,
                    born,
                },
            );
            pools::ask(source, claimed)
        });
    }
    if result.ok() {
        guarded(|| pools::note_peaks(source.key()));
    }
    result
}

/// Allocates from a pool. Memory that the pool already keeps needs no permission.
///
/// # Safety
/// `address` is the out-parameter of `real`.
unsafe fn allocate_from(
    source: PoolNumber,
    at: DeviceNumber,
    address: *const CuDevicePtr,
    bytes: u64,
    real: impl Fn() -> CuResult,
) -> CuResult {
    let (born, kind) = (ENDS.load(Ordering::Acquire), AllocationKind::Ordered(Some(source)));
    let mut lacks = pools::take(source, bytes);
    let mut result = CuResult::OUT_OF_MEMORY;
    if lacks == 0 {
        result = real();
        if result == CuResult::OUT_OF_MEMORY {
            // The pool may have returned the memory that it kept.
            pools::give(source, bytes);
            pools::synced();
            lacks = pools::take(source, bytes);
        }
    }
    if lacks > 0 {
        result = within_quota(at, lacks, real, |claimed| pools::ask(source, claimed));
    }
    // SAFETY: the driver wrote the address.
    match unsafe { written(address) }.filter(|_| result.ok()) {
        Some(address) => {
            let context = current_context();
            let block = Block {
                bytes,
                at,
                kind,
                context,
                born,
            };
            guarded(|| insert(address, block));
            guarded(|| pools::note_peaks(source.key()));
        }
        None => {
            guarded(|| pools::give(source, bytes));
        }
    }
    result
}

/// Allocates if the job may have `bytes` more, otherwise answers out of memory. `count` books the
/// allocation together with its claim, so that no other claim sees it twice. `count` returns false
/// if it booked nothing.
pub(super) fn within_quota(
    at: DeviceNumber,
    bytes: u64,
    take: impl Fn() -> CuResult,
    count: impl FnOnce(u64) -> bool,
) -> CuResult {
    if paging::settled() {
        let result = take();
        if result.ok() {
            count(0);
        }
        return result;
    }
    pools::make_room(at, bytes);
    let (result, grant) = granted(at, bytes, take);
    if let Some(mut grant) = grant.filter(|_| result.ok())
        && count(grant.claimed())
    {
        grant.use_up();
    }
    // A process's first memory comes with its context, which owns used memory without a known
    // owner.
    if result.ok() && reports_free(at) {
        throttle::probe(at, queries::free_memory);
    }
    result
}

/// Makes a call that takes `bytes`, with the grant for it. If the driver refuses them, the broker
/// did not know that fewer are free: it decides again.
fn granted(at: DeviceNumber, bytes: u64, take: impl Fn() -> CuResult) -> (CuResult, Option<Grant>) {
    for tries in 1.. {
        let Some(grant) = throttle::reserve(at, bytes) else {
            break;
        };
        let mut result = grant.run(&take);
        if result == CuResult::OUT_OF_MEMORY && guarded(kept::give_way) == Some(true) {
            result = grant.run(&take);
        }
        if result != CuResult::OUT_OF_MEMORY || tries == GRANT_TRIES {
            return (result, Some(grant));
        }
        drop(grant);
        if !reports_free(at) || !throttle::report_refusal(at, bytes, queries::free_memory) {
            break;
        }
    }
    (CuResult::OUT_OF_MEMORY, None)
}

/// Whether the driver's free memory is that of this device: it is that of the current context's.
fn reports_free(at: DeviceNumber) -> bool {
    !capture::any() && throttle::here() == at
}

/// Allocates managed memory, if the job must have it. `None`: make the job's own call.
///
/// # Safety
/// `address` is the out-parameter of a call that takes memory.
unsafe fn managed(address: *mut CuDevicePtr, bytes: u64, take: impl FnOnce() -> ManagedOutcome) -> Option<CuResult> {
    if !paging::settled() || address.is_null() {
        return None;
    }
    let born = ENDS.load(Ordering::Acquire);
    match guarded(take).unwrap_or(ManagedOutcome::Plain) {
        ManagedOutcome::Plain => None,
        ManagedOutcome::Refused(error) => Some(error),
        ManagedOutcome::At(at) => {
            // SAFETY: the caller's promise.
            unsafe { address.write(at) };
            let block = Block {
                bytes,
                // A managed job has only one device place.
                at: DeviceNumber::FIRST,
                kind: AllocationKind::Backed,
                context: paging::ranges::at(at).map_or(0, |range| range.context),
                born,
            };
            taken(at, block, 0);
            Some(CuResult::SUCCESS)
        }
    }
}

fn unmanageable(what: &str, said: &AtomicBool) {
    if paging::managed() {
        capacity::stays_plain(said, &format!("{what} cannot be managed and stays device memory"));
    }
}

/// # Safety
/// `address` is the out-parameter of `real`.
unsafe fn allocate_on(
    address: *mut CuDevicePtr,
    bytes: usize,
    pool: Option<usize>,
    stream: Stream,
    real: impl Fn() -> CuResult,
) -> CuResult {
    // In a capture this makes a graph node, which allocates at launch.
    if capture::on(stream) {
        let Some(device) = throttle::ordinal(throttle::of_stream(stream)) else {
            return real();
        };
        // SAFETY: the driver wrote the address.
        return pools::add_node(device, bytes as u64, real, || unsafe { written(address) });
    }
    throttle::before_stream_op(StreamOp::Other, 0, stream);
    let take = || match pool.or_else(managed_pool::default_of_here) {
        Some(pool) => paging::take_ordered(bytes as u64, pool, stream),
        None => ManagedOutcome::Plain,
    };
    // SAFETY: the caller's promise.
    if let Some(result) = unsafe { managed(address, bytes as u64, take) } {
        return result;
    }
    let (here, bytes) = (throttle::of_stream(stream), bytes as u64);
    let known = guarded(|| {
        let source = match pool {
            Some(pool) => pools::of_handle(pool),
            None => pools::current(here),
        };
        source.and_then(|source| Some((source, pools::place(source)?)))
    });
    match known.flatten() {
        Some((source, at))
            if movable::wants_ordered(bytes)
                && at == here
                && !address.is_null()
                && pools::movable(source).is_some() =>
        {
            // SAFETY: the caller's promise.
            unsafe { allocate_ordered((source, at), address, bytes, stream, real) }
        }
        // SAFETY: as above.
        Some((source, at)) => unsafe { allocate_from(source, at, address, bytes, real) },
        // SAFETY: as above.
        None => unsafe { allocate(here, AllocationKind::Ordered(None), address, bytes, real) },
    }
}

pub(super) fn free(address: CuDevicePtr, real: impl FnOnce() -> CuResult) -> CuResult {
    // Before the call: after it, another thread may get this address anew.
    let block = place(address);
    // If a pool keeps the block, the memory that the job holds does not change now.
    let is_kept = matches!(
        block,
        Some(Block {
            kind: AllocationKind::Ordered(Some(_)),
            ..
        })
    );
    let at = block.map_or(DeviceNumber::FIRST, |block| block.at);
    let _change = (!is_kept).then(|| guarded(|| throttle::changing(at)));
    given_back(address);
    let result = real();
    if !result.ok()
        && let Some(block) = block
    {
        taken(address, block, 0);
    }
    result
}

fn free_on(address: CuDevicePtr, stream: Stream, real: impl FnOnce() -> CuResult) -> CuResult {
    if capture::on(stream) {
        return pools::free_node(address, real);
    }
    throttle::before_stream_op(StreamOp::Other, 0, stream);
    if paging::managed() && paging::ranges::at(address).is_some() {
        return free(address, || {
            backing::give_back_ordered(address, stream).unwrap_or(CuResult::INVALID_VALUE)
        });
    }
    // Memory of cuMemAlloc may be freed in stream order.
    free_block(address, Some(stream), real)
}

/// Frees a block of movable memory after all work of its context, or in the order of a stream.
/// Other memory is freed by `real`.
fn free_block(address: CuDevicePtr, stream: Option<Stream>, real: impl FnOnce() -> CuResult) -> CuResult {
    let give_back = || guarded(|| movable::blocks::give_back(address, stream)).flatten();
    let of = || movable::blocks::of(address).filter(|block| stream.is_some() || block.pool.is_some());
    if guarded(of).flatten().is_none() {
        return free(address, || give_back().unwrap_or_else(real));
    }
    // It is counted until it is unmapped.
    let block = ADDRESSES.remove(&address);
    let result = give_back().unwrap_or_else(real);
    if !result.ok()
        && let Some((_, block)) = block
    {
        ADDRESSES.insert(address, block);
    }
    result
}

hooks! {
    fn cuMemAlloc_v2(address: *mut CuDevicePtr, bytes: usize) |real| {
        // SAFETY: the call's own out-parameter.
        if let Some(result) = unsafe { managed(address, bytes as u64, || paging::take(bytes as u64)) } {
            return result;
        }
        let (at, bytes) = (throttle::here(), bytes as u64);
        if movable::wants(bytes) && !address.is_null() {
            // SAFETY: the call's own out-parameter, not null.
            return unsafe { allocate_movable(at, address, bytes, real) };
        }
        // SAFETY: the call's own out-parameter.
        unsafe { allocate(at, AllocationKind::Plain, address, bytes, real) }
    }
    fn cuMemAllocManaged(address: *mut CuDevicePtr, bytes: usize, flags: u32) |real| {
        let born = ENDS.load(Ordering::Acquire);
        let result = real();
        // SAFETY: the driver wrote the address.
        if result.ok() && let Some(address) = unsafe { written(address.cast_const()) } {
            let (at, kind, context) = (throttle::here(), AllocationKind::Own, current_context());
            let block = Block { bytes: bytes as u64, at, kind, context, born };
            taken(address, block, 0);
        }
        result
    }
    fn cuMemAllocPitch_v2(
        address: *mut CuDevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32,
    ) |real| {
        // Arguments that the driver would refuse go to the driver.
        let sound = !pitch.is_null() && width > 0 && height > 0 && matches!(element, 4 | 8 | 16);
        if paging::settled() && sound && !capture::any()
            && let Some(row) = backing::pitch(width as u64, element)
        {
            let bytes = row.saturating_mul(height as u64);
            // SAFETY: the call's own out-parameter.
            if let Some(result) = unsafe { managed(address, bytes, || paging::take(bytes)) } {
                if result.ok() {
                    // SAFETY: the call's own out-parameter, not null.
                    unsafe { pitch.write(row as usize) };
                }
                return result;
            }
        }
        if sound && !address.is_null() && !capture::any()
            && movable::wants((width as u64).saturating_mul(height as u64))
            && let Some(row) = backing::pitch(width as u64, element)
        {
            let bytes = row.saturating_mul(height as u64);
            // SAFETY: the call's own out-parameter, not null.
            let result = unsafe { allocate_movable(throttle::here(), address, bytes, real) };
            if result.ok() {
                // The driver's own pitch, if the memory is plain.
                // SAFETY: the call's own out-parameter, not null.
                unsafe { pitch.write(row as usize) };
            }
            return result;
        }
        // The driver rounds each row up to some hundred bytes.
        let least = (width as u64).saturating_mul(height as u64);
        let (at, born) = (throttle::here(), ENDS.load(Ordering::Acquire));
        within_quota(at, least, real, |claimed| {
            // SAFETY: the driver wrote both.
            let (Some(address), Some(pitch)) = (unsafe { written(address) }, unsafe { written(pitch) }) else {
                return false;
            };
            let bytes = (pitch as u64).saturating_mul(height as u64);
            let (kind, context) = (AllocationKind::Plain, current_context());
            taken(address, Block { bytes, at, kind, context, born }, claimed);
            true
        })
    }
    fn cuMemFree_v2(address: CuDevicePtr) |real| {
        if paging::managed() {
            return free(address, || backing::give_back(address, real));
        }
        let result = free_block(address, None, real);
        // The memory may belong to a pool or a graph, and this free is a sync point.
        pools::synced();
        result
    }
    fn cuMemAllocAsync(address: *mut CuDevicePtr, bytes: usize, stream: CuStream) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { allocate_on(address, bytes, None, stream, real) }
    }
    fn cuMemAllocAsync_ptsz(address: *mut CuDevicePtr, bytes: usize, stream: CuStream) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { allocate_on(address, bytes, None, per_thread(stream), real) }
    }
    fn cuMemAllocFromPoolAsync(address: *mut CuDevicePtr, bytes: usize, pool: usize, stream: CuStream) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { allocate_on(address, bytes, Some(pool), stream, real) }
    }
    fn cuMemAllocFromPoolAsync_ptsz(address: *mut CuDevicePtr, bytes: usize, pool: usize, stream: CuStream) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { allocate_on(address, bytes, Some(pool), per_thread(stream), real) }
    }
    fn cuMemFreeAsync(address: CuDevicePtr, stream: CuStream) |real| { free_on(address, stream, real) }
    fn cuMemFreeAsync_ptsz(address: CuDevicePtr, stream: CuStream) |real| { free_on(address, per_thread(stream), real) }
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const AllocationProperties, flags: u64) |real| {
        // SAFETY: the client's promise to the driver, which reads them next.
        let properties = unsafe { written(properties) };
        let Some(properties) = properties.filter(|properties| properties.location_kind == LOCATION_DEVICE) else {
            return real();
        };
        let at = throttle::of_device(properties.location_id);
        within_quota(at, bytes as u64, real, |claimed| {
            // SAFETY: the driver wrote the handle.
            let Some(handle) = (unsafe { written(handle.cast_const()) }) else {
                return false;
            };
            guarded(|| {
                let physical = Physical { bytes: bytes as u64, at, uses: 1 };
                // Memory known by this handle ended without a call that weft saw.
                if let Some(before) = HANDLES.insert(handle, physical) {
                    before.changed(false, 0);
                }
                physical.changed(true, claimed);
            });
            static SAID: AtomicBool = AtomicBool::new(false);
            unmanageable("memory that the job maps itself (cuMemCreate)", &SAID);
            true
        })
    }
    /// The memory lives on while it is mapped or its handle is retained.
    fn cuMemRelease(handle: u64) |real| {
        let known = HANDLES.get(&handle).map(|physical| physical.at);
        let _change = guarded(|| throttle::changing(known.unwrap_or(DeviceNumber::FIRST)));
        let last = guarded(|| let_go(handle)).flatten();
        let result = real();
        if !result.ok() && known.is_some() {
            guarded(|| take_back(handle, last));
        }
        result
    }
    fn cuMemMap(address: CuDevicePtr, bytes: usize, offset: usize, handle: u64, flags: u64) |real| {
        // Before the call: after it, another thread may have released the handle.
        let known = guarded(|| hold(handle)).unwrap_or(false);
        let result = real();
        if known {
            let bytes = bytes as u64;
            guarded(|| match result.ok() {
                true => drop(lock(&MAPPED).insert(address, Mapped { bytes, handle })),
                false => drop(let_go(handle)),
            });
        }
        result
    }
    fn cuMemUnmap(address: CuDevicePtr, bytes: usize) |real| {
        // Before the call: after it, another thread may map the range or get the handle anew.
        let out = guarded(|| unmapped(address, bytes as u64)).unwrap_or_default();
        let place = |mapped: &Mapped| HANDLES.get(&mapped.handle).map(|physical| physical.at);
        let changes = out.iter().filter_map(|(_, mapped)| guarded(|| throttle::changing(place(mapped)?)).flatten());
        let changes: Vec<throttle::MemoryChange> = changes.collect();
        let gone = out.into_iter().map(|(start, mapped)| {
            let last = guarded(|| let_go(mapped.handle)).flatten();
            (start, mapped, last)
        });
        let gone: Vec<_> = gone.collect();
        let result = real();
        if !result.ok() {
            for (start, mapped, last) in gone {
                guarded(|| {
                    take_back(mapped.handle, last);
                    lock(&MAPPED).insert(start, mapped);
                });
            }
        }
        drop(changes);
        result
    }
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void) |real| {
        let mapped = guarded(|| mapped_at(address as u64)).flatten();
        // Before the call, as for mappings.
        let held = mapped.map(|mapped| mapped.handle).filter(|handle| guarded(|| hold(*handle)).unwrap_or(false));
        let result = real();
        // SAFETY: the driver wrote the handle.
        let got = if result.ok() { unsafe { written(handle.cast_const()) } } else { None };
        if got != held {
            guarded(|| {
                held.map(let_go);
                got.map(hold)
            });
        }
        result
    }
}
