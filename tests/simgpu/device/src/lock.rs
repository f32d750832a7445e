// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks of the simulated libcuda, whose callers are the jobs' threads.

use std::sync::{Mutex, MutexGuard};

/// Locks, also after a panic elsewhere: our locks guard nothing that is left half done.
///
/// Keeps the caller's `errno`, which waiting would set to EAGAIN: tests look there for traces of an
/// interposer.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    if let Ok(guard) = mutex.try_lock() {
        return guard;
    }
    // SAFETY: no arguments, no conditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's own word, which lives as long as the thread.
    let before = unsafe { errno.read() };
    let guard = mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // SAFETY: as before.
    unsafe { errno.write(before) };
    guard
}
