// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queries by other programs: whether this library is in a process, and which calls passed through
//! it.

use std::ffi::{CStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use crate::driver::{counts, loader, symbols};
use crate::{deferred, exports, hooks, internal_error};

/// Version of this library, a C string. The symbol also marks copies of weft.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn weft_interposer() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// A counter by name; -1 for another name.
///
/// * `bound`: entry points called at least once
/// * `lookups`: answers of `cuGetProcAddress` and `dlsym` with weft's functions
/// * `unknown`: driver functions handed out beyond the symbol table
/// * `opened`: 1 once the real driver is open
/// * `troubles`: internal errors
///
/// # Safety
/// `name` is null or a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn weft_counter(name: *const c_char) -> i64 {
    if name.is_null() {
        return -1;
    }
    // SAFETY: not null, so a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let value = match name.to_bytes() {
        b"bound" => exports::bound(),
        b"lookups" => counts::ours(),
        b"unknown" => counts::unknown(),
        b"opened" => u64::from(loader::opened().is_some()),
        b"troubles" => internal_error::counted(),
        _ => return -1,
    };
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Whether `symbol` was called through this library: 1 yes, 0 no, -1 unknown symbol.
///
/// # Safety
/// `symbol` is null or a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn weft_called(symbol: *const c_char) -> c_int {
    if symbol.is_null() {
        return -1;
    }
    // SAFETY: not null, so a C string.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    symbols::find(symbol).map_or(-1, |at| c_int::from(exports::is_bound(at)))
}

/// Identity of an executable graph at its next launch; 0 if unknown.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn weft_graph(exec: usize) -> u64 {
    hooks::graph::identity(exec)
}

/// Writes a text as a C string of at most `size` bytes; returns its full length. Lists have one
/// entry per line.
///
/// * `driver`: path of the real driver
/// * `unknown`: driver functions handed out beyond the symbol table
/// * `tables`: private tables that were requested
/// * `beyond`: functions of the open driver beyond the symbol table
///
/// # Safety
/// `what` is null or a C string, `buffer` has `size` writable bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn weft_text(what: *const c_char, buffer: *mut c_char, size: usize) -> usize {
    if what.is_null() {
        return 0;
    }
    // SAFETY: not null, so a C string.
    let what = unsafe { CStr::from_ptr(what) };
    let text = match what.to_bytes() {
        b"driver" => loader::opened()
            .map(|driver| driver.path().as_os_str().as_bytes().to_vec())
            .unwrap_or_default(),
        b"unknown" => counts::unknown_names().join("\n").into_bytes(),
        b"tables" => deferred::tables::told().into_bytes(),
        b"beyond" => loader::opened()
            .map(|driver| symbols::beyond_the_table(driver).join("\n").into_bytes())
            .unwrap_or_default(),
        _ => return 0,
    };
    if !buffer.is_null() && size > 0 {
        let kept = text.len().min(size - 1);
        // SAFETY: `size` bytes are writable, and kept + 1 <= size.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, kept) };
        // SAFETY: as above.
        let end = unsafe { buffer.add(kept) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    text.len()
}
