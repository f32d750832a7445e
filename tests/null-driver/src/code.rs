// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code, kernels and captures: enough for a test to see whether a layer above separates names and
//! captures.
//!
//! Handles are made up: a number for each module, library and name, never reused and never
//! dereferenced.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{INVALID_VALUE, SUCCESS, put};

/// Stands for CUDA_ERROR_STREAM_CAPTURE_INVALIDATED and the like, which are the same here.
const NOT_CAPTURING: i32 = 400;

/// Names of the kernels handed out, by handle.
static KERNELS: Mutex<BTreeMap<usize, CString>> = Mutex::new(BTreeMap::new());
/// The stream that is being captured; 0 for none.
static CAPTURED: AtomicUsize = AtomicUsize::new(0);

/// A handle that no other object has.
pub fn fresh() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2_0000);
    NEXT.fetch_add(0x40, Ordering::Relaxed)
}

fn kernel(out: *mut usize, name: *const c_char) -> i32 {
    if name.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller of a driver function hands in a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let handle = fresh();
    let mut kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    kernels.insert(handle, name.to_owned());
    put(out, handle)
}

fn name(out: *mut *const c_char, handle: usize) -> i32 {
    // A copy of its own, so that the answer outlives the lock; a test makes only a few such calls.
    let kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    match kernels.get(&handle) {
        Some(name) => put(out, name.clone().into_raw().cast_const()),
        None => INVALID_VALUE,
    }
}

fn capture(stream: usize) -> i32 {
    CAPTURED.store(stream, Ordering::Relaxed);
    SUCCESS
}

entry_points! {
    fn cuModuleLoadData(out: *mut usize, image: *const c_void) { put(out, fresh()) }
    fn cuModuleLoadDataEx(out: *mut usize, image: *const c_void, count: c_uint, options: *const c_void, values: *const c_void) {
        put(out, fresh())
    }
    fn cuModuleUnload(module: usize) { SUCCESS }
    fn cuModuleGetFunction(out: *mut usize, module: usize, symbol: *const c_char) { kernel(out, symbol) }
    fn cuLibraryLoadData(
        out: *mut usize, code: *const c_void, options: *const c_void, values: *const c_void, count: c_uint,
        library_options: *const c_void, library_values: *const c_void, library_count: c_uint,
    ) { put(out, fresh()) }
    fn cuLibraryUnload(library: usize) { SUCCESS }
    fn cuLibraryGetKernel(out: *mut usize, library: usize, symbol: *const c_char) { kernel(out, symbol) }
    fn cuLibraryGetModule(out: *mut usize, library: usize) { put(out, library + 8) }
    fn cuKernelGetFunction(out: *mut usize, kernel: usize) { put(out, kernel + 8) }
    fn cuFuncGetName(out: *mut *const c_char, function: usize) { name(out, function) }
    fn cuKernelGetName(out: *mut *const c_char, kernel: usize) { name(out, kernel) }
    fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) { capture(stream) }
    fn cuStreamIsCapturing(stream: usize, out: *mut c_int) {
        put(out, c_int::from(stream != 0 && CAPTURED.load(Ordering::Relaxed) == stream))
    }
    fn cuStreamEndCapture(stream: usize, graph: *mut usize) {
        if CAPTURED.load(Ordering::Relaxed) != stream {
            return NOT_CAPTURING;
        }
        capture(0);
        put(graph, fresh())
    }
}
