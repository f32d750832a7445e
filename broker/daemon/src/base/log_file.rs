// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker's log: a thread writes to stderr, because a reader of stderr may be slow or absent.
//!
//! Logging never waits. Lines that do not fit are dropped; the next line that fits reports their
//! number.
//!
//! If stderr is a file that only the broker uses, the file is rotated at [`MAX_LOG_BYTES`].
//!
//! A line begins with the time, in UTC. For the journal, which adds times itself, it begins with
//! the level in the format of sd-daemon(3).
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use log::{Level, LevelFilter};
use weft_profiles::calendar::{DAY_S, civil};

use super::thread_priority::ThreadPriority;

/// Lines that may wait.
const WAITING: usize = 1024;

/// Size in bytes at which a log file is rotated. The old file remains until the next rotation. A
/// shared broker's log is next to its socket, in memory (`/run`).
const MAX_LOG_BYTES: u64 = 1 << 20;

/// Longest wait for the last lines at the program's end.
const LAST_LINES: Duration = Duration::from_millis(500);

/// The level of this name.
pub fn level(text: &str) -> Option<LevelFilter> {
    text.trim().parse().ok()
}

/// Sets the level of a running log, unless `WEFT_LOG` sets it; `None`: `info`.
pub(crate) fn set_level(text: Option<&str>) {
    if said().is_none() {
        log::set_max_level(text.and_then(level).unwrap_or(LevelFilter::Info));
    }
}

/// Logs a warning, for a program that does not use the log's macros.
pub fn warn(line: &str) {
    log::warn!("{line}");
}

/// Value of `WEFT_LOG`, if it is set and not empty.
fn said() -> Option<String> {
    std::env::var("WEFT_LOG").ok().filter(|said| !said.is_empty())
}

/// Starts logging at level `otherwise`, else at `info`. `WEFT_LOG` has precedence unless
/// `by_option`. `own`: path of the file behind stderr, if only the broker uses it. Keep the result
/// until the end.
pub fn begin(otherwise: Option<&str>, by_option: bool, own: Option<PathBuf>) -> LogFile {
    let (lines, incoming) = sync_channel::<Vec<u8>>(WAITING);
    let (done, ended) = sync_channel(1);
    let dropped = Arc::new(AtomicU64::new(0));
    let lost = Arc::clone(&dropped);
    let started = std::thread::Builder::new().name("weft-journal".into()).spawn(move || {
        ThreadPriority::Last.take();
        write_all(&incoming, &lost, own.as_deref());
        let _ = done.try_send(());
    });
    let said = said().filter(|_| !by_option);
    // A value that is neither a level nor a list of modules would silence the whole log.
    let unknown = said.clone().filter(|said| {
        let filters = said.contains(['=', ',', '/']);
        !filters && said.trim().parse::<log::LevelFilter>().is_err()
    });
    let mut builder = match (&said, &unknown) {
        (Some(_), None) => env_logger::Builder::from_env(env_logger::Env::new().filter("WEFT_LOG")),
        _ => env_logger::Builder::new(),
    };
    let movable = said.is_none();
    if movable {
        // Only the global limit, which `set_level` changes, applies.
        builder.filter_level(LevelFilter::Trace);
    } else if unknown.is_some() {
        builder.filter_level(LevelFilter::Info);
    }
    let journal = is_journal();
    builder.format(move |out, record| {
        let level = record.level().as_str().to_lowercase();
        writeln!(
            out,
            "{}weft broker: {level}: {}",
            LineBegin(record.level(), journal),
            record.args()
        )
    });
    if started.is_ok() {
        builder.target(env_logger::Target::Pipe(Box::new(Pipe {
            lines: lines.clone(),
            dropped,
        })));
    }
    // Fails only for a second logger in one process; the first continues.
    let _ = builder.try_init();
    if movable {
        log::set_max_level(otherwise.and_then(level).unwrap_or(LevelFilter::Info));
    }
    if let Some(unknown) = unknown {
        log::warn!("WEFT_LOG={unknown} is not one of off, error, warn, info, debug, trace; using info");
    }
    LogFile { lines, ended }
}

