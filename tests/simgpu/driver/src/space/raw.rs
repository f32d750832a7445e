// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses to bytes at addresses. Only this file of the driver reads and writes device memory.
//!
//! Callers have checked that the addresses lie in memory the driver knows (which stays mapped for
//! the life of the process, given back or not) or were handed in by the client as its own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Reads an aligned word that another thread may be writing.
pub(crate) fn load_32(at: u64) -> u32 {
    // SAFETY: see the module's contract; callers check the alignment.
    unsafe { AtomicU32::from_ptr(at as *mut u32) }.load(Ordering::Acquire)
}

/// Reads an aligned word that another thread may be writing.
pub(crate) fn load_64(at: u64) -> u64 {
    // SAFETY: see the module's contract; callers check the alignment.
    unsafe { AtomicU64::from_ptr(at as *mut u64) }.load(Ordering::Acquire)
}

/// Writes an aligned word that another thread may be reading.
pub(crate) fn store_32(at: u64, value: u32) {
    // SAFETY: see the module's contract; callers check the alignment.
    unsafe { AtomicU32::from_ptr(at as *mut u32) }.store(value, Ordering::Release);
}

/// Writes an aligned word that another thread may be reading.
pub(crate) fn store_64(at: u64, value: u64) {
    // SAFETY: see the module's contract; callers check the alignment.
    unsafe { AtomicU64::from_ptr(at as *mut u64) }.store(value, Ordering::Release);
}

/// Copies `size` bytes; the ranges may overlap.
pub(crate) fn copy(to: u64, from: u64, size: u64) {
    // SAFETY: see the module's contract.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, size as usize) };
}

/// Copies bytes out of memory.
pub(crate) fn read(from: u64, bytes: &mut [u8]) {
    // SAFETY: see the module's contract.
    unsafe { std::ptr::copy(from as *const u8, bytes.as_mut_ptr(), bytes.len()) };
}

/// Copies bytes into memory.
pub(crate) fn write(to: u64, bytes: &[u8]) {
    // SAFETY: see the module's contract.
    unsafe { std::ptr::copy(bytes.as_ptr(), to as *mut u8, bytes.len()) };
}

/// Sets bytes to zero.
pub(crate) fn clear(at: u64, size: u64) {
    fill(at, size, 0);
}

/// Sets bytes.
pub(crate) fn fill(at: u64, size: u64, value: u8) {
    // SAFETY: see the module's contract.
    unsafe { std::ptr::write_bytes(at as *mut u8, value, size as usize) };
}

/// Repeats a pattern of two or four bytes `count` times.
pub(crate) fn fill_words(at: u64, pattern: &[u8], count: u64) {
    match pattern {
        [a, b] => {
            // SAFETY: see the module's contract; the API demands this alignment and the entry
            // points check it.
            let words = unsafe { std::slice::from_raw_parts_mut(at as *mut u16, count as usize) };
            words.fill(u16::from_ne_bytes([*a, *b]));
        }
        [a, b, c, d] => {
            // SAFETY: as above.
            let words = unsafe { std::slice::from_raw_parts_mut(at as *mut u32, count as usize) };
            words.fill(u32::from_ne_bytes([*a, *b, *c, *d]));
        }
        _ => {
            for (n, byte) in pattern.iter().cycle().take(pattern.len() * count as usize).enumerate() {
                fill(at + n as u64, 1, *byte);
            }
        }
    }
}
