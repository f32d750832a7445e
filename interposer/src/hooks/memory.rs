//! Device memory that a process takes and gives back.
//!
//! Counted where the driver hands it out: allocations of every kind and physical memory for mapping, not address ranges (clients
//! reserve tens of gigabytes of those) and not host memory. What a context takes with it when it ends is not seen here. The
//! oldest versions of these functions have 32-bit device addresses, which no device of today gives out.

use std::sync::LazyLock;

use dashmap::DashMap;

use super::{capture, hooks, per_thread, written};
use crate::abi::{AllocationProperties, CuDevicePtr, CuResult, CuStream, LOCATION_DEVICE};
use crate::session::{self, Stream, StreamOp};
use crate::trouble::guarded;

/// Bytes behind each address that the process got.
static ADDRESSES: LazyLock<DashMap<u64, u64>> = LazyLock::new(DashMap::new);
/// Bytes behind each handle of physical memory.
static HANDLES: LazyLock<DashMap<u64, u64>> = LazyLock::new(DashMap::new);

fn taken(map: &'static LazyLock<DashMap<u64, u64>>, key: u64, bytes: u64) {
    guarded(|| {
        let before = map.insert(key, bytes).unwrap_or(0);
        change(bytes, before);
    });
}

fn given_back(map: &'static LazyLock<DashMap<u64, u64>>, key: u64) {
    guarded(|| {
        if let Some((_, bytes)) = map.remove(&key) {
            change(0, bytes);
        }
    });
}

fn change(taken: u64, given_back: u64) {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    session::memory_changed(signed(taken).saturating_sub(signed(given_back)));
}

/// # Safety
/// `address` is the out-parameter of `real`.
unsafe fn allocate(address: *const CuDevicePtr, bytes: u64, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if result.ok() {
        // SAFETY: the driver wrote the address.
        if let Some(address) = unsafe { written(address) } {
            taken(&ADDRESSES, address, bytes);
        }
    }
    result
}

/// # Safety
/// `address` is the out-parameter of `real`.
unsafe fn allocate_on(
    address: *const CuDevicePtr,
    bytes: usize,
    stream: Stream,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    // In a capture this makes a node of a graph, which takes its memory when it is launched.
    if capture::on(stream) {
        return real();
    }
    session::before_stream_op(StreamOp::Other, 0, stream);
    // SAFETY: the caller's promise.
    unsafe { allocate(address, bytes as u64, real) }
}

fn free(address: CuDevicePtr, real: impl FnOnce() -> CuResult) -> CuResult {
    // Before the call: after it, another thread may get this address anew.
    let bytes = ADDRESSES.get(&address).map(|bytes| *bytes);
    given_back(&ADDRESSES, address);
    let result = real();
    if !result.ok()
        && let Some(bytes) = bytes
    {
        taken(&ADDRESSES, address, bytes);
    }
    result
}

fn free_on(address: CuDevicePtr, stream: Stream, real: impl FnOnce() -> CuResult) -> CuResult {
    if capture::on(stream) {
        return real();
    }
    session::before_stream_op(StreamOp::Other, 0, stream);
    free(address, real)
}

hooks! {
    fn cuMemAlloc_v2(address: *mut CuDevicePtr, bytes: usize) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { allocate(address, bytes as u64, real) }
    }
    fn cuMemAllocManaged(address: *mut CuDevicePtr, bytes: usize, flags: u32) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { allocate(address, bytes as u64, real) }
    }
    fn cuMemAllocPitch_v2(
        address: *mut CuDevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32,
    ) |real| {
        let result = real();
        if result.ok() {
            // SAFETY: the driver wrote both.
            if let (Some(address), Some(pitch)) = (unsafe { written(address) }, unsafe { written(pitch) }) {
                taken(&ADDRESSES, address, (pitch as u64).saturating_mul(height as u64));
            }
        }
        result
    }
    fn cuMemFree_v2(address: CuDevicePtr) |real| { free(address, real) }
    fn cuMemAllocAsync(address: *mut CuDevicePtr, bytes: usize, stream: CuStream) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { allocate_on(address, bytes, stream, real) }
    }
    fn cuMemAllocAsync_ptsz(address: *mut CuDevicePtr, bytes: usize, stream: CuStream) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { allocate_on(address, bytes, per_thread(stream), real) }
    }
    fn cuMemAllocFromPoolAsync(address: *mut CuDevicePtr, bytes: usize, pool: usize, stream: CuStream) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { allocate_on(address, bytes, stream, real) }
    }
    fn cuMemAllocFromPoolAsync_ptsz(address: *mut CuDevicePtr, bytes: usize, pool: usize, stream: CuStream) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { allocate_on(address, bytes, per_thread(stream), real) }
    }
    fn cuMemFreeAsync(address: CuDevicePtr, stream: CuStream) |real| { free_on(address, stream, real) }
    fn cuMemFreeAsync_ptsz(address: CuDevicePtr, stream: CuStream) |real| { free_on(address, per_thread(stream), real) }
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const AllocationProperties, flags: u64) |real| {
        let result = real();
        if result.ok() {
            // SAFETY: the driver read the properties.
            let properties = unsafe { written(properties) };
            // SAFETY: the driver wrote the handle.
            let handle = unsafe { written(handle.cast_const()) };
            if let (Some(properties), Some(handle)) = (properties, handle)
                && properties.location_kind == LOCATION_DEVICE
            {
                taken(&HANDLES, handle, bytes as u64);
            }
        }
        result
    }
    fn cuMemRelease(handle: u64) |real| {
        let bytes = HANDLES.get(&handle).map(|bytes| *bytes);
        given_back(&HANDLES, handle);
        let result = real();
        if !result.ok() && let Some(bytes) = bytes {
            taken(&HANDLES, handle, bytes);
        }
        result
    }
}