/// Whether stderr goes to the journal: systemd gives the file's device and inode.
fn is_journal() -> bool {
    let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let found = rustix::fs::fstat(io::stderr().as_fd());
    found.is_ok_and(|facts| named == format!("{}:{}", facts.st_dev, facts.st_ino))
}

/// Begin of a line: its level for the journal, else the time.
struct LineBegin(Level, bool);

impl fmt::Display for LineBegin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LineBegin(level, journal) = *self;
        match (journal, level) {
            (true, Level::Error) => out.write_str("<3>"),
            (true, Level::Warn) => out.write_str("<4>"),
            (true, Level::Info) => out.write_str("<6>"),
            (true, Level::Debug | Level::Trace) => out.write_str("<7>"),
            (false, _) => write!(out, "{} ", utc(SystemTime::now())),
        }
    }
}

/// A time in UTC, in seconds (RFC 3339).
fn utc(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil((seconds / DAY_S) as i64);
    let of_day = seconds % DAY_S;
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The log; dropping it writes the last lines.
#[derive(Debug)]
pub struct LogFile {
    lines: SyncSender<Vec<u8>>,
    ended: Receiver<()>,
}

impl Drop for LogFile {
    fn drop(&mut self) {
        // An empty line marks the end, since the logger keeps its own sender for ever.
        let _ = self.lines.try_send(Vec::new());
        let _ = self.ended.recv_timeout(LAST_LINES);
    }
}

/// Rotates the log at `path` if it is large: copies it to `path.old` and empties it.
pub fn turn_over(log: &File, path: &Path) -> io::Result<()> {
    let (facts, named) = (log.metadata()?, fs::metadata(path)?);
    let is_it = (facts.dev(), facts.ino()) == (named.dev(), named.ino());
    if facts.len() <= MAX_LOG_BYTES || !is_it {
        return Ok(());
    }
    let mut old = path.as_os_str().to_os_string();
    old.push(".old");
    // A copy, because the file is the stderr of a process. On a full disk the log is emptied
    // nevertheless.
    let kept = fs::copy(path, old);
    log.set_len(0)?;
    kept.map(drop)
}

fn write_all(incoming: &Receiver<Vec<u8>>, lost: &AtomicU64, own: Option<&Path>) {
    let own = own.and_then(|path| Some((File::from(io::stderr().as_fd().try_clone_to_owned().ok()?), path)));
    while let Ok(line) = incoming.recv() {
        if line.is_empty() {
            return;
        }
        let dropped = lost.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let begin = LineBegin(Level::Warn, is_journal());
            let _ = writeln!(
                io::stderr(),
                "{begin}weft broker: warn: {dropped} lines were dropped here"
            );
        }
        // This fails only if stderr is closed.
        let _ = io::stderr().write_all(&line);
        if let Some((log, path)) = &own {
            let _ = turn_over(log, path);
        }
    }
}

struct Pipe {
    lines: SyncSender<Vec<u8>>,
    dropped: Arc<AtomicU64>,
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(TrySendError::Full(_)) = self.lines.try_send(bytes.to_vec()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_begin_with_the_time_or_with_the_journals_level() {
        let at = UNIX_EPOCH + Duration::from_secs(951_827_696);
        assert_eq!(utc(at), "2000-02-29T12:34:56Z");
        assert_eq!(LineBegin(Level::Warn, true).to_string(), "<4>");
        assert_eq!(LineBegin(Level::Info, true).to_string(), "<6>");
        let plain = LineBegin(Level::Info, false).to_string();
        assert!(plain.ends_with("Z ") && plain.len() == 21, "{plain}");
    }

    #[test]
    fn levels_have_names() {
        assert_eq!(level(" Debug "), Some(LevelFilter::Debug));
        assert_eq!((level("off"), level("loud")), (Some(LevelFilter::Off), None));
    }
}
