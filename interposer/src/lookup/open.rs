//! Wraps `dlopen`: whoever opens the driver by any of its names gets us.
//!
//! The wrapper ends in a jump, not a call: the dynamic linker takes the caller's RUNPATH from the
//! return address, so every other library a program opens is searched for exactly as without us.
//! Every `dlopen` of the process comes through here (a Python program makes hundreds), so a name
//! that is not the driver's costs a comparison of its end.
//!
//! A library that is opened with `RTLD_DEEPBIND` calls the C library's own `dlopen`, and what it
//! opens is not asked here. `libcuda.so.1` is our SONAME, so that it gets us by that; the bare name
//! becomes one of our names before ([`claim`]). By an absolute path, or in a namespace of its own
//! (`dlmopen`), it gets the driver past us; that is said when the process ends ([`super::past`]).

use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::linker::{next, ourselves};

/// The driver's file names start like this.
const STEM: &[u8] = b"libcuda.so";

/// Which name to give to the real `dlopen`.
extern "C" fn choose(name: *const c_char, flags: c_int) -> *const c_char {
    if flags & libc::RTLD_DEEPBIND != 0 && !CLAIMED.swap(true, Ordering::Relaxed) {
        claim();
    }
    if next::DLOPEN.load(Ordering::Acquire).is_null() {
        next::find();
    }
    // SAFETY: a caller of dlopen passes null or a C string.
    let text = unsafe { next::bytes(name) };
    if !is_driver(text) {
        return name;
    }
    // A path to nothing stays one: the caller sees the same failure as without us.
    // SAFETY: not empty, hence a C string.
    if text.contains(&b'/') && unsafe { libc::access(name, libc::F_OK) } != 0 {
        return name;
    }
    ourselves::name().map_or(name, |ours| ours.as_ptr())
}

/// Whether [`claim`] was done.
static CLAIMED: AtomicBool = AtomicBool::new(false);

/// From now on the driver's bare name is one of ours, whoever opens it. The dynamic linker keeps
/// each name by which a library was found: here it is found by `lib/libcuda.so` beside us, a link
/// to us, which our own RPATH leads to. Nothing is loaded, whatever is found.
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

/// Is this a name of the driver: `libcuda.so`, `libcuda.so.1`, `libcuda.so.570.86.15`, with or
/// without a path?
pub fn is_driver(name: &[u8]) -> bool {
    let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    let Some(rest) = file.strip_prefix(STEM) else {
        return false;
    };
    rest.is_empty() || (rest.first() == Some(&b'.') && rest.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.'))
}

/// See the top of this file.
///
/// # Safety
/// As `dlopen`.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlopen() {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {choose}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "mov rdi, rax",
        "jmp qword ptr [rip + {next}]",
        choose = sym choose,
        next = sym next::DLOPEN,
    )
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
        assert_eq!(choose(name, libc::RTLD_NOW), name);
        assert!(choose(std::ptr::null(), 0).is_null());
        assert!(!next::DLOPEN.load(Ordering::Relaxed).is_null());
    }
}
