//! Device memory that a process takes and gives back.
//!
//! Counted where the driver hands it out: allocations of every kind and physical memory for mapping, not address ranges (clients
//! reserve tens of gigabytes of those) and not host memory. What a context takes with it when it ends is not seen here. The
//! oldest versions of these functions have 32-bit device addresses, which no device of today gives out.
//!
//! For a job on managed memory (see [`crate::memory`]) these calls take and free managed memory instead, and answer as the driver would.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dashmap::DashMap;

use super::{capture, hooks, per_thread, written};
use crate::abi::{AllocationProperties, CuDevicePtr, CuResult, CuStream, LOCATION_DEVICE};
use crate::memory::backing::{self, Taken};
use crate::memory::ranges::Origin;
use crate::memory::{self, pool};
use crate::real;
use crate::session::{self, Stream, StreamOp, Where};
use crate::trouble::guarded;

/// What the process took.
#[derive(Debug, Clone, Copy)]
struct Block {
    bytes: u64,
    /// On which of its devices.
    at: Where,
}

type Blocks = LazyLock<DashMap<u64, Block>>;

/// What is behind each address that the process got.
static ADDRESSES: Blocks = LazyLock::new(DashMap::new);
/// What is behind each handle of physical memory.
static HANDLES: Blocks = LazyLock::new(DashMap::new);

fn taken(map: &'static Blocks, key: u64, block: Block) {
    guarded(|| {
        let before = map.insert(key, block);
        plain_changed(key, before.map_or(0, |before| before.bytes), block.bytes);
        match before {
            Some(before) if before.at == block.at => change(block.at, block.bytes, before.bytes),
            Some(before) => {
                change(before.at, 0, before.bytes);
                change(block.at, block.bytes, 0);
            }
            None => change(block.at, block.bytes, 0),
        }
    });
}

fn given_back(map: &'static Blocks, key: u64) {
    guarded(|| {
        if let Some((_, block)) = map.remove(&key) {
            plain_changed(key, block.bytes, 0);
            change(block.at, 0, block.bytes);
        }
    });
}

/// The place of what is about to be given back.
fn place(map: &'static Blocks, key: u64) -> Option<Block> {
    map.get(&key).map(|block| *block)
}

/// Bytes that a job on managed memory holds as device memory all the same.
static PLAIN: AtomicU64 = AtomicU64::new(0);

/// Bytes that a job on managed memory holds as device memory all the same.
pub fn plain() -> u64 {
    PLAIN.load(Ordering::Relaxed)
}

/// What the job itself took as managed memory: neither ours nor the device's.
static OWN_MANAGED: LazyLock<DashMap<u64, ()>> = LazyLock::new(DashMap::new);

/// Device memory that a managed job has taken or given back.
fn plain_changed(key: u64, before: u64, after: u64) {
    if memory::managed() && memory::ranges::at(key).is_none() && !OWN_MANAGED.contains_key(&key) {
        let _ = PLAIN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |plain| {
            Some(plain.saturating_add(after).saturating_sub(before))
        });
    }
}

fn change(at: Where, taken: u64, given_back: u64) {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    session::memory_changed(at, signed(taken).saturating_sub(signed(given_back)));
}

/// # Safety
/// `address` is the out-parameter of `real`.
unsafe fn allocate(at: Where, address: *const CuDevicePtr, bytes: u64, real: impl Fn() -> CuResult) -> CuResult {
    within_share(at, bytes, || {
        let result = real();
        if result.ok() {
            // SAFETY: the driver wrote the address.
            if let Some(address) = unsafe { written(address) } {
                taken(&ADDRESSES, address, Block { bytes, at });
            }
        }
        result
    })
}

/// Takes memory there if the job may have so much more; else there is none, as CUDA says it. `take` counts what it took.
fn within_share(at: Where, bytes: u64, take: impl Fn() -> CuResult) -> CuResult {
    if memory::settled() {
        return take();
    }
    // A trouble of ours forbids nothing.
    if !guarded(|| session::claim(at, bytes)).unwrap_or(true) {
        return CuResult::OUT_OF_MEMORY;
    }
    let moving = guarded(|| session::moving(at));
    let result = session::patiently(at, take);
    drop(moving);
    guarded(|| session::unclaim(at, bytes));
    // What is free is asked of the current context's device.
    if result.ok() && !capture::any() && session::here() == at {
        // With the first memory of a process its context is there too: what nobody is known to hold is the context's.
        if let Some(look) = guarded(|| session::looks(at)).flatten() {
            let (mut free, mut total) = (0, 0);
            // SAFETY: both out-parameters are valid.
            if unsafe { real::cuMemGetInfo_v2(&mut free, &mut total) }.ok() {
                guarded(|| session::looked(at, look, free as u64));
            }
        }
    }
    result
}

/// The out-parameter gets managed memory, if the job is to have it. `None`: the job's own call is to be made.
///
/// # Safety
/// `address` is the out-parameter of a call that takes memory.
unsafe fn managed(address: *mut CuDevicePtr, bytes: u64, take: impl FnOnce() -> Taken) -> Option<CuResult> {
    if !memory::settled() || address.is_null() {
        return None;
    }
    match guarded(take).unwrap_or(Taken::Plain) {
        Taken::Plain => None,
        Taken::Refused(error) => Some(error),
        Taken::At(at) => {
            // SAFETY: the caller's promise.
            unsafe { address.write(at) };
            // A managed job has one place for all its devices.
            let block = Block {
                bytes,
                at: Where::FIRST,
            };
            taken(&ADDRESSES, at, block);
            Some(CuResult::SUCCESS)
        }
    }
}

