// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inherited signal dispositions that a job must keep.
//!
//! * Rust's runtime ignores SIGPIPE before `main`, and `Command` resets it in a child. A job whose
//!   parent ignored SIGPIPE must find it ignored: Python and many servers expect an error code. So
//!   the disposition is read before the runtime starts.
//! * An ignored signal (nohup; a shell's background job) gets no handler: the handler would forward
//!   it and end the job.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGPIPE was ignored when this program started.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before the runtime and `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        PIPE_IGNORED.store(ignored(libc::SIGPIPE), Ordering::Relaxed);
    }
    look
};

/// Whether a signal is ignored now.
pub fn ignored(signal: i32) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the pointer is to a local large enough; null changes nothing.
    let asked = unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) };
    // SAFETY: zeroed or filled by the call, the structure is valid either way.
    let now = unsafe { now.assume_init() };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// Passes SIGPIPE's original disposition on to the job.
pub fn pass_on(command: &mut Command) -> &mut Command {
    if PIPE_IGNORED.load(Ordering::Relaxed) {
        let ignore = || {
            // SAFETY: async-signal-safe, and changes only the new process (or this one right before
            // it becomes the job).
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: the closure makes one async-signal-safe call and touches no memory.
        unsafe { command.pre_exec(ignore) };
    }
    command
}
