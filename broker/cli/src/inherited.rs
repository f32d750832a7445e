//! What this process got from its parent and a job of it is to get, too: which signals are ignored.
//!
//! * Rust's runtime ignores SIGPIPE before `main`, and its `Command` gives a child the default. A
//!   job whose parent had it ignored (Python and many servers do, and expect an error code in place
//!   of their death) must find it ignored under weft. What it was is looked at before the runtime
//!   begins.
//! * A signal that was ignored (nohup; a shell's background job) is not taken either: taking it
//!   would end the job by what it was kept from.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGPIPE was ignored when this program began.
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

/// Whether a signal is ignored here now.
pub fn ignored(signal: i32) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the pointer is to a local large enough; null changes nothing.
    let asked = unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) };
    // SAFETY: zeroed or filled by the call, the structure is valid either way.
    let now = unsafe { now.assume_init() };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// Has the job begin with SIGPIPE as this program was given it.
pub fn pass_on(command: &mut Command) -> &mut Command {
    if PIPE_IGNORED.load(Ordering::Relaxed) {
        let ignore = || {
            // SAFETY: async-signal-safe, and changes the new process alone (or this one right
            // before it becomes the job).
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: the closure makes one async-signal-safe call and touches no memory.
        unsafe { command.pre_exec(ignore) };
    }
    command
}