/// Memory that cannot be managed.
fn unmanageable(what: &str, said: &AtomicBool) {
    if memory::managed() {
        backing::stays_plain(said, &format!("{what} cannot be managed and stays device memory"));
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
    // In a capture this makes a node of a graph, which takes its memory when it is launched.
    if capture::on(stream) {
        return real();
    }
    session::before_stream_op(StreamOp::Other, 0, stream);
    let take = || match pool.or_else(pool::default_of_here) {
        Some(pool) => pool::take(bytes as u64, pool, stream),
        None => Taken::Plain,
    };
    // SAFETY: the caller's promise.
    if let Some(result) = unsafe { managed(address, bytes as u64, take) } {
        return result;
    }
    // SAFETY: the caller's promise.
    unsafe { allocate(session::of_stream(stream), address, bytes as u64, real) }
}

fn free(address: CuDevicePtr, real: impl FnOnce() -> CuResult) -> CuResult {
    // Before the call: after it, another thread may get this address anew.
    let block = place(&ADDRESSES, address);
    let _moving = guarded(|| session::moving(block.map_or(Where::FIRST, |block| block.at)));
    let own = OWN_MANAGED.remove(&address).is_some();
    given_back(&ADDRESSES, address);
    let result = real();
    if !result.ok()
        && let Some(block) = block
    {
        if own {
            OWN_MANAGED.insert(address, ());
        }
        taken(&ADDRESSES, address, block);
    }
    result
}

fn free_on(address: CuDevicePtr, stream: Stream, real: impl FnOnce() -> CuResult) -> CuResult {
    if capture::on(stream) {
        return real();
    }
    session::before_stream_op(StreamOp::Other, 0, stream);
    if memory::managed() && memory::ranges::at(address).is_some() {
        return free(address, || {
            pool::give_back(address, stream).unwrap_or(CuResult::INVALID_VALUE)
        });
    }
    free(address, real)
}

hooks! {
    fn cuMemAlloc_v2(address: *mut CuDevicePtr, bytes: usize) |real| {
        // SAFETY: the call's own out-parameter.
        if let Some(result) = unsafe { managed(address, bytes as u64, || backing::take(bytes as u64, Origin::Plain)) } {
            return result;
        }
        // SAFETY: the call's own out-parameter.
        unsafe { allocate(session::here(), address, bytes as u64, real) }
    }
    fn cuMemAllocManaged(address: *mut CuDevicePtr, bytes: usize, flags: u32) |real| {
        let result = real();
        if result.ok() {
            // SAFETY: the driver wrote the address.
            if let Some(address) = unsafe { written(address.cast_const()) } {
                guarded(|| OWN_MANAGED.insert(address, ()));
                let (bytes, at) = (bytes as u64, session::here());
                taken(&ADDRESSES, address, Block { bytes, at });
            }
        }
        result
    }
    fn cuMemAllocPitch_v2(
        address: *mut CuDevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32,
    ) |real| {
        // What the driver would refuse it refuses itself.
        let sound = !pitch.is_null() && width > 0 && height > 0 && matches!(element, 4 | 8 | 16);
        if memory::settled() && sound && !capture::any()
            && let Some(row) = backing::pitch(width as u64, element)
        {
            let bytes = row.saturating_mul(height as u64);
            // SAFETY: the call's own out-parameter.
            if let Some(result) = unsafe { managed(address, bytes, || backing::take(bytes, Origin::Plain)) } {
                if result.ok() {
                    // SAFETY: the call's own out-parameter, not null.
                    unsafe { pitch.write(row as usize) };
                }
                return result;
            }
        }
        // The driver rounds each row up to some hundred bytes.
        let least = (width as u64).saturating_mul(height as u64);
        let at = session::here();
        within_share(at, least, || {
            let result = real();
            if result.ok() {
                // SAFETY: the driver wrote both.
                if let (Some(address), Some(pitch)) = (unsafe { written(address) }, unsafe { written(pitch) }) {
                    let bytes = (pitch as u64).saturating_mul(height as u64);
                    taken(&ADDRESSES, address, Block { bytes, at });
                }
            }
            result
        })
    }
    fn cuMemFree_v2(address: CuDevicePtr) |real| {
        if memory::managed() {
            return free(address, || backing::give_back(address, real));
        }
        free(address, real)
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
        let at = session::of_device(properties.location_id);
        within_share(at, bytes as u64, || {
            let result = real();
            // SAFETY: the driver wrote the handle.
            if result.ok() && let Some(handle) = unsafe { written(handle.cast_const()) } {
                let bytes = bytes as u64;
                taken(&HANDLES, handle, Block { bytes, at });
                static SAID: AtomicBool = AtomicBool::new(false);
                unmanageable("what the job maps itself (cuMemCreate)", &SAID);
            }
            result
        })
    }
    fn cuMemRelease(handle: u64) |real| {
        let block = place(&HANDLES, handle);
        let _moving = guarded(|| session::moving(block.map_or(Where::FIRST, |block| block.at)));
        given_back(&HANDLES, handle);
        let result = real();
        if !result.ok() && let Some(block) = block {
            taken(&HANDLES, handle, block);
        }
        result
    }
}
