// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel names from the driver, for handles that the client got without a call that weft saw.
//! Never call these functions during a capture.

use std::ffi::{CStr, c_char};

use crate::driver::abi::{CuFunction, CuKernel, CuLibrary, CuModule};
use crate::driver::calls;

/// Module (0: unknown) and symbol of a function.
pub fn function_name(function: CuFunction) -> Option<(CuModule, String)> {
    let mut name = std::ptr::null();
    // SAFETY: valid out-parameter; the client is about to launch this handle.
    if !unsafe { calls::cuFuncGetName(&mut name, function) }.ok() {
        return None;
    }
    // SAFETY: null, or a C string that lives as long as the function.
    let symbol = unsafe { text(name) }?;
    let mut module = 0;
    // SAFETY: valid out-parameter.
    let _ = unsafe { calls::cuFuncGetModule(&mut module, function) };
    (!symbol.is_empty()).then_some((module, symbol))
}

/// Library and symbol of a library kernel launched by its own handle, which function queries do not
/// know.
pub fn kernel_name(kernel: CuKernel) -> Option<(CuLibrary, String)> {
    let mut name = std::ptr::null();
    // SAFETY: as in `function_name`; the driver does not treat the handle as a function.
    if !unsafe { calls::cuKernelGetName(&mut name, kernel) }.ok() {
        return None;
    }
    // SAFETY: null, or a C string that lives as long as the kernel.
    let symbol = unsafe { text(name) }?;
    let mut library = 0;
    // SAFETY: valid out-parameter.
    let _ = unsafe { calls::cuKernelGetLibrary(&mut library, kernel) };
    (!symbol.is_empty()).then_some((library, symbol))
}

pub fn function_of(kernel: CuKernel) -> Option<CuFunction> {
    let mut function = 0;
    // SAFETY: valid out-parameter; the kernel's library is loaded.
    unsafe { calls::cuKernelGetFunction(&mut function, kernel) }
        .ok()
        .then_some(function)
}

/// A C string of the driver; `None` for null.
///
/// # Safety
/// `name` is null or a C string.
pub unsafe fn text(name: *const c_char) -> Option<String> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}
