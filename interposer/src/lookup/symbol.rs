// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wraps `dlsym` and `dlvsym`. A lookup in a driver handle returns weft's entry point; a function
//! that the driver lacks is absent, although weft exports the name.
//!
//! Other lookups jump to the real function with an untouched return address: RTLD_NEXT and
//! RTLD_DEFAULT depend on the caller. A name that does not start with `cu` jumps after three
//! instructions: allocators call `dlsym` while they initialise.

use std::ffi::{CStr, c_char, c_void};

use crate::driver::linker::{next, ourselves};
use crate::driver::loader::{self, Driver, own_libraries};
use crate::driver::{counts, symbols};
use crate::{deferred, exports};

#[repr(C)]
struct LookupVerdict {
    /// [`PASS`], [`ANSWER`].
    what: usize,
    /// The handle to pass on, or the answer.
    value: *mut c_void,
}

/// Continue at the real function with `value` as the handle.
const PASS: usize = 0;
const ANSWER: usize = 1;

/// Whether a handle is RTLD_DEFAULT or RTLD_NEXT, whose search depends on the caller.
fn is_search(handle: *mut c_void) -> bool {
    handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT
}

/// Judges a `dlsym`.
///
/// # Safety
/// `name` is a C string that starts with "cu"; `handle` is the client's handle, `caller` the return
/// address of the call.
unsafe extern "C" fn judge(handle: *mut c_void, name: *const c_char, caller: *const c_void) -> LookupVerdict {
    // SAFETY: the caller's promise.
    unsafe { decide(handle, name, None, caller) }
}

/// Judges a `dlvsym`.
///
/// # Safety
/// As [`judge`]; `version` is the client's argument.
unsafe extern "C" fn judge_version(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: *const c_void,
) -> LookupVerdict {
    // SAFETY: the caller's promise.
    unsafe { decide(handle, name, Some(version), caller) }
}

/// # Safety
/// As [`judge`]; `version` is a client's argument of `dlvsym`.
unsafe fn decide(
    handle: *mut c_void,
    name: *const c_char,
    version: Option<*const c_char>,
    caller: *const c_void,
) -> LookupVerdict {
    // Finding the driver reads files.
    let _whole = crate::thread::uncancelled();
    next::find();
    exports::announce();
    let pass = LookupVerdict {
        what: PASS,
        value: handle,
    };
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let known = symbols::find(name);
    // Whether the driver has the name in this version. Real drivers have no versions: the linker
    // then finds no function.
    let versioned = |driver: &loader::Library| {
        // SAFETY: the handle came from dlopen and is never closed; the name is a C string, the
        // version the client's argument.
        version.is_none_or(|version| !unsafe { next::dlvsym(driver.handle(), name.as_ptr(), version) }.is_null())
    };
    if is_search(handle) {
        // Weft's export would answer. If the open driver lacks the name, the search fails in the
        // driver.
        return match (known, loader::opened()) {
            (Some(at), Some(driver)) if symbols::real(at).is_none() => LookupVerdict {
                what: PASS,
                value: driver.handle(),
            },
            _ => pass,
        };
    }
    let ours = ourselves::handle() == Some(handle.cast_const());
    let theirs = loader::opened().is_some_and(|driver| driver.is(handle));
    if !ours && !theirs {
        return pass;
    }
    // A driver that asks for its own name has found weft, and must get itself.
    if own_libraries::calls_from(caller) {
        return LookupVerdict {
            what: PASS,
            value: loader::opened().map_or(handle, loader::Library::handle),
        };
    }
    match (known, loader::driver()) {
        // The client believes it has opened the driver: now it must be opened.
        (Some(at), Driver::Open(driver)) => match (symbols::real(at), symbols::export(at)) {
            (Some(_), Some(export)) if versioned(driver) => {
                counts::answered_with_ours();
                LookupVerdict {
                    what: ANSWER,
                    value: export.cast(),
                }
            }
            // The failure, with its message, is the driver's.
            _ => LookupVerdict {
                what: PASS,
                value: driver.handle(),
            },
        },
        (Some(_), Driver::Missing | Driver::Opening) => pass,
        (None, Driver::Open(driver)) => {
            if let Some(found) = driver.symbol(name).filter(|_| versioned(driver)) {
                let name = name.to_string_lossy();
                counts::answered_with_unknown(&name);
                deferred::passed_by(&name);
                return LookupVerdict {
                    what: ANSWER,
                    value: found.cast(),
                };
            }
            LookupVerdict {
                what: PASS,
                value: driver.handle(),
            }
        }
        (None, Driver::Missing | Driver::Opening) => pass,
    }
}

/// The exported `dlsym`: see the module.
///
/// # Safety
/// As `dlsym`.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlsym() {
    crate::processor::dlsym!(judge, find_next, next::DLSYM)
}

/// The exported `dlvsym`: as [`dlsym`], with the version untouched. A version that the driver lacks
/// is absent for the client.
///
/// # Safety
/// As `dlvsym`.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlvsym() {
    crate::processor::dlvsym!(judge_version, find_next, next::DLVSYM)
}

extern "C" fn find_next() {
    next::find();
    exports::announce();
}
