//! Ctrl-C while a job waits for memory, and the end of one that is not to wait.
//!
//! A program that handles SIGINT itself (Python) does not end by it: its handler notes the signal and acts when the call returns. So for as long as the call
//! waits, the handlers of SIGINT and SIGTERM are ours: they note the signal too, then do what the program's own would have done. With no handler of
//! the program's nothing is changed: the signal ends the process as ever.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use super::helper;

/// Stack of a thread that sleeps and ends the process.
const STACK: usize = 64 * 1024;

/// How long the writing of buffers may hold up the end of a process that is ended.
const FLUSH: Duration = Duration::from_millis(500);

/// The signals by which a person ends a job.
const SIGNALS: [libc::c_int; 2] = [libc::SIGINT, libc::SIGTERM];

/// The program's handlers, and whether they take three arguments.
static HANDLERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static DETAILED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
static CAME: AtomicBool = AtomicBool::new(false);

extern "C" fn noted(signal: libc::c_int, about: *mut libc::siginfo_t, context: *mut libc::c_void) {
    CAME.store(true, Ordering::Release);
    let Some(at) = SIGNALS.iter().position(|known| *known == signal) else {
        return;
    };
    let (Some(handler), Some(detailed)) = (HANDLERS.get(at), DETAILED.get(at)) else {
        return;
    };
    let handler = handler.load(Ordering::Acquire);
    if handler == 0 {
        return;
    }
    if detailed.load(Ordering::Acquire) {
        type Detailed = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: the program installed this address as a handler of three arguments.
        let handler = unsafe { std::mem::transmute::<usize, Detailed>(handler) };
        handler(signal, about, context);
    } else {
        // SAFETY: the program installed this address as a handler of one argument.
        let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
        handler(signal);
    }
}

/// While it lives, signals are noted.
#[derive(Debug)]
pub struct Watch {
    before: [Option<libc::sigaction>; 2],
}

impl Watch {
    /// Begins to note them. One thread at a time waits, so there is one watch at a time.
    pub fn begin() -> Watch {
        CAME.store(false, Ordering::Release);
        let mut watch = Watch { before: [None, None] };
        let places = SIGNALS.iter().zip(&HANDLERS).zip(&DETAILED).zip(&mut watch.before);
        for (((signal, handler), detailed), before) in places {
            let mut now = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: the pointer is to a local large enough; null changes nothing.
            if unsafe { libc::sigaction(*signal, ptr::null(), now.as_mut_ptr()) } != 0 {
                continue;
            }
            // SAFETY: the call filled it.
            let now = unsafe { now.assume_init() };
            if now.sa_sigaction == libc::SIG_DFL || now.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            detailed.store(now.sa_flags & libc::SA_SIGINFO != 0, Ordering::Release);
            handler.store(now.sa_sigaction, Ordering::Release);
            let mut ours = now;
            ours.sa_sigaction = noted as *const () as usize;
            ours.sa_flags |= libc::SA_SIGINFO;
            // SAFETY: both pointers are to locals; the handler has the signature that SA_SIGINFO says.
            if unsafe { libc::sigaction(*signal, &ours, ptr::null_mut()) } == 0 {
                *before = Some(now);
            }
        }
        watch
    }

    /// Whether one came.
    pub fn came(&self) -> bool {
        CAME.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (signal, before) in SIGNALS.iter().zip(&self.before) {
            let Some(before) = before else { continue };
            let mut now = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: the pointer is to a local large enough; null changes nothing.
            if unsafe { libc::sigaction(*signal, ptr::null(), now.as_mut_ptr()) } != 0 {
                continue;
            }
            // SAFETY: the call filled it.
            let now = unsafe { now.assume_init() };
            // A handler that the program has installed meanwhile, from another thread, stays.
            if now.sa_sigaction == noted as *const () as usize {
                // SAFETY: what the program had there before.
                let _ = unsafe { libc::sigaction(*signal, before, ptr::null_mut()) };
            }
        }
    }
}

/// Ends the process with this code if it has not ended by itself before `time` is over. What it has in the C library's buffers is written then, unless a thread of its own keeps those
/// locked (one that reads its input, say).
pub fn end_within(time: Duration, code: libc::c_int) {
    let waits = move || {
        std::thread::sleep(time);
        let (written, all) = channel();
        let write = move || {
            // SAFETY: null means all streams.
            unsafe { libc::fflush(ptr::null_mut()) };
            let _ = written.send(());
        };
        if helper::spawn(Builder::new().stack_size(STACK), write).is_ok() {
            let _ = all.recv_timeout(FLUSH);
        }
        end(code);
    };
    let thread = Builder::new().name("weft-end".into()).stack_size(STACK);
    if helper::spawn(thread, waits).is_err() {
        end(code);
    }
}

/// At the process' own end (`exit`, or the return from `main`): the rest of that end goes on as it would have, with this exit code. For a handler of `atexit`.
///
/// glibc takes a call of `exit` within such a handler for this very wish: the handlers that are left run, the buffers are written, and the last code counts.
pub fn end_with(code: libc::c_int) -> ! {
    // SAFETY: called by the thread that is within `exit` already; nothing of ours is locked.
    unsafe { libc::exit(code) }
}

fn end(code: libc::c_int) -> ! {
    // SAFETY: nothing is touched; no destructor and no handler runs, as none has anything of the device to give back.
    unsafe { libc::_exit(code) }
}
