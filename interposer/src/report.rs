//! What weft says in a job: lines on stderr, each one write, never on stdout.
//!
//! `WEFT_LOG` chooses how much (off, error, warn, info, debug; default warn). The sink is set up
//! when the driver is first called, so processes that never use the GPU say nothing. A stderr that
//! nobody reads any more neither ends nor blocks the job.

use std::fmt::Write as _;
use std::sync::Once;

use log::{LevelFilter, Log, Metadata, Record};

/// How much is said.
const VARIABLE: &str = "WEFT_LOG";

/// What the variable may say; nothing is `warn`.
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
        // This library's own copy of `log` has no other sink, so this cannot fail.
        let _ = log::set_logger(&Stderr);
        crate::internal_error::watch();
        if !LEVELS.contains(&wanted.as_str()) {
            log::warn!("{VARIABLE}={wanted} is none of off, error, warn, info, debug, trace; taken as warn");
        }
    });
}

/// Says a line that a person must see whatever the level, unless weft was told to be silent.
pub fn always(text: &str) {
    start();
    if log::max_level() != LevelFilter::Off {
        line(text);
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

/// One write a line, so that lines of several processes do not mix.
fn line(text: &str) {
    // To write is a cancellation point, and those who say something do so from within calls of the
    // job's.
    let _whole = crate::thread::uncancelled();
    let text = format!("weft[{}]: {text}\n", std::process::id());
    let mut pipe = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is large enough; any content is a valid set.
    unsafe { libc::sigemptyset(pipe.as_mut_ptr()) };
    // SAFETY: as above; the signal exists.
    unsafe { libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE) };
    // A write to a pipe that nobody reads raises SIGPIPE in this thread, which would end a job for
    // a remark of ours.
    // SAFETY: both sets are initialised.
    if unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr()) } != 0 {
        return;
    }
    // SAFETY: the text's bytes are readable.
    let written = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    if written < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPIPE) {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time are initialised; takes the signal that our write left
        // pending, if any.
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
