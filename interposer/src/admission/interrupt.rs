//! Ctrl-C while a job waits for memory, and the end of one that is not to wait.
//!
//! A program that handles SIGINT itself (Python) does not end by it: its handler notes the signal
//! and acts when the call returns. So for as long as the call waits, the handlers of SIGINT and
//! SIGTERM are ours: they note the signal too, then do what the program's own would have done. With
//! no handler of the program's nothing is changed: the signal ends the process as ever.
//!
//! A Python script that waits for its first context is ended by Ctrl-C as a program without a
//! handler is ([`Watch::ends_script`]). Its interpreter would hear of the signal and of the error
//! of the call that was broken off at the same time, and fall over both: it prints neither properly
//! and ends with code 1, and a shell's loop goes on to the next round.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use super::script;
use crate::thread;

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

/// The one that came is SIGINT.
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

/// Watches that live: threads of a process on several devices may wait at the same time, each for
/// its own device's memory.
static WATCHES: AtomicUsize = AtomicUsize::new(0);

/// While one lives, signals are noted.
#[derive(Debug)]
pub struct Watch(());

impl Watch {
    /// Begins to note them, unless another watch does.
    pub fn begin() -> Watch {
        if WATCHES.fetch_add(1, Ordering::AcqRel) == 0 {
            CAME.store(false, Ordering::Release);
            for ((signal, handler), detailed) in SIGNALS.iter().zip(&HANDLERS).zip(&DETAILED) {
                let Some(mut action) = action_of(*signal) else { continue };
                // Ours never stands in the program's place: it would call itself.
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
        Watch(())
    }

    /// Whether one came.
    pub fn came(&self) -> bool {
        CAME.load(Ordering::Acquire)
    }

    /// Ends the process by the SIGINT that came, if it is a Python script whose interpreter has the
    /// handler. Somebody at a prompt (a notebook) goes on with it, and a program with a handler of
    /// its own does as that says.
    pub fn ends_script(&self) {
        let handler = HANDLERS.first().map_or(0, |handler| handler.load(Ordering::Acquire));
        if INTERRUPTED.load(Ordering::Acquire) && handler != 0 && script::runs(handler) {
            die_of(libc::SIGINT);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if WATCHES.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        for ((signal, handler), detailed) in SIGNALS.iter().zip(&HANDLERS).zip(&DETAILED) {
            // A handler that the program has installed meanwhile, from another thread, stays.
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

/// What is done about a signal now.
fn action_of(signal: libc::c_int) -> Option<libc::sigaction> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the pointer is to a local large enough; null changes nothing.
    let failed = unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) } != 0;
    // SAFETY: zeros are an action, and the call filled it if it did not fail.
    (!failed).then(|| unsafe { now.assume_init() })
}

fn set(signal: libc::c_int, action: &libc::sigaction) {
    // SAFETY: the action is one that was there, or that with our handler, which has the signature
    // that SA_SIGINFO says.
    let _ = unsafe { libc::sigaction(signal, action, ptr::null_mut()) };
}

/// Ends the process as this signal does that nobody handles, so that whoever waits for it sees
/// that.
fn die_of(signal: libc::c_int) -> ! {
    // SAFETY: zeros are an action: the default one, without flags.
    let default = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    set(signal, &default);
    let mut only = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the pointer is to a local large enough for a set.
    unsafe { libc::sigemptyset(only.as_mut_ptr()) };
    // SAFETY: as above; the set is empty.
    unsafe { libc::sigaddset(only.as_mut_ptr(), signal) };
    // SAFETY: the set was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), ptr::null_mut()) };
    // SAFETY: the signal exists.
    unsafe { libc::raise(signal) };
    // The first process of a container is not ended by it.
    end(128 + signal)
}

/// Ends the process with this code if it has not ended by itself before `time` is over. What it has
/// in the C library's buffers is written then, unless a thread of its own keeps those locked (one
/// that reads its input, say).
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

/// At the process' own end (`exit`, or the return from `main`): the rest of that end goes on as it
/// would have, with this exit code. For a handler of `atexit`.
///
/// glibc takes a call of `exit` within such a handler for this very wish: the handlers that are
/// left run, the buffers are written, and the last code counts.
pub fn end_with(code: libc::c_int) -> ! {
    // SAFETY: called by the thread that is within `exit` already; nothing of ours is locked.
    unsafe { libc::exit(code) }
}

fn end(code: libc::c_int) -> ! {
    // SAFETY: nothing is touched; no destructor and no handler runs, as none has anything of the
    // device to give back.
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
        let (one, two) = (Watch::begin(), Watch::begin());
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
        let three = Watch::begin();
        assert!(!three.came(), "an old one counts no more");
        // What the program installs meanwhile stays.
        set(libc::SIGTERM, &before);
        drop(three);
        assert_eq!(
            action_of(libc::SIGTERM).map(|action| action.sa_sigaction),
            Some(before.sa_sigaction)
        );
    }
}
