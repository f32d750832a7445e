//! What the driver itself says a kernel is called, for handles that came to the client past us.
//!
//! Each is a driver call of ours: never while a capture is on.

use std::ffi::{CStr, c_char};

use super::registry::code_of;
use crate::driver::abi::{CuFunction, CuKernel, CuLibrary};
use crate::driver::calls;

/// The driver's own idea of a function's module and symbol. A driver call of ours: never while a
/// capture is on.
pub fn ask_name(function: CuFunction) -> Option<(u64, String)> {
    let mut name = std::ptr::null();
    // SAFETY: the out-parameter is valid; the client is about to launch this handle.
    if !unsafe { calls::cuFuncGetName(&mut name, function) }.ok() {
        return None;
    }
    // SAFETY: the driver answered a C string that lives as long as the function, or nothing.
    let symbol = unsafe { text(name) }?;
    let mut module = 0;
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { calls::cuFuncGetModule(&mut module, function) };
    (!symbol.is_empty()).then(|| (code_of(module), symbol))
}

/// The driver's own idea of the library and symbol of a library's kernel, which clients launch by
/// its own handle: asked about a function, the driver says nothing of such a handle.
pub fn ask_kernel_name(kernel: CuKernel) -> Option<(CuLibrary, String)> {
    let mut name = std::ptr::null();
    // SAFETY: the out-parameter is valid; the client is about to launch this handle, which the
    // driver did not know as a function.
    if !unsafe { calls::cuKernelGetName(&mut name, kernel) }.ok() {
        return None;
    }
    // SAFETY: the driver answered a C string that lives as long as the kernel, or nothing.
    let symbol = unsafe { text(name) }?;
    let mut library = 0;
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { calls::cuKernelGetLibrary(&mut library, kernel) };
    (!symbol.is_empty()).then_some((library, symbol))
}

/// The driver's own function for a kernel of a library. A driver call of ours: never while a
/// capture is on.
pub fn ask_function(kernel: CuKernel) -> Option<CuFunction> {
    let mut function = 0;
    // SAFETY: the out-parameter is valid; the kernel came from the driver and its library is
    // loaded.
    unsafe { calls::cuKernelGetFunction(&mut function, kernel) }
        .ok()
        .then_some(function)
}

/// A C string of the driver's; `None` for null.
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
