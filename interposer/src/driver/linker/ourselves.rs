//! This library as the dynamic linker knows it: its name, its file, its handle.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The symbol by which a copy of weft is known, whatever its file is called.
pub const MARK: &CStr = c"weft_interposer";

/// What the dynamic linker keeps of a loaded object (the public part of glibc's `struct link_map`).
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

/// Our own entry in the dynamic linker's list. It is also the handle that `dlopen` gives for us.
fn link_map() -> Option<*const LinkMap> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let mut map: *mut c_void = std::ptr::null_mut();
    let here = MARKER.as_ptr().cast();
    // SAFETY: both out-parameters are large enough; the address may be any.
    let found = unsafe { dladdr1(here, info.as_mut_ptr(), &mut map, RTLD_DL_LINKMAP) };
    (found != 0 && !map.is_null()).then_some(map.cast_const().cast())
}

/// Something in this object's read-only memory, by which it is found in the dynamic linker's list.
static MARKER: [u8; 16] = *b"weft interposer\0";

/// The handle that `dlopen` gives for us.
pub fn handle() -> Option<*const c_void> {
    link_map().map(|map| map.cast())
}

/// The name under which the dynamic linker loaded us: opening it again yields us and touches no
/// file.
pub fn name() -> Option<&'static CStr> {
    let map = link_map()?;
    // SAFETY: the linker's entry for a loaded object lives as long as the object, which is never
    // unloaded (-z nodelete).
    let name = unsafe { (*map).name };
    if name.is_null() {
        return None;
    }
    // SAFETY: the linker keeps a C string there.
    let name = unsafe { CStr::from_ptr(name) };
    (!name.is_empty()).then_some(name)
}

/// Where our file lies.
pub fn path() -> Option<&'static Path> {
    name().map(|name| Path::new(OsStr::from_bytes(name.to_bytes())))
}
