//! The broker's log: a thread writes to stderr, which may be unread.
//!
//! Logging never waits. Lines that do not fit are dropped, and counted in the next that fits.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use super::thread_priority::ThreadPriority;

/// Lines that may wait.
const WAITING: usize = 1024;

/// Longest wait for the last lines at the program's end.
const LAST_LINES: Duration = Duration::from_millis(500);

/// Starts logging, by `WEFT_LOG` or at level `info`. Keep the result until the end.
pub fn begin() -> LogFile {
    let (lines, incoming) = sync_channel::<Vec<u8>>(WAITING);
    let (done, ended) = sync_channel(1);
    let dropped = Arc::new(AtomicU64::new(0));
    let lost = Arc::clone(&dropped);
    let started = std::thread::Builder::new().name("weft-journal".into()).spawn(move || {
        ThreadPriority::Last.take();
        write_all(&incoming, &lost);
        let _ = done.try_send(());
    });
    let said = std::env::var("WEFT_LOG").ok().filter(|said| !said.is_empty());
    // A word that is neither a level nor a list of modules would silence everything.
    let unknown = said.filter(|said| {
        let filters = said.contains(['=', ',', '/']);
        !filters && said.trim().parse::<log::LevelFilter>().is_err()
    });
    let mut builder = match &unknown {
        None => env_logger::Builder::from_env(env_logger::Env::new().filter_or("WEFT_LOG", "info")),
        Some(_) => env_logger::Builder::new(),
    };
    if unknown.is_some() {
        builder.filter_level(log::LevelFilter::Info);
    }
    builder.format(|out, record| {
        let level = record.level().as_str().to_lowercase();
        writeln!(out, "weft broker: {level}: {}", record.args())
    });
    if started.is_ok() {
        builder.target(env_logger::Target::Pipe(Box::new(Pipe {
            lines: lines.clone(),
            dropped,
        })));
    }
    // Fails only for a second logger in one process; the first goes on.
    let _ = builder.try_init();
    if let Some(unknown) = unknown {
        log::warn!("WEFT_LOG={unknown} is none of off, error, warn, info, debug, trace; taken as info");
    }
    LogFile { lines, ended }
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

fn write_all(incoming: &Receiver<Vec<u8>>, lost: &AtomicU64) {
    while let Ok(line) = incoming.recv() {
        if line.is_empty() {
            return;
        }
        let dropped = lost.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let _ = writeln!(io::stderr(), "weft broker: warn: {dropped} lines were dropped here");
        }
        // If this fails, stderr is gone.
        let _ = io::stderr().write_all(&line);
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
