// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports at the process's end that a library opened the driver without weft.
//!
//! A library opened with `RTLD_DEEPBIND` finds the C library's own `dlopen`; a library in its own
//! namespace (`dlmopen`) finds nothing of weft. Their calls are neither seen nor held. One look at
//! the dynamic linker's list at the end detects it, without a system call unless there is something
//! to report. Undetected: opening the same file that weft has opened.

use std::ffi::{c_int, c_void};

use super::open;
use crate::driver::linker::elf::{self, LinkMap};
use crate::driver::linker::ourselves;
use crate::driver::loader::{self, own_libraries};
use crate::hooks;

/// Run by the dynamic linker when the process ends by `exit` or a return from `main`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

/// See [`AT_END`].
#[cfg_attr(test, allow(dead_code))]
extern "C" fn at_end() {
    let mut found = None;
    // SAFETY: the callback gets the pointer to `found`, before this returns; the linker's lists do
    // not change meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    let Some(path) = found.filter(|_: &Vec<u8>| !hooks::off()) else {
        return;
    };
    crate::report::start();
    log::warn!(
        "{} was opened past weft, by a library in a scope or namespace of its own (RTLD_DEEPBIND, dlmopen): weft neither saw nor held its work on the device",
        String::from_utf8_lossy(&path)
    );
}

/// Looks at all lists, once. Called under the linker's lock.
unsafe extern "C" fn look(_: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    let opened = loader::opened().map(|driver| driver.handle().cast_const());
    let past = |map: &LinkMap| {
        let path = map.path().to_bytes();
        let known = opened == Some((&raw const *map).cast()) || own_libraries::has_opened(path);
        (open::is_driver(path) && !known && !map.is_ours() && !map.defines(ourselves::MARK)).then(|| path.to_vec())
    };
    // SAFETY: `at_end` gave this pointer to its own variable.
    let found = unsafe { &mut *found.cast::<Option<Vec<u8>>>() };
    *found = elf::all(past);
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_opened_no_driver() {
        let mut seen: Vec<u8> = b"nobody looked".to_vec();
        let mut found = Some(std::mem::take(&mut seen));
        // SAFETY: the pointer is to a local of that type.
        let more = unsafe { look(std::ptr::null_mut(), 0, (&raw mut found).cast()) };
        assert_eq!((more, found), (1, None));
    }

    #[test]
    fn the_linker_s_list_has_the_c_library() {
        let named = |map: &LinkMap| {
            let path = map.path();
            path.to_bytes().ends_with(b"libc.so.6").then(|| map.defines(c"getpid"))
        };
        assert_eq!(elf::all(named), Some(true));
        assert_eq!(
            elf::all(|map| map.is_ours().then(|| map.defines(c"getpid"))),
            Some(false)
        );
    }
}
