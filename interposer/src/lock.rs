// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locks that the job's threads take in driver calls.
//!
//! A contended lock of the standard library changes the thread's `errno`, which a program may read
//! after a launch. So a wait here restores it. A free lock costs no more than usual.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Takes the lock, even if poisoned.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(inside) => inside,
        Err(TryLockError::Poisoned(inside)) => inside.into_inner(),
        Err(TryLockError::WouldBlock) => wait(mutex),
    }
}

#[cold]
fn wait<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    apart(|| mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

fn apart<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the calling thread's own `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; no other thread uses it.
    let before = unsafe { errno.read() };
    let done = work();
    // SAFETY: as above.
    unsafe { errno.write(before) };
    done
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;

    #[test]
    fn what_a_call_leaves_in_errno_is_taken_back() {
        let fails = || {
            let nowhere = std::fs::File::open("/nowhere/at/all");
            assert!(nowhere.is_err());
            Error::last_os_error().raw_os_error()
        };
        // SAFETY: this thread's own.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { errno.write(libc::EXDEV) };
        assert_eq!(apart(fails), Some(libc::ENOENT));
        assert_eq!(Error::last_os_error().raw_os_error(), Some(libc::EXDEV));
        assert_eq!(fails(), Some(libc::ENOENT));
        assert_eq!(
            Error::last_os_error().raw_os_error(),
            Some(libc::ENOENT),
            "but for that"
        );
    }

    #[test]
    fn one_at_a_time_whoever_has_to_wait() {
        let mutex = Mutex::new(0u32);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        let mut inside = lock(&mutex);
                        let seen = *inside;
                        std::thread::yield_now();
                        *inside = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*lock(&mutex), 4_000);
    }

    #[test]
    fn a_panic_of_who_had_it_is_not_passed_on() {
        let mutex = Mutex::new(1);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = lock(&mutex);
            panic!("on purpose");
        }));
        assert_eq!(*lock(&mutex), 1);
    }
}
