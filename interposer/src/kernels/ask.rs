//! Kernel names from the driver, for handles that came to the client past weft.
//!
//! Each function calls the driver: never during a capture.

use std::ffi::{CStr, c_char};

use crate::driver::abi::{CuFunction, CuKernel, CuLibrary, CuModule};
use crate::driver::calls;

/// Module (0: unknown) and symbol of a function.
pub fn function_name(function: CuFunction) -> Option<(CuModule, String)> {
    let mut name = std::ptr::null();
    // SAFETY: the out-parameter is valid; the client is about to launch this handle.
    if !unsafe { calls::cuFuncGetName(&mut name, function) }.ok() {
        return None;
    }
    // SAFETY: the driver answered null or a C string that lives as long as the function.
    let symbol = unsafe { text(name) }?;
    let mut module = 0;
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { calls::cuFuncGetModule(&mut module, function) };
    (!symbol.is_empty()).then_some((module, symbol))
}

/// Library and symbol of a library kernel that a client launches by its own handle. Function
/// queries do not know such a handle.
pub fn kernel_name(kernel: CuKernel) -> Option<(CuLibrary, String)> {
    let mut name = std::ptr::null();
    // SAFETY: the out-parameter is valid; the client is about to launch this handle, which is no
    // function to the driver.
    if !unsafe { calls::cuKernelGetName(&mut name, kernel) }.ok() {
        return None;
    }
    // SAFETY: the driver answered null or a C string that lives as long as the kernel.
    let symbol = unsafe { text(name) }?;
    let mut library = 0;
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { calls::cuKernelGetLibrary(&mut library, kernel) };
    (!symbol.is_empty()).then_some((library, symbol))
}

/// The driver's function for a library kernel.
pub fn function_of(kernel: CuKernel) -> Option<CuFunction> {
    let mut function = 0;
    // SAFETY: the out-parameter is valid; the kernel came from the driver and its library is
    // loaded.
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
