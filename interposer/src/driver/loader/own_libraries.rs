// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's own libraries: the driver, and the libraries that it opens.
//!
//! Some drivers are thin and open the real one, by a driver's file name (WSL 2, shims in place of
//! the driver). Their calls must not come back to weft, or each would call the other without end. A
//! library that the driver opens is recognised by its file's name.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{is_opening, opened};
use crate::driver::linker::ourselves;

/// Most libraries that the driver opens. NVIDIA's driver opens four.
const LIBRARIES: usize = 32;

/// Hashes of their files' names; 0: free.
static NAMES: [AtomicU64; LIBRARIES] = [const { AtomicU64::new(0) }; LIBRARIES];

/// Whether a call that returns to this address is made by the driver: by its code, by a library
/// that it opened, or by constructors while the driver is being opened.
pub fn calls_from(address: *const c_void) -> bool {
    if is_opening() {
        return true;
    }
    let Some(driver) = opened() else { return false };
    // SAFETY: the caller's code is running, so its object is loaded.
    let Some(object) = (unsafe { ourselves::object_at(address) }) else {
        return false;
    };
    driver.is((&raw const *object).cast_mut().cast()) || has_opened(object.path().to_bytes())
}

/// Notes that the driver opens this file.
pub fn opens(path: &[u8]) {
    let hash = hash(path);
    for place in &NAMES {
        match place.compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(known) if known == hash => return,
            Err(_) => {}
        }
    }
}

/// Whether the driver opened a file of this name.
pub fn has_opened(path: &[u8]) -> bool {
    let hash = hash(path);
    NAMES.iter().any(|known| known.load(Ordering::Acquire) == hash)
}

/// Hash of only the file's name: the linker's path may differ from the driver's.
fn hash(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.rsplit(|byte| *byte == b'/').next().hash(&mut hasher);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_the_driver_opened_is_known_by_its_name() {
        assert!(!has_opened(b"/usr/lib/libreal.so.1"));
        opens(b"/store/libreal.so.1");
        opens(b"/store/libreal.so.1");
        assert!(has_opened(b"/usr/lib/libreal.so.1"));
        assert!(!has_opened(b"/usr/lib/libreal.so"));
        assert!(!calls_from(hash as *const c_void), "no driver is open here");
    }
}
