// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first calls of a process, and the answers without a driver.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::declare::{hooks, written};
use super::proc_address;
use crate::deferred::tables::{self, Identity};
use crate::driver::abi::{CuResult, PROC_ADDRESS_PER_THREAD};
use crate::driver::symbols;
use crate::internal_error::guarded;
use crate::lifecycle;

hooks! {
    fn cuInit(flags: u32) |real| {
        let result = real();
        if result.ok() {
            lifecycle::initialised();
        }
        result
    }

    /// The table is handed out unchanged: the runtime's self-test covers its address.
    fn cuGetExportTable(table: *mut *const c_void, identity: *const Identity) |real| {
        let result = real();
        // SAFETY: the driver read the identity.
        let identity = unsafe { written(identity) };
        // SAFETY: the driver wrote the table, or null.
        let table = unsafe { written(table) };
        if let Some(identity) = identity {
            guarded(|| tables::asked(identity, result.ok() && table.is_some_and(|table| !table.is_null())));
        }
        result
    }

    fn cuGetProcAddress(name: *const c_char, function: *mut *mut (), version: c_int, flags: u64) |real| {
        let result = real();
        // SAFETY: the client's promise to the driver, which accepted these pointers.
        unsafe { proc_address::substitute(result, name, function, version, flags) };
        result
    }

    fn cuGetProcAddress_v2(
        name: *const c_char, function: *mut *mut (), version: c_int, flags: u64, status: *mut c_int,
    ) |real| {
        let result = real();
        // SAFETY: the client's promise to the driver, which accepted these pointers.
        unsafe { proc_address::substitute(result, name, function, version, flags) };
        result
    }
}

/// Entry point of a symbol without a driver. Lookups answer with weft's entry points. From `cuInit`
/// on calls answer that there is no device. The error texts of that answer are available.
pub fn without_driver(at: usize) -> Option<*const ()> {
    match at {
        symbols::index::cuGetProcAddress => Some(find_first as *const ()),
        symbols::index::cuGetProcAddress_v2 => Some(find_second as *const ()),
        symbols::index::cuGetErrorName => Some(error_name as *const ()),
        symbols::index::cuGetErrorString => Some(error_text as *const ()),
        _ => None,
    }
}

/// # Safety
/// `out` is null or writable.
unsafe fn put<T>(out: *mut T, value: T) -> CuResult {
    if out.is_null() {
        return CuResult::INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    CuResult::SUCCESS
}

/// # Safety
/// As `cuGetProcAddress`.
unsafe extern "C" fn find_first(name: *const c_char, function: *mut *mut (), version: c_int, flags: u64) -> CuResult {
    if name.is_null() {
        return CuResult::INVALID_VALUE;
    }
    // SAFETY: not null, so the client's promise makes it a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let per_thread = flags & PROC_ADDRESS_PER_THREAD != 0;
    let version = u32::try_from(version).unwrap_or(0);
    let found = name
        .to_str()
        .ok()
        .and_then(|name| proc_address::by_table(name, version, per_thread));
    match found.and_then(symbols::export) {
        // SAFETY: the client's promise.
        Some(export) => unsafe { put(function, export) },
        None => {
            // SAFETY: the client's promise. The driver clears it too.
            let _ = unsafe { put(function, std::ptr::null_mut()) };
            CuResult::NOT_FOUND
        }
    }
}

/// # Safety
/// As `cuGetProcAddress_v2`.
unsafe extern "C" fn find_second(
    name: *const c_char,
    function: *mut *mut (),
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> CuResult {
    // SAFETY: the client's promise.
    let result = unsafe { find_first(name, function, version, flags) };
    // CU_GET_PROC_ADDRESS_SUCCESS, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND.
    // SAFETY: the client's promise; null means that the status is not wanted.
    let _ = unsafe { put(status, c_int::from(!result.ok())) };
    result
}

/// # Safety
/// As `cuGetErrorName`.
unsafe extern "C" fn error_name(error: CuResult, text: *mut *const c_char) -> CuResult {
    // SAFETY: the client's promise.
    unsafe { put_text(error, text, [c"CUDA_SUCCESS", c"CUDA_ERROR_NO_DEVICE"]) }
}

/// # Safety
/// As `cuGetErrorString`.
unsafe extern "C" fn error_text(error: CuResult, text: *mut *const c_char) -> CuResult {
    // SAFETY: the client's promise.
    unsafe { put_text(error, text, [c"no error", c"no CUDA-capable device is detected"]) }
}

/// # Safety
/// `text` is null or writable.
unsafe fn put_text(error: CuResult, text: *mut *const c_char, texts: [&'static CStr; 2]) -> CuResult {
    let [success, no_device] = texts;
    match error {
        // SAFETY: the caller's promise.
        CuResult::SUCCESS => unsafe { put(text, success.as_ptr()) },
        // SAFETY: the caller's promise.
        CuResult::NO_DEVICE => unsafe { put(text, no_device.as_ptr()) },
        _ => {
            // SAFETY: the caller's promise.
            let _ = unsafe { put(text, std::ptr::null()) };
            CuResult::INVALID_VALUE
        }
    }
}
