// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loading of code, and all calls that return a kernel's handle in it. Names are learnt here.

use std::ffi::{CStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

use super::declare::{hooks, written};
use crate::driver::abi::{CuFunction, CuKernel, CuLibrary, CuModule, CuResult};
use crate::driver::calls;
use crate::driver::capture;
use crate::internal_error::guarded;
use crate::kernels::images;
use crate::kernels::{self, HandleKind, image, text};
use crate::{deferred, paging, throttle};

/// Largest code file that is read for its hash.
const LARGEST_FILE_BYTES: u64 = 256 << 20;

/// Whether to keep images. Only managed jobs need the parameters, and a newer driver knows them
/// itself.
fn keeps_images() -> bool {
    paging::may_be_managed() && images::tell_more()
}

/// Handles code loaded from memory.
///
/// # Safety
/// `handle` is the out-parameter of `real`, which loads `code`.
unsafe fn load(handle: *const usize, code: *const c_void, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if result.ok() {
        // SAFETY: the driver wrote the handle.
        let handle = unsafe { written(handle) };
        guarded(|| {
            // SAFETY: the driver accepted this image.
            let hash = unsafe { image::hash(code.cast()) };
            deferred::forget_known();
            kernels::code_loaded(handle.unwrap_or(0), 0, hash);
            let keep = || {
                // SAFETY: as above.
                unsafe { images::keep(code.cast(), hash) }
            };
            if let Some(kept) = keeps_images().then(keep).flatten() {
                kernels::code_kept(handle.unwrap_or(0), kept);
            }
            throttle::module_loaded();
        });
    }
    result
}

/// Handles code loaded from a file.
///
/// # Safety
/// `handle` is the out-parameter of `real`, which loads the file `path`.
unsafe fn load_file(handle: *const usize, path: *const c_char, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if result.ok() && !path.is_null() {
        // SAFETY: the driver wrote the handle.
        let handle = unsafe { written(handle) };
        // SAFETY: the driver opened the file of that name, a C string.
        let path = unsafe { CStr::from_ptr(path) };
        guarded(|| {
            let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
            let small = std::fs::metadata(path).is_ok_and(|about| about.len() <= LARGEST_FILE_BYTES);
            let bytes = small.then(|| std::fs::read(path).ok()).flatten();
            let hash = bytes.as_deref().map_or(0, image::hash_bytes);
            deferred::forget_known();
            kernels::code_loaded(handle.unwrap_or(0), 0, hash);
            if let Some(kept) = bytes.as_deref().filter(|_| keeps_images()).and_then(images::keep_file) {
                kernels::code_kept(handle.unwrap_or(0), kept);
            }
            throttle::module_loaded();
        });
    }
    result
}

fn unload(code: usize, real: impl FnOnce() -> CuResult) -> CuResult {
    // Before the call: after it, another thread may get this address anew.
    guarded(|| {
        deferred::forget_known();
        kernels::code_unloaded(code);
    });
    real()
}

/// Notes a kernel looked up by name in a module or library.
///
/// # Safety
/// `handle` is the out-parameter of `real`, `name` a C string.
unsafe fn look_up(
    handle: *const usize,
    kind: HandleKind,
    code: usize,
    name: *const c_char,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    let result = real();
    if result.ok() {
        // SAFETY: the driver wrote the handle.
        let handle = unsafe { written(handle) };
        // SAFETY: the driver read the name.
        let name = unsafe { text(name) };
        if let (Some(handle), Some(name)) = (handle, name) {
            guarded(|| kernels::function_named(handle, kind, code, kernels::code_of(code), &name));
        }
    }
    result
}

/// Reads the names of listed kernels from the driver.
///
/// The client passes only the capacity of its array; words after the last kernel are its own. So
/// weft reads the number of kernels from the driver, with functions as old as those that list.
/// Without an answer, names are read at the first launches.
///
/// # Safety
/// `handles` is the out-parameter of `real`, with room for `room`; `count_of` returns the number of
/// kernels in the code `code`.
unsafe fn enumerate(
    handles: *const usize,
    room: u32,
    kind: HandleKind,
    code: usize,
    count_of: unsafe fn(*mut u32, usize) -> CuResult,
    name_of: unsafe fn(*mut *const c_char, usize) -> CuResult,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    let result = real();
    if result.ok() && !handles.is_null() && !capture::any() {
        guarded(|| {
            let mut there = 0;
            // SAFETY: the out-parameter is valid; the driver has just listed this very code.
            if !unsafe { count_of(&mut there, code) }.ok() {
                return;
            }
            for at in 0..there.min(room) as usize {
                // SAFETY: the driver wrote as many handles as there are kernels, and at most the
                // client's room.
                let Some(handle) = (unsafe { written(handles.wrapping_add(at)) }) else {
                    break;
                };
                let mut name = std::ptr::null();
                // SAFETY: the out-parameter is valid, the handle fresh from the driver.
                if handle != 0 && unsafe { name_of(&mut name, handle) }.ok() {
                    // SAFETY: the driver answered a C string.
                    if let Some(name) = unsafe { text(name) } {
                        kernels::function_named(handle, kind, code, kernels::code_of(code), &name);
                    }
                }
            }
        });
    }
    result
}

hooks! {
    fn cuModuleLoad(module: *mut CuModule, path: *const c_char) |real| {
        // SAFETY: the call's own parameters.
        unsafe { load_file(module, path, real) }
    }
    fn cuModuleLoadData(module: *mut CuModule, image: *const c_void) |real| {
        // SAFETY: the call's own parameters.
        unsafe { load(module, image, real) }
    }
    fn cuModuleLoadDataEx(
        module: *mut CuModule, image: *const c_void, count: u32, options: *const c_void, values: *const c_void,
    ) |real| {
        // SAFETY: the call's own parameters.
        unsafe { load(module, image, real) }
    }
    fn cuModuleLoadFatBinary(module: *mut CuModule, image: *const c_void) |real| {
        // SAFETY: the call's own parameters.
        unsafe { load(module, image, real) }
    }
    fn cuLibraryLoadData(
        library: *mut CuLibrary, code: *const c_void, options: *const c_void, values: *const c_void, count: u32,
        library_options: *const c_void, library_values: *const c_void, library_count: u32,
    ) |real| {
        // SAFETY: the call's own parameters.
        unsafe { load(library, code, real) }
    }
    fn cuLibraryLoadFromFile(
        library: *mut CuLibrary, path: *const c_char, options: *const c_void, values: *const c_void, count: u32,
        library_options: *const c_void, library_values: *const c_void, library_count: u32,
    ) |real| {
        // SAFETY: the call's own parameters.
        unsafe { load_file(library, path, real) }
    }
    fn cuModuleUnload(module: CuModule) |real| { unload(module, real) }
    fn cuLibraryUnload(library: CuLibrary) |real| { unload(library, real) }
    fn cuLibraryGetModule(module: *mut CuModule, library: CuLibrary) |real| {
        let result = real();
        if result.ok() {
            // SAFETY: the driver wrote the module.
            if let Some(module) = unsafe { written(module) } {
                guarded(|| kernels::code_loaded(module, library, kernels::code_of(library)));
            }
        }
        result
    }
    fn cuModuleGetFunction(function: *mut CuFunction, module: CuModule, name: *const c_char) |real| {
        // SAFETY: the call's own parameters.
        unsafe { look_up(function, HandleKind::Function, module, name, real) }
    }
    fn cuLibraryGetKernel(kernel: *mut CuKernel, library: CuLibrary, name: *const c_char) |real| {
        // SAFETY: the call's own parameters.
        unsafe { look_up(kernel, HandleKind::Kernel, library, name, real) }
    }
    fn cuKernelGetFunction(function: *mut CuFunction, kernel: CuKernel) |real| {
        let result = real();
        if result.ok() {
            // SAFETY: the driver wrote the function.
            if let Some(function) = unsafe { written(function) } {
                guarded(|| kernels::same_function(function, kernel));
            }
        }
        result
    }
    fn cuModuleEnumerateFunctions(functions: *mut CuFunction, count: u32, module: CuModule) |real| {
        // SAFETY: the call's own parameters.
        unsafe {
            enumerate(functions, count, HandleKind::Function, module, calls::cuModuleGetFunctionCount, calls::cuFuncGetName, real)
        }
    }
    fn cuLibraryEnumerateKernels(kernels: *mut CuKernel, count: u32, library: CuLibrary) |real| {
        // SAFETY: the call's own parameters.
        unsafe {
            enumerate(kernels, count, HandleKind::Kernel, library, calls::cuLibraryGetKernelCount, calls::cuKernelGetName, real)
        }
    }
}
