// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ctrl-C while a job waits for memory, and the end of a job that may not wait.
//!
//! A program's SIGINT handler (Python's) only notes the signal and acts when the call returns. So
//! during a wait weft's handlers of SIGINT and SIGTERM note the signal and call the program's
//! handlers. If the program has no handler, nothing changes.
//!
//! Ctrl-C also ends a Python script that waits for its first context
//! ([`SignalWatch::ends_script`]). If the interpreter got signal and error at once, it would exit
//! with code 1, and a shell's loop would continue.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use super::script;
use crate::thread;

const STACK: usize = 64 * 1024;

const FLUSH: Duration = Duration::from_millis(500);

const SIGNALS: [libc::c_int; 2] = [libc::SIGINT, libc::SIGTERM];

/// The program's handlers (0: none), and whether each takes three arguments.
static HANDLERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static DETAILED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
static CAME: AtomicBool = AtomicBool::new(false);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn noted(signal: libc::c_int, about: *mut libc::siginfo_t, context: *mut libc::c_void) {
    INTERRUPTED.store(signal == libc::SIGINT, Ordering::Release);
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

/// Live watches: threads may wait for several devices at once.
static WATCHES: AtomicUsize = AtomicUsize::new(0);

/// Notes signals while it lives.
#[derive(Debug)]
pub struct SignalWatch(());

impl SignalWatch {
    /// Installs weft's handlers, unless another watch has.
    pub fn begin() -> SignalWatch {
        if WATCHES.fetch_add(1, Ordering::AcqRel) == 0 {
            CAME.store(false, Ordering::Release);
            for ((signal, handler), detailed) in SIGNALS.iter().zip(&HANDLERS).zip(&DETAILED) {
                let Some(mut action) = action_of(*signal) else { continue };
                // Weft's handler in the program's place would call itself.
                if [libc::SIG_DFL, libc::SIG_IGN, ours()].contains(&action.sa_sigaction) {
                    continue;
                }
                detailed.store(action.sa_flags & libc::SA_SIGINFO != 0, Ordering::Release);
                handler.store(action.sa_sigaction, Ordering::Release);
                action.sa_sigaction = ours();
                action.sa_flags |= libc::SA_SIGINFO;
                set(*signal, &action);
            }
        }
        SignalWatch(())
    }

    pub fn came(&self) -> bool {
        CAME.load(Ordering::Acquire)
    }

    /// Ends a Python script with the SIGINT that came. A notebook or prompt continues, and a
    /// program's own handler decides.
    pub fn ends_script(&self) {
        let handler = HANDLERS.first().map_or(0, |handler| handler.load(Ordering::Acquire));
        if INTERRUPTED.load(Ordering::Acquire) && handler != 0 && script::runs(handler) {
            die_of(libc::SIGINT);
        }
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        if WATCHES.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        for ((signal, handler), detailed) in SIGNALS.iter().zip(&HANDLERS).zip(&DETAILED) {
            // If another thread installed a handler meanwhile, it stays.
            let Some(mut action) = action_of(*signal).filter(|action| action.sa_sigaction == ours()) else {
                continue;
            };
            action.sa_sigaction = handler.load(Ordering::Acquire);
            if !detailed.load(Ordering::Acquire) {
                action.sa_flags &= !libc::SA_SIGINFO;
            }
            set(*signal, &action);
        }
    }
}

fn ours() -> usize {
    noted as *const () as usize
}

fn action_of(signal: libc::c_int) -> Option<libc::sigaction> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the pointer is to a local large enough; null changes nothing.
    let failed = unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) } != 0;
    // SAFETY: zeros are an action, and the call filled it if it did not fail.
    (!failed).then(|| unsafe { now.assume_init() })
}

fn set(signal: libc::c_int, action: &libc::sigaction) {
    // SAFETY: the action was there before, or has our handler, which SA_SIGINFO fits.
    let _ = unsafe { libc::sigaction(signal, action, ptr::null_mut()) };
}

/// Ends the process with the signal's default action, which its parent sees.
fn die_of(signal: libc::c_int) -> ! {
    // SAFETY: zeros are the default action.
    let default = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    set(signal, &default);
    let mut only = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the local is large enough for a set.
    unsafe { libc::sigemptyset(only.as_mut_ptr()) };
    // SAFETY: as above; the set is empty.
    unsafe { libc::sigaddset(only.as_mut_ptr(), signal) };
    // SAFETY: the set was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), ptr::null_mut()) };
    // SAFETY: the signal exists.
    unsafe { libc::raise(signal) };
    // The signal does not end the first process of a container.
    end(128 + signal)
}

/// Ends the process with this code if it has not ended within `time`. Flushes the C library's
/// buffers, unless a thread keeps them locked.
pub fn end_within(time: Duration, code: libc::c_int) {
    let waits = move || {
        std::thread::sleep(time);
        let (written, all) = channel();
        let write = move || {
            // SAFETY: null means all streams.
            unsafe { libc::fflush(ptr::null_mut()) };
            let _ = written.send(());
        };
        if thread::spawn(Builder::new().stack_size(STACK), write).is_ok() {
            let _ = all.recv_timeout(FLUSH);
        }
        end(code);
    };
    let thread = Builder::new().name("weft-end".into()).stack_size(STACK);
    if thread::spawn(thread, waits).is_err() {
        end(code);
    }
}

/// Replaces the exit code, in an `atexit` handler. glibc allows `exit` there: the other handlers
/// run, buffers are flushed, and the last code counts.
pub fn end_with(code: libc::c_int) -> ! {
    // SAFETY: this thread is within `exit` already and holds none of our locks.
    unsafe { libc::exit(code) }
}

fn end(code: libc::c_int) -> ! {
    // SAFETY: touches nothing: no destructor and no handler runs.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    static HEARD: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn programs(_: libc::c_int) {
        HEARD.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn two_that_wait_at_once_note_a_signal_and_the_program_hears_it_once() {
        let heard = || HEARD.load(Ordering::SeqCst);
        let raise = || {
            // SAFETY: the signal has a handler.
            unsafe { libc::raise(libc::SIGTERM) };
        };
        let before = action_of(libc::SIGTERM).expect("asked");
        let mut own = before;
        own.sa_sigaction = programs as *const () as usize;
        own.sa_flags = libc::SA_RESTART;
        set(libc::SIGTERM, &own);
        let (one, two) = (SignalWatch::begin(), SignalWatch::begin());
        assert!(!one.came());
        raise();
        assert!(one.came() && two.came());
        assert_eq!(heard(), 1);
        drop(one);
        raise();
        assert_eq!(heard(), 2);
        assert_eq!(action_of(libc::SIGTERM).map(|action| action.sa_sigaction), Some(ours()));
        drop(two);
        let after = action_of(libc::SIGTERM).expect("asked");
        assert_eq!(after.sa_sigaction, own.sa_sigaction);
        assert_eq!(after.sa_flags & libc::SA_SIGINFO, 0);
        let three = SignalWatch::begin();
        assert!(!three.came(), "an old one counts no more");
        // If the program installs a handler meanwhile, it stays.
        set(libc::SIGTERM, &before);
        drop(three);
        assert_eq!(
            action_of(libc::SIGTERM).map(|action| action.sa_sigaction),
            Some(before.sa_sigaction)
        );
    }
}
