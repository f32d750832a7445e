//! This library in the dynamic linker's list: name, file, handle.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Symbol that marks a copy of weft under any file name.
pub const MARK: &CStr = c"weft_interposer";

/// The public part of glibc's `struct link_map`.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const c_void,
    next: *const LinkMap,
    previous: *const LinkMap,
}

unsafe extern "C" {
    fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
}

/// RTLD_DL_LINKMAP in dlfcn.h.
const RTLD_DL_LINKMAP: c_int = 2;

/// This library's entry in the linker's list, which is also its `dlopen` handle.
fn link_map() -> Option<*const LinkMap> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let mut map: *mut c_void = std::ptr::null_mut();
    let here = MARKER.as_ptr().cast();
    // SAFETY: both out-parameters are large enough; the address may be any.
    let found = unsafe { dladdr1(here, info.as_mut_ptr(), &mut map, RTLD_DL_LINKMAP) };
    (found != 0 && !map.is_null()).then_some(map.cast_const().cast())
}

/// Read-only memory of this object, by which the linker finds it.
static MARKER: [u8; 16] = *b"weft interposer\0";

/// This library's `dlopen` handle.
pub fn handle() -> Option<*const c_void> {
    link_map().map(|map| map.cast())
}

/// The name under which the linker loaded this library: opening it again touches no file.
pub fn name() -> Option<&'static CStr> {
    let map = link_map()?;
    // SAFETY: the entry lives as long as the object, which is never unloaded (-z nodelete).
    let name = unsafe { (*map).name };
    if name.is_null() {
        return None;
    }
    // SAFETY: the linker keeps a C string there.
    let name = unsafe { CStr::from_ptr(name) };
    (!name.is_empty()).then_some(name)
}

/// This library's file.
pub fn path() -> Option<&'static Path> {
    name().map(|name| Path::new(OsStr::from_bytes(name.to_bytes())))
}
