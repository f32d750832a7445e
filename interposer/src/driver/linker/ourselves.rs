// SPDX-License-Identifier: MIT OR Apache-2.0
//! This library in the dynamic linker's list: name, file, handle.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use super::elf::LinkMap;

/// Marks a copy of weft under any file name.
pub const MARK: &CStr = c"weft_interposer";

unsafe extern "C" {
    fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
}

/// RTLD_DL_LINKMAP in dlfcn.h.
const RTLD_DL_LINKMAP: c_int = 2;

/// This library in the linker's list.
fn link_map() -> Option<&'static LinkMap> {
    // SAFETY: this object is never unloaded (-z nodelete).
    unsafe { object_at(MARKER.as_ptr().cast()) }
}

/// The object that holds this address.
///
/// # Safety
/// The object stays loaded while the result is used.
pub unsafe fn object_at<'a>(address: *const c_void) -> Option<&'a LinkMap> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    let mut map: *mut c_void = ptr::null_mut();
    // SAFETY: both out-parameters are large enough; any address will do.
    let found = unsafe { dladdr1(address, info.as_mut_ptr(), &mut map, RTLD_DL_LINKMAP) };
    if found == 0 {
        return None;
    }
    // SAFETY: null, or the record of an object that is loaded, by the caller's promise.
    unsafe { map.cast_const().cast::<LinkMap>().as_ref() }
}

/// By its address the linker finds this object.
static MARKER: [u8; 16] = *b"weft interposer\0";

pub fn handle() -> Option<*const c_void> {
    link_map().map(|map| ptr::from_ref(map).cast())
}

/// Name under which the linker loaded this library.
pub fn name() -> Option<&'static CStr> {
    Some(link_map()?.path()).filter(|name| !name.is_empty())
}

pub fn path() -> Option<&'static Path> {
    name().map(|name| Path::new(OsStr::from_bytes(name.to_bytes())))
}
