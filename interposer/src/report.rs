// SPDX-License-Identifier: MIT OR Apache-2.0
//! Log lines of weft in a job: on stderr, one write each, never on stdout.
//!
//! `WEFT_LOG` sets the level. The sink is set up at the first driver call, so processes without GPU
//! use log nothing. A closed stderr neither ends nor blocks the job.

use std::fmt::Write as _;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use log::{LevelFilter, Log, Metadata, Record};

const VARIABLE: &str = "WEFT_LOG";

/// Values of the variable; unset is `warn`.
const LEVELS: [&str; 7] = ["", "off", "error", "warn", "info", "debug", "trace"];

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let mut text = String::new();
            let _ = write!(
                text,
                "{}: {}",
                record.level().as_str().to_ascii_lowercase(),
                record.args()
            );
            line(&text);
        }
    }

    fn flush(&self) {}
}

/// Sets up the sink. Cheap after the first time.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let wanted = std::env::var(VARIABLE).unwrap_or_default();
        log::set_max_level(level(&wanted));
        // Cannot fail: this library's own copy of `log` has no other sink.
        let _ = log::set_logger(&Stderr);
        crate::internal_error::watch();
        if !LEVELS.contains(&wanted.as_str()) {
            log::warn!("{VARIABLE}={wanted} is not one of off, error, warn, info, debug, trace; using warn");
        }
    });
}

/// Logs a line at any level but off.
pub fn always(text: &str) {
    start();
    if log::max_level() != LevelFilter::Off {
        line(text);
    }
}

/// Logs a warning unless this flag is set, and sets it.
pub fn once(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed) {
        start();
        log::warn!("{text}");
    }
}

fn level(text: &str) -> LevelFilter {
    match text {
        "off" => LevelFilter::Off,
        "error" => LevelFilter::Error,
        "info" => LevelFilter::Info,
        "debug" => LevelFilter::Debug,
        "trace" => LevelFilter::Trace,
        _ => LevelFilter::Warn,
    }
}

/// Writes a line at once, so that lines of several processes do not mix.
fn line(text: &str) {
    // A write is a cancellation point within the job's call.
    let _whole = crate::thread::uncancelled();
    let text = format!("weft[{}]: {text}\n", std::process::id());
    let mut pipe = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is large enough; any content is valid.
    unsafe { libc::sigemptyset(pipe.as_mut_ptr()) };
    // SAFETY: as above; the signal exists.
    unsafe { libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE) };
    // A write to a closed pipe raises SIGPIPE in this thread, which would end the job.
    // SAFETY: both sets are initialised.
    if unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr()) } != 0 {
        return;
    }
    // SAFETY: the text's bytes are readable.
    let written = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    if written < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPIPE) {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and time are initialised; takes the signal that the write left pending, if
        // any.
        unsafe { libc::sigtimedwait(pipe.as_ptr(), std::ptr::null_mut(), &none) };
    }
    // SAFETY: `before` was filled by the first call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        assert_eq!(level(""), LevelFilter::Warn);
        assert_eq!(level("off"), LevelFilter::Off);
        assert_eq!(level("debug"), LevelFilter::Debug);
        assert_eq!(level("nonsense"), LevelFilter::Warn);
    }
}
