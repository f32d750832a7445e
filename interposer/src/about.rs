//! What others can ask about this library: where it lies, whether it is in a process, what came through it.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::{hooks, loader, resolve, table, trouble};

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

/// The name under which the dynamic linker loaded us: opening it again yields us and touches no file.
pub fn name() -> Option<&'static CStr> {
    let map = link_map()?;
    // SAFETY: the linker's entry for a loaded object lives as long as the object, which is never unloaded (-z nodelete).
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

/// The version of this library, as a C string. Also the mark by which copies of us are known.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn weft_interposer() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// What came through this library so far, by name: `bound` (entry points called at least once), `lookups` (answers of
/// `cuGetProcAddress` and `dlsym` that lead to us), `unknown` (driver functions handed out that the symbol table lacks),
/// `opened` (1 once the real driver is open), `troubles`. -1 for another name.
///
/// # Safety
/// `name` is null or a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn weft_counter(name: *const c_char) -> i64 {
    if name.is_null() {
        return -1;
    }
    // SAFETY: not null, so the caller's promise makes it a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let value = match name.to_bytes() {
        b"bound" => table::bound(),
        b"lookups" => resolve::counts::ours(),
        b"unknown" => resolve::counts::unknown(),
        b"opened" => u64::from(loader::opened().is_some()),
        b"troubles" => trouble::counted(),
        _ => return -1,
    };
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Was the driver function `symbol` called through this library? 1 yes, 0 no, -1 not a symbol of the table.
///
/// # Safety
/// `symbol` is null or a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn weft_called(symbol: *const c_char) -> c_int {
    if symbol.is_null() {
        return -1;
    }
    // SAFETY: not null, so the caller's promise makes it a C string.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    table::find(symbol).map_or(-1, |at| c_int::from(table::is_bound(at)))
}

/// The identity of an executable graph as its next launch would tell it; 0 where unknown.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn weft_graph(exec: usize) -> u64 {
    hooks::graph::identity(exec)
}

/// A text about this process, written as a C string of at most `size` bytes; returns the length it would like. `what` is
/// `driver` (the path of the real driver), `unknown` (names, one a line, of driver functions that were handed out though the symbol
/// table lacks them) or `beyond` (names of all functions that the open driver has beyond the table).
///
/// # Safety
/// `what` is null or a C string, `buffer` has `size` writable bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn weft_text(what: *const c_char, buffer: *mut c_char, size: usize) -> usize {
    if what.is_null() {
        return 0;
    }
    // SAFETY: not null, so the caller's promise makes it a C string.
    let what = unsafe { CStr::from_ptr(what) };
    let text = match what.to_bytes() {
        b"driver" => loader::opened()
            .map(|driver| driver.path().as_os_str().as_bytes().to_vec())
            .unwrap_or_default(),
        b"unknown" => resolve::counts::unknown_names().join("\n").into_bytes(),
        b"tables" => crate::queue::tables::told().into_bytes(),
        b"beyond" => loader::opened()
            .map(|driver| driver.beyond_the_table().join("\n").into_bytes())
            .unwrap_or_default(),
        _ => return 0,
    };
    if !buffer.is_null() && size > 0 {
        let kept = text.len().min(size - 1);
        // SAFETY: the caller promises `size` writable bytes, and kept + 1 <= size.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, kept) };
        // SAFETY: as above.
        let end = unsafe { buffer.add(kept) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    text.len()
}
