// SPDX-License-Identifier: MIT OR Apache-2.0
//! A libcuda whose launch only counts.
//!
//! `scripts/bench launch` measures with it how much weft adds to a launch: with a driver that does
//! nothing, all measured time is weft's. It answers just enough for a program that loads a module,
//! launches, records events and synchronises. Every other symbol of the table answers
//! `CUDA_ERROR_NOT_SUPPORTED`. It counts the launches before each call of the other functions, so
//! that a test can check the order in which calls arrive. `NULLCUDA_LAUNCH_NS` makes a launch busy
//! for this time, which is closer to a real driver. Work "ends" at once: every query reports its
//! end. Between two events a kernel took [`KERNEL_MS`].
#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

use code::*;
use graph::*;

const SUCCESS: i32 = 0;
const INVALID_VALUE: i32 = 1;
const NOT_FOUND: i32 = 500;
const NOT_SUPPORTED: i32 = 801;
/// CUDA 13.2, the version that the simulated GPU reports.
const VERSION: c_int = 13020;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM` in cuda.h.
const PER_THREAD: u64 = 2;
/// Handles that clients get: never dereferenced, different from zero and from the special streams 1
/// and 2.
const CONTEXT: usize = 0x1000;
const STREAM: usize = 0x4000;
const EVENT: usize = 0x5000;
const MEMORY: u64 = 0x7000_0000_0000;
/// Number of event handles, from [`EVENT`] on. After the last one they start again at the first.
const EVENTS: usize = 4096;
/// Time between two events without a launch in between, ms.
const EVENTS_MS: f32 = 0.001;
/// Time of a launch between two events, ms. With less, no launch would wait at weft's gate.
const KERNEL_MS: f32 = 0.02;

/// An address that may be in a static: it is code, which no thread writes.
struct Address(*const ());
// SAFETY: the pointer is the address of a function; reading it from any thread is harmless.
unsafe impl Sync for Address {}

/// One symbol, in the form in which `cuGetProcAddress` looks for it.
struct DriverSymbol {
    symbol: &'static CStr,
    base: &'static CStr,
    since: u32,
    per_thread: bool,
    address: Address,
}

static LAUNCHES: AtomicU64 = AtomicU64::new(0);
static SYNCS: AtomicU64 = AtomicU64::new(0);
static CREATED: AtomicUsize = AtomicUsize::new(0);
/// Number of launches when each event was last recorded.
static RECORDED: [AtomicU64; EVENTS] = [const { AtomicU64::new(0) }; EVENTS];

/// Kernel launches that reached this driver.
#[unsafe(no_mangle)]
pub extern "C" fn nullcuda_launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// Synchronising calls that reached this driver.
#[unsafe(no_mangle)]
pub extern "C" fn nullcuda_syncs() -> u64 {
    SYNCS.load(Ordering::Relaxed)
}

/// Launches that had reached this driver when a symbol was last called, plus one; 0 if it never
/// was, or is not known.
///
/// # Safety
/// `symbol` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nullcuda_called(symbol: *const c_char) -> u64 {
    if symbol.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    let at = TABLE.iter().position(|entry| entry.symbol == symbol);
    at.and_then(|at| CALLED.get(at))
        .map_or(0, |called| called.load(Ordering::Relaxed))
}

/// Notes that the symbol at this place of the table was called now.
fn called(at: usize) {
    if let Some(called) = CALLED.get(at) {
        called.store(LAUNCHES.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Number of launches when an event was recorded, if the handle is an event.
fn recorded(event: usize) -> Option<&'static AtomicU64> {
    RECORDED.get(event.checked_sub(EVENT)?)
}

fn new_event() -> usize {
    EVENT + CREATED.fetch_add(1, Ordering::Relaxed) % EVENTS
}

fn record(event: usize) -> i32 {
    if let Some(recorded) = recorded(event) {
        recorded.store(LAUNCHES.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    SUCCESS
}

fn elapsed(from: usize, to: usize) -> f32 {
    let at = |event| recorded(event).map_or(0, |at| at.load(Ordering::Relaxed));
    EVENTS_MS + KERNEL_MS * at(to).saturating_sub(at(from)) as f32
}

/// Writes an answer if the caller passed a place for it.
fn put<T>(out: *mut T, value: T) -> i32 {
    if out.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and the caller of a driver function hands in a place for the answer.
    unsafe { out.write(value) };
    SUCCESS
}

#[inline]
fn launch() -> i32 {
    static BUSY: OnceLock<u64> = OnceLock::new();
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    let busy = *BUSY.get_or_init(|| {
        std::env::var("NULLCUDA_LAUNCH_NS")
            .ok()
            .and_then(|ns| ns.parse().ok())
            .unwrap_or(0)
    });
    if busy > 0 {
        let until = Instant::now() + Duration::from_nanos(busy);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
    SUCCESS
}

fn sync() -> i32 {
    SYNCS.fetch_add(1, Ordering::Relaxed);
    SUCCESS
}

fn find(name: *const c_char, version: c_int, flags: u64) -> Option<*const ()> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller hands in a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let usable = |entry: &&DriverSymbol| entry.base == name && i64::from(entry.since) <= i64::from(version);
    let best = |per_thread: bool| {
        TABLE
            .iter()
            .filter(usable)
            .filter(|entry| entry.per_thread == per_thread)
            .max_by_key(|entry| entry.since)
    };
    let plain = best(false);
    let chosen = if flags & PER_THREAD != 0 {
        best(true).or(plain)
    } else {
        plain
    };
    chosen.map(|entry| entry.address.0)
}

/// Declares entry points that clients of the benchmark call.
macro_rules! entry_points {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $($(#[$doc])* #[allow(clippy::too_many_arguments, unused_variables)] #[unsafe(no_mangle)] pub(crate) extern "C" fn $name($($arg: $type),*) -> i32 $body)*
    };
}

mod code;
mod graph;

entry_points! {
    fn cuInit(flags: c_uint) { SUCCESS }
    fn cuDriverGetVersion(out: *mut c_int) { put(out, VERSION) }
    fn cuGetProcAddress(name: *const c_char, out: *mut *const (), version: c_int, flags: u64) {
        match find(name, version, flags) {
            Some(address) => put(out, address),
            None => NOT_FOUND,
        }
    }
    fn cuGetProcAddress_v2(name: *const c_char, out: *mut *const (), version: c_int, flags: u64, status: *mut c_int) {
        let found = find(name, version, flags);
        if !status.is_null() {
            // 0: found, 1: not found (CUdriverProcAddressQueryResult).
            put(status, c_int::from(found.is_none()));
        }
        put(out, found.unwrap_or(std::ptr::null()));
        if found.is_some() { SUCCESS } else { NOT_FOUND }
    }
    fn cuDeviceGetCount(out: *mut c_int) { put(out, 1) }
    fn cuDeviceGet(out: *mut c_int, ordinal: c_int) { put(out, ordinal) }
    fn cuDeviceGetName(out: *mut c_char, length: c_int, device: c_int) {
        let name = c"null driver";
        if out.is_null() || usize::try_from(length).is_ok_and(|length| length < name.count_bytes() + 1) {
            return INVALID_VALUE;
        }
        // SAFETY: `out` has room for `length` bytes, which was checked to be enough.
        unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), out, name.count_bytes() + 1) };
        SUCCESS
    }
    fn cuDeviceTotalMem_v2(out: *mut usize, device: c_int) { put(out, 1 << 34) }
    fn cuDeviceGetUuid(out: *mut [u8; 16], device: c_int) { put(out, *b"null-driver-uuid") }
    fn cuDeviceGetUuid_v2(out: *mut [u8; 16], device: c_int) { put(out, *b"null-driver-uuid") }
    fn cuDeviceGetAttribute(out: *mut c_int, attribute: c_int, device: c_int) { put(out, 1) }
    fn cuDevicePrimaryCtxRetain(out: *mut usize, device: c_int) { put(out, CONTEXT) }
    fn cuCtxCreate_v2(out: *mut usize, flags: c_uint, device: c_int) { put(out, CONTEXT) }
    fn cuCtxSetCurrent(context: usize) { SUCCESS }
    fn cuCtxGetCurrent(out: *mut usize) { put(out, CONTEXT) }
    fn cuCtxPushCurrent_v2(context: usize) { SUCCESS }
    fn cuCtxPopCurrent_v2(out: *mut usize) { SUCCESS }
    fn cuCtxGetDevice(out: *mut c_int) { put(out, 0) }
    fn cuStreamCreate(out: *mut usize, flags: c_uint) { put(out, STREAM) }
    fn cuStreamDestroy_v2(stream: usize) { SUCCESS }
    fn cuStreamSynchronize(stream: usize) { called(at::cuStreamSynchronize); sync() }
    fn cuStreamQuery(stream: usize) { called(at::cuStreamQuery); SUCCESS }
    fn cuCtxSynchronize() { called(at::cuCtxSynchronize); sync() }
    fn cuEventCreate(out: *mut usize, flags: c_uint) { put(out, new_event()) }
    fn cuEventRecord(event: usize, stream: usize) { called(at::cuEventRecord); record(event) }
    fn cuEventQuery(event: usize) { called(at::cuEventQuery); SUCCESS }
    fn cuEventSynchronize(event: usize) { called(at::cuEventSynchronize); sync() }
    fn cuEventElapsedTime(out: *mut f32, from: usize, to: usize) { put(out, elapsed(from, to)) }
    fn cuEventElapsedTime_v2(out: *mut f32, from: usize, to: usize) { put(out, elapsed(from, to)) }
    fn cuEventDestroy_v2(event: usize) { SUCCESS }
    fn cuMemAlloc_v2(out: *mut u64, bytes: usize) { put(out, MEMORY) }
    fn cuMemFree_v2(address: u64) { SUCCESS }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) { called(at::cuMemcpyHtoDAsync_v2); SUCCESS }
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) { called(at::cuMemsetD8Async); SUCCESS }
    /// Every kernel has three parameters of eight bytes.
    fn cuFuncGetParamInfo(function: usize, at: usize, offset: *mut usize, size: *mut usize) {
        if at < 3 { put(offset, 8 * at) | put(size, 8) } else { INVALID_VALUE }
    }
    fn cuLaunchKernel(
        function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: usize, parameters: *const *const c_void, extra: *const *const c_void,
    ) { launch() }
    fn cuLaunchKernel_ptsz(
        function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: usize, parameters: *const *const c_void, extra: *const *const c_void,
    ) { launch() }
    fn cuLaunchKernelEx(config: *const c_void, function: usize, parameters: *const *const c_void, extra: *const *const c_void) { launch() }
    fn cuLaunchKernelEx_ptsz(config: *const c_void, function: usize, parameters: *const *const c_void, extra: *const *const c_void) { launch() }
}
