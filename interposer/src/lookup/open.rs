// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wraps `dlopen`: opening the driver by any of its names returns weft.
//!
//! The wrapper ends with a jump: the dynamic linker derives the caller's RUNPATH from the return
//! address, so other libraries are found as without weft. Every `dlopen` of the process passes here
//! (Python makes hundreds); another name costs a comparison of its end.
//!
//! A library opened with `RTLD_DEEPBIND` calls the C library's `dlopen` instead. It still gets weft
//! by `libcuda.so.1`, weft's SONAME, and by the bare name, after [`claim`]. By an absolute path, or
//! from its own namespace (`dlmopen`), it gets the driver, which is reported at the end
//! ([`super::past`]).
//!
//! The driver's own calls pass ([`own_libraries`]): a thin driver opens the real one.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::linker::{next, ourselves};
use crate::driver::loader::own_libraries;

/// Start of the driver's file names.
const STEM: &[u8] = b"libcuda.so";

/// The name to pass to the real `dlopen`. `caller`: the return address of the call.
extern "C" fn choose(name: *const c_char, flags: c_int, caller: *const c_void) -> *const c_char {
    if flags & libc::RTLD_DEEPBIND != 0 && !CLAIMED.swap(true, Ordering::Relaxed) {
        claim();
    }
    if next::DLOPEN.load(Ordering::Acquire).is_null() {
        next::find();
    }
    // SAFETY: a caller of dlopen passes null or a C string.
    let text = unsafe { next::bytes(name) };
    if !text.is_empty() && own_libraries::calls_from(caller) {
        own_libraries::opens(text);
        return name;
    }
    if !is_driver(text) {
        return name;
    }
    // A path to nothing stays unchanged: the failure is the same as without weft.
    // SAFETY: not empty, hence a C string.
    if text.contains(&b'/') && unsafe { libc::access(name, libc::F_OK) } != 0 {
        return name;
    }
    ourselves::name().map_or(name, |ours| ours.as_ptr())
}

/// Whether [`claim`] has run.
static CLAIMED: AtomicBool = AtomicBool::new(false);

/// Makes the driver's bare name one of weft's, for any caller. The dynamic linker keeps each name
/// by which a library was found. Weft's RPATH leads to `lib/libcuda.so` in its folder, a link to
/// weft. Nothing is loaded.
fn claim() {
    let Some(ours) = ourselves::path() else { return };
    let link = ours.parent().map(|folder| folder.join("lib").join("libcuda.so"));
    let link = link.and_then(|link| CString::new(link.as_os_str().as_bytes()).ok());
    // SAFETY: a C string.
    if link.is_some_and(|link| unsafe { libc::access(link.as_ptr(), libc::F_OK) } == 0) {
        // SAFETY: a C string and valid flags.
        unsafe { next::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    }
}

/// Whether this is a driver name: `libcuda.so`, `libcuda.so.1`, `libcuda.so.570.86.15`, with or
/// without a path.
pub fn is_driver(name: &[u8]) -> bool {
    let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    let Some(rest) = file.strip_prefix(STEM) else {
        return false;
    };
    rest.is_empty() || (rest.first() == Some(&b'.') && rest.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.'))
}

/// The exported `dlopen`: see the module.
///
/// # Safety
/// As `dlopen`.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen() {
    crate::processor::dlopen!(choose, next::DLOPEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_driver() {
        for name in [
            "libcuda.so",
            "libcuda.so.1",
            "/usr/lib/libcuda.so.1",
            "./libcuda.so",
            "libcuda.so.570.86.15",
        ] {
            assert!(is_driver(name.as_bytes()), "{name}");
        }
        for name in [
            "",
            "libcudart.so.1",
            "libcuda.so.1/x",
            "libcuda.so-old",
            "xlibcuda.so",
            "libcuda",
            "libsimcuda.so",
        ] {
            assert!(!is_driver(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_path_to_nothing_stays_what_it_is() {
        let name = c"/no/such/folder/libcuda.so.1".as_ptr();
        let caller = std::ptr::null();
        assert_eq!(choose(name, libc::RTLD_NOW, caller), name);
        assert!(choose(std::ptr::null(), 0, caller).is_null());
        assert!(!next::DLOPEN.load(Ordering::Relaxed).is_null());
    }
}
