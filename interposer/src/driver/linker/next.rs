//! The `dlopen`, `dlsym` and `dlvsym` that stand behind ours.
//!
//! We export these names ourselves, so we cannot ask the dynamic linker for them by calling them:
//! their definitions in the objects after us (another preload, or libc) are read from those
//! objects' own symbol tables. Once, without allocation: memory allocators call `dlsym` while they
//! set themselves up.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::elf;

/// Where our wrappers of these names go on to. Null until [`find`].
pub static DLOPEN: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// As [`DLOPEN`].
pub static DLSYM: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// As [`DLOPEN`].
pub static DLVSYM: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Answers "nothing" for a name that no object defines: all three report failure as null.
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

/// The next `dlopen`. Never through our wrapper, so that it can open the driver.
///
/// # Safety
/// As `dlopen`.
pub unsafe fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    // SAFETY: what `find` stored is a function of that name, hence of that type, or `nowhere`,
    // which ignores arguments.
    let next = unsafe { std::mem::transmute::<*mut (), Dlopen>(get(&DLOPEN)) };
    // SAFETY: the caller's promise.
    unsafe { next(name, flags) }
}

/// The next `dlsym`. For real handles only: for RTLD_NEXT and RTLD_DEFAULT the caller's place
/// matters, and that would be ours.
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

/// The next `dlvsym`, with the same limits as [`dlsym`].
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

/// A C string as a slice of bytes without its end; empty for null.
///
/// # Safety
/// `text` is null or a C string that lives as long as the result is used.
pub unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return b"";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}
