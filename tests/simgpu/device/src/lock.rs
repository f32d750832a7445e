//! Locks of the simulated libcuda, whose callers are the jobs' threads.

use std::sync::{Mutex, MutexGuard};

/// Locks, also after a panic elsewhere: what our locks guard stays consistent, since nothing in
/// them is left half done.
///
/// Waiting for another thread leaves EAGAIN in `errno`, which is the caller's: tests look there for
/// what an interposer leaves behind.
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
