// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's own threads. All signals are blocked on them: a client's handler never runs there,
//! and a signal that the client waits for reaches the client. Each lives as long as the process.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Starts a thread. If that fails its streams stop, and stderr has the reason.
pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the pointer is to a local large enough for a set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: both pointers are to locals; the first was filled above. A new thread has the mask of
    // the one that starts it.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) } == 0;
    let started = std::thread::Builder::new().name(name.to_string()).spawn(body);
    if blocked {
        // SAFETY: the call above wrote the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    if let Err(error) = started {
        eprintln!("simcuda[{}] cannot start {name}: {error}", std::process::id());
    }
}
