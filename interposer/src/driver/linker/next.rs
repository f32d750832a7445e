// SPDX-License-Identifier: MIT OR Apache-2.0
//! The next `dlopen`, `dlsym` and `dlvsym` in load order.
//!
//! Weft exports these names itself, so the dynamic linker cannot return the next ones. Their
//! definitions are read from later objects' symbol tables, once and without allocation: memory
//! allocators call `dlsym` while they initialise.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::elf;

/// Next functions; null until [`find`].
pub static DLOPEN: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// As [`DLOPEN`].
pub static DLSYM: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// As [`DLOPEN`].
pub static DLVSYM: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Stands for an undefined function: returns null as a failure.
extern "C" fn nowhere() -> *mut c_void {
    std::ptr::null_mut()
}

/// Finds all three, once.
pub fn find() {
    let wanted = [(&DLOPEN, c"dlopen"), (&DLSYM, c"dlsym"), (&DLVSYM, c"dlvsym")];
    for (place, name) in wanted {
        if place.load(Ordering::Acquire).is_null() {
            let found = elf::after_us(name).unwrap_or(nowhere as *mut ());
            place.store(found, Ordering::Release);
        }
    }
}

fn get(place: &AtomicPtr<()>) -> *mut () {
    if place.load(Ordering::Acquire).is_null() {
        find();
    }
    place.load(Ordering::Acquire)
}

/// Calls the next `dlopen`.
///
/// # Safety
/// As `dlopen`.
pub unsafe fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: a function of that name, hence type, or `nowhere`, which ignores arguments.
    let next = unsafe { std::mem::transmute::<*mut (), Dlopen>(get(&DLOPEN)) };
    // SAFETY: the caller's promise.
    unsafe { next(name, flags) }
}

/// Calls the next `dlsym`. For real handles only: RTLD_NEXT and RTLD_DEFAULT depend on the caller's
/// place.
///
/// # Safety
/// As `dlsym`.
pub unsafe fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: as in `dlopen`.
    let next = unsafe { std::mem::transmute::<*mut (), Dlsym>(get(&DLSYM)) };
    // SAFETY: the caller's promise.
    unsafe { next(handle, name) }
}

/// Calls the next `dlvsym`, for real handles.
///
/// # Safety
/// As `dlvsym`.
pub unsafe fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    // SAFETY: as in `dlopen`.
    let next = unsafe { std::mem::transmute::<*mut (), Dlvsym>(get(&DLVSYM)) };
    // SAFETY: the caller's promise.
    unsafe { next(handle, name, version) }
}

/// Bytes of a C string without its end; empty for null.
///
/// # Safety
/// `text` is null or a C string that outlives the result.
pub unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return b"";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}
