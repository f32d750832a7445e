// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inherited signal dispositions and descriptors that a job must keep.
//!
//! * Rust's runtime ignores SIGPIPE before `main`, and `Command` resets it in a child. A job whose
//!   parent ignored SIGPIPE must find it ignored: Python and many servers expect an error code. So
//!   the disposition is read before the runtime starts.
//! * The runtime also opens /dev/null in place of a closed standard descriptor. A job finds it
//!   closed, and weft does not print to it as if it were read.
//! * An ignored signal (nohup; a shell's background job) gets no handler: the handler would forward
//!   it and end the job.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Whether SIGPIPE was ignored when this program started.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Standard descriptors that were closed when this program started, as bits.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Runs before the runtime and `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        PIPE_IGNORED.store(ignored(libc::SIGPIPE), Ordering::Relaxed);
        for descriptor in 0..3 {
            // SAFETY: reads the flags of a number, open or not.
            let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
            CLOSED.fetch_or(u8::from(flags < 0) << descriptor, Ordering::Relaxed);
        }
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

/// Whether this standard descriptor was closed when this program started.
pub fn is_closed(descriptor: i32) -> bool {
    CLOSED.load(Ordering::Relaxed) & 1 << descriptor != 0
}

/// Passes SIGPIPE's original disposition, and closed standard descriptors, on to the job.
pub fn pass_on(command: &mut Command) -> &mut Command {
    let (pipe, closed) = (PIPE_IGNORED.load(Ordering::Relaxed), CLOSED.load(Ordering::Relaxed));
    if pipe || closed != 0 {
        let restore = move || {
            if pipe {
                // SAFETY: async-signal-safe, and changes only the new process (or this one right
                // before it becomes the job).
                unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            }
            for descriptor in (0..3).filter(|&descriptor| closed & 1 << descriptor != 0) {
                // SAFETY: async-signal-safe; the runtime's /dev/null, which nothing here uses.
                unsafe { libc::close(descriptor) };
            }
            Ok(())
        };
        // SAFETY: the closure makes only async-signal-safe calls and touches no memory.
        unsafe { command.pre_exec(restore) };
    }
    command
}
