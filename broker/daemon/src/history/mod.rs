// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ended jobs on disk, in an SQLite file of bounded size.
//!
//! Invariants:
//! * A separate thread writes. Other threads put rows into a bounded queue and never wait. If the
//!   queue is full, the row is dropped and counted.
//! * The file has at most [`MOST_ROWS`] rows and [`MOST_BYTES`] bytes. The oldest rows of the user
//!   with the most rows, or bytes, are deleted first.
//! * The file is opened for each batch of rows. So it may be deleted or set aside meanwhile, and
//!   several brokers of one user can write to one file.
//! * A damaged or foreign file is renamed to `history.sqlite.damaged`, a warning is logged, and a
//!   new file is created. A process that writes or renames holds the folder's lock: a file that one
//!   process found damaged may have been replaced by another process.
//!
//! Reasons for SQLite instead of a file of lines: a power cut during a write loses no older row.
//! The oldest rows are deleted without a copy of the rest. Several processes may write, and users
//! can query the file in SQL.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use weft_api::history::{HistoryQuery, HistoryRow};

use crate::base::job_end::JobEnd;
use crate::base::thread_priority::ThreadPriority;
use weft_api::outcome::Outcome;
use weft_api::paths::Places;
use weft_api::recording::JobRecording;
use weft_api::status::{Ending, Exit};

mod open_books;
mod recordings;

pub(crate) use open_books::{BookChange, OpenBook, RowKey};
pub use recordings::read_recorded;

/// Most rows of the file: months of a busy machine.
pub(crate) const MOST_ROWS: u64 = 10_000;

/// Most bytes of the file. A row takes one to three thousand.
pub(crate) const MOST_BYTES: u64 = 32 << 20;

/// Part of the rows, as a divisor, that is deleted at once if the file is full.
const GOES_AT_ONCE: u64 = 10;

/// Most rows that wait for the disk.
const WAITING_ROWS: usize = 1024;

/// Longest wait while another process writes.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);

/// Time between two tries for the folder's lock.
const LOCK_PERIOD: Duration = Duration::from_millis(5);

/// Longest wait for the last rows when the broker ends: [`EXIT_PATIENCE`], and a slow disk.
/// Beside eight times more work than cores a thread of the last priority needs more than 4 s.
/// `weft stop` waits 15 s for all files.
const LAST_ROWS: Duration = Duration::from_secs(10);

/// Longest wait of a row for the end of its process. A client ends as its process exits, which
/// takes seconds if it has tens of gigabytes of the host's memory.
const EXIT_PATIENCE: Duration = Duration::from_secs(5);

/// Longest wait for such ends while other rows may come.
const EXIT_PERIOD: Duration = Duration::from_millis(20);

/// Version of the tables, in `user_version`.
const SCHEMA_VERSION: i64 = 4;

const SCHEMA: &str = "
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        ended_ms INTEGER NOT NULL,
        ran_s REAL NOT NULL,
        uid INTEGER NOT NULL,
        pid INTEGER NOT NULL,
        client INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        command TEXT NOT NULL,
        profile TEXT,
        device TEXT,
        ending TEXT NOT NULL,
        gpu_ns INTEGER,
        lost_ns INTEGER,
        cost_ns INTEGER,
        outcome TEXT NOT NULL,
        name TEXT,
        exit_code INTEGER,
        exit_signal INTEGER,
        cancelled INTEGER,
        gang TEXT
    );
    CREATE INDEX jobs_ended ON jobs (ended_ms);
    CREATE INDEX jobs_user ON jobs (uid);
    PRAGMA user_version = 4;";

/// Changes version 1, which had no names, into version 2, that, which had no exit codes, into
/// version 3, and that, which had no gangs, into version 4.
const CHANGES: [&str; 3] = [
    "ALTER TABLE jobs ADD COLUMN name TEXT;
    PRAGMA user_version = 2;",
    "ALTER TABLE jobs ADD COLUMN exit_code INTEGER;
    ALTER TABLE jobs ADD COLUMN exit_signal INTEGER;
    ALTER TABLE jobs ADD COLUMN cancelled INTEGER;
    CREATE INDEX jobs_user ON jobs (uid);
    PRAGMA user_version = 3;",
    "ALTER TABLE jobs ADD COLUMN gang TEXT;
    PRAGMA user_version = 4;",
];

/// Reason why the history cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// No folder for it is known.
    #[error("no folder for the history of jobs: set WEFT_STATE_DIR or HOME")]
    NoPlace,
    /// The folder or file cannot be made.
    #[error("the history of jobs at {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is of a newer weft.
    #[error("the history of jobs at {path} is of a newer weft (format {version}): use the newer weft command")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: i64,
    },
    /// An error of SQLite.
    #[error("the history of jobs at {path}: {source}")]
    Sql {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rusqlite::Error,
    },
}

impl HistoryError {
    /// Whether the file is damaged, or is not an SQLite file of weft.
    fn is_damage(&self) -> bool {
        let HistoryError::Sql { source, .. } = self else {
            return false;
        };
        match source {
            rusqlite::Error::SqliteFailure(failure, said) => {
                // An SQLite file without the table is not weft's, or lost its first page.
                matches!(failure.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
                    || said
                        .as_deref()
                        .is_some_and(|said| said.starts_with("no such table") || said.starts_with("no such column"))
            }
            rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..) => true,
            _ => false,
        }
    }

    fn is_full(&self) -> bool {
        let HistoryError::Sql { source, .. } = self else {
            return false;
        };
        source.sqlite_error_code() == Some(ErrorCode::DiskFull)
    }

    /// The error with its consequence and its remedy, one line.
    fn with_remedy(&self) -> String {
        let remedy = match self {
            HistoryError::NoPlace | HistoryError::Newer { .. } => String::new(),
            _ if self.is_full() => ": free space on its disk".to_string(),
            _ => ": make it writable, or set WEFT_STATE_DIR to another folder and replace the broker".to_string(),
        };
        format!("{self}; jobs that end now are not recorded{remedy}")
    }
}

/// The file of a broker's jobs: in `WEFT_STATE_DIR`, else in the user's state folder. A shared
/// broker's file is in `/var/lib/weft`, or next to its socket if that is not the usual one.
pub fn file(places: &Places) -> Result<PathBuf, HistoryError> {
    let shared = places.is_shared().then(|| places.socket());
    file_from(|name| std::env::var_os(name).filter(|value| !value.is_empty()), shared)
}

/// The file as in [`file()`], for a broker that knows whether it is shared.
pub(crate) fn file_of(places: &Places, shared: bool) -> Result<PathBuf, HistoryError> {
    let shared = shared.then(|| places.socket());
    file_from(|name| std::env::var_os(name).filter(|value| !value.is_empty()), shared)
}

fn file_from(variable: impl Fn(&str) -> Option<OsString>, shared: Option<&Path>) -> Result<PathBuf, HistoryError> {
    const NAME: &str = "history.sqlite";
    if let Some(folder) = variable("WEFT_STATE_DIR") {
        return Ok(PathBuf::from(folder).join(NAME));
    }
    if let Some(socket) = shared {
        if socket == Path::new(weft_protocol::transport::path::SHARED) {
            return Ok(Path::new("/var/lib/weft").join(NAME));
        }
        let mut name = socket.file_name().unwrap_or_default().to_os_string();
        name.push(".");
        name.push(NAME);
        return Ok(socket.with_file_name(name));
    }
    let state = variable("XDG_STATE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    let state = state.or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".local/state")));
    Ok(state.ok_or(HistoryError::NoPlace)?.join("weft").join(NAME))
}

/// Adds rows. Creates folder and file if missing; a damaged file is set aside first. Returns the
/// line about a damaged file.
pub(crate) fn add(path: &Path, rows: &[HistoryRow]) -> Result<Option<String>, HistoryError> {
    make(path)?;
    let _lock = lock_folder(path);
    match add_once(path, rows, MOST_ROWS, MOST_BYTES) {
        Err(error) if error.is_damage() => {
            let said = set_aside(path)?;
            add_once(path, rows, MOST_ROWS, MOST_BYTES)?;
            Ok(said)
        }
        other => other.map(|()| None),
    }
}

/// Reads rows, the newest first; without a file there are none. A damaged file is set aside, and
/// the second value is the line about it.
pub fn read(path: &Path, query: &HistoryQuery) -> Result<(Vec<HistoryRow>, Option<String>), HistoryError> {
    let there = || path.exists().then(|| read_once(path, query));
    match there() {
        None => return Ok((Vec::new(), None)),
        Some(Ok(rows)) => return Ok((rows, None)),
        Some(Err(_)) => {}
    }
    // Another process may have set the file aside while it was read. With the lock no process can.
    let _lock = lock_folder(path);
    match there() {
        Some(Err(error)) if error.is_damage() => Ok((Vec::new(), set_aside(path)?)),
        found => found.unwrap_or_else(|| Ok(Vec::new())).map(|rows| (rows, None)),
    }
}

/// The lock of the file's folder, until it is dropped. `None`: the folder has no lock, or the wait
/// took too long. Then rows are written without the lock rather than dropped.
fn lock_folder(path: &Path) -> Option<File> {
    let folder = File::open(path.parent()?).ok()?;
    let begin = Instant::now();
    loop {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(TryLockError::WouldBlock) if begin.elapsed() < BUSY_PATIENCE => std::thread::sleep(LOCK_PERIOD),
            Err(_) => return None,
        }
    }
}

/// Renames a damaged file, which replaces one that was renamed before. `None`: another process
/// renamed it.
fn set_aside(path: &Path) -> Result<Option<String>, HistoryError> {
    let aside = with_end(path, ".damaged");
    // A journal of the damaged file would be played into the new one.
    let _ = std::fs::remove_file(with_end(path, "-journal"));
    match std::fs::rename(path, &aside) {
        Ok(()) => Ok(Some(format!(
            "the history of jobs was damaged: it was renamed to {}, and a new file is created",
            aside.display()
        ))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(HistoryError::File {
            path: path.to_path_buf(),
            source,
        }),
    }
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(end);
    PathBuf::from(name)
}

fn add_once(path: &Path, rows: &[HistoryRow], most_rows: u64, most_bytes: u64) -> Result<(), HistoryError> {
    let failed = |source| HistoryError::Sql {
        path: path.to_path_buf(),
        source,
    };
    make(path)?;
    let mut file = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let version = version(&file, path)?;
    if version < SCHEMA_VERSION {
        // Two brokers may be here: the second finds the tables that the first made.
        let transaction = file.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate);
        let transaction = transaction.map_err(failed)?;
        match self::version(&transaction, path)? {
            0 => transaction.execute_batch(SCHEMA),
            older => (CHANGES.iter().skip(older as usize - 1)).try_for_each(|change| transaction.execute_batch(change)),
        }
        .map_err(failed)?;
        transaction.commit().map_err(failed)?;
    }
    let page: i64 = file
        .query_row("PRAGMA page_size", [], |row| row.get(0))
        .map_err(failed)?;
    let most_pages = (most_bytes as i64 / page.max(1)).max(1);
    file.pragma_update(None, "max_page_count", most_pages).map_err(failed)?;
    for attempt in 0.. {
        match insert(&mut file, rows, most_rows).map_err(failed) {
            // On a full disk the old rows would go, and not make room.
            Err(error) if error.is_full() && attempt < 3 && is_near(&file, most_pages).map_err(failed)? => {
                make_room(&mut file).map_err(failed)?;
            }
            other => return other,
        }
    }
    Ok(())
}

/// Whether the file is near its bound. A batch takes far less than half of it.
fn is_near(file: &Connection, most_pages: i64) -> rusqlite::Result<bool> {
    let pages: i64 = file.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    Ok(pages > most_pages / 2)
}

fn insert(file: &mut Connection, rows: &[HistoryRow], most_rows: u64) -> rusqlite::Result<()> {
    let transaction = file.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    {
        let mut insert = transaction.prepare(
            "INSERT INTO jobs (ended_ms, ran_s, uid, pid, client, priority, command, profile, device, ending,
             gpu_ns, lost_ns, cost_ns, outcome, name, exit_code, exit_signal, cancelled, gang)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
        )?;
        for row in rows {
            let outcome = &row.outcome;
            insert.execute(params![
                row.ended_ms as i64,
                outcome.ran_s,
                row.uid,
                row.pid,
                row.client as i64,
                row.priority,
                row.command,
                row.profile,
                row.device,
                ending_name(row.ending),
                outcome.gpu_ns.map(|ns| ns as i64),
                outcome.lost.map(|lost| lost.ns),
                outcome.cost.map(|cost| cost.ns),
                serde_json::to_string(outcome).unwrap_or_default(),
                row.name,
                row.exit.code,
                row.exit.signal,
                row.exit.cancelled,
                row.gang,
            ])?;
        }
    }
    // Without rows, this shows whether the file can be written.
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    let rows: i64 = transaction.query_row("SELECT count(*) FROM jobs", [], |row| row.get(0))?;
    let over = rows - most_rows as i64;
    if over > 0 {
        // The user with the most rows loses rows, so no user's jobs displace those of another.
        transaction.execute(
            "DELETE FROM jobs WHERE id IN (SELECT id FROM
                (SELECT id, row_number() OVER (PARTITION BY uid ORDER BY id DESC) AS own FROM jobs)
             ORDER BY own DESC, id LIMIT ?1)",
            [over],
        )?;
    }
    transaction.commit()
}

/// Deletes the oldest rows of the user whose rows take the most bytes, up to a tenth of all rows.
/// Their pages are then free for new rows.
fn make_room(file: &mut Connection) -> rusqlite::Result<()> {
    file.execute(
        "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE uid =
            (SELECT uid FROM jobs GROUP BY uid ORDER BY sum(length(outcome) + length(command)) DESC LIMIT 1)
         ORDER BY id LIMIT 1 + (SELECT count(*) FROM jobs) / ?1)",
        [GOES_AT_ONCE as i64],
    )?;
    Ok(())
}

fn read_once(path: &Path, query: &HistoryQuery) -> Result<Vec<HistoryRow>, HistoryError> {
    let failed = |source| HistoryError::Sql {
        path: path.to_path_buf(),
        source,
    };
    let file = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let newer = match version(&file, path)? {
        0 => return Ok(Vec::new()),
        // Opened read-only: the file is not converted until a row is added.
        1 => "NULL, NULL, NULL, NULL, NULL AS gang",
        2 => "name, NULL, NULL, NULL, NULL AS gang",
        3 => "name, exit_code, exit_signal, cancelled, NULL AS gang",
        _ => "name, exit_code, exit_signal, cancelled, gang",
    };
    let mut rows = file
        .prepare(&format!(
            "SELECT * FROM
             (SELECT ended_ms, uid, pid, client, priority, command, profile, device, ending, outcome, {newer}, ran_s, gpu_ns, id FROM jobs)
             WHERE ended_ms >= ?1 AND (?2 IS NULL OR uid = ?2) AND (?4 IS NULL OR gang = ?4) ORDER BY ended_ms DESC, id DESC LIMIT ?3",
        ))
        .map_err(failed)?;
    let since = query
        .since_ms
        .map_or(0, |since| i64::try_from(since).unwrap_or(i64::MAX));
    let last = query
        .last
        .map_or(i64::MAX, |last| i64::try_from(last).unwrap_or(i64::MAX));
    let found = rows.query_map(params![since, query.uid, last, query.gang], |row| {
        let outcome: String = row.get(9)?;
        let ending: String = row.get(8)?;
        Ok(HistoryRow {
            ended_ms: row.get::<_, i64>(0)? as u64,
            uid: row.get(1)?,
            pid: row.get(2)?,
            client: row.get::<_, i64>(3)? as u64,
            name: row.get(10)?,
            gang: row.get(14)?,
            priority: row.get(4)?,
            command: row.get(5)?,
            profile: row.get(6)?,
            device: row.get(7)?,
            ending: ending_of(&ending),
            exit: Exit {
                code: row.get(11)?,
                signal: row.get(12)?,
                cancelled: row.get::<_, Option<bool>>(13)?.unwrap_or(false),
            },
            // Fields of another build are left out. A damaged outcome keeps these figures.
            outcome: Outcome {
                ran_s: row.get(15)?,
                gpu_ns: row.get::<_, Option<i64>>(16)?.and_then(|ns| u64::try_from(ns).ok()),
                ..serde_json::from_str(&outcome).unwrap_or_default()
            },
        })
    });
    found.map_err(failed)?.collect::<Result<_, _>>().map_err(failed)
}

fn ending_name(ending: Ending) -> &'static str {
    match ending {
        Ending::Goodbye => "goodbye",
        Ending::Vanished => "vanished",
        Ending::Detached => "detached",
    }
}

fn ending_of(name: &str) -> Ending {
    match name {
        "goodbye" => Ending::Goodbye,
        "detached" => Ending::Detached,
        _ => Ending::Vanished,
    }
}

/// Creates the folder (0700) and the file (0600) if missing: command lines are private.
/// Makes the folder of the history, for its owner alone.
pub(crate) fn make_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn make(path: &Path) -> Result<(), HistoryError> {
    let failed = |source| HistoryError::File {
        path: path.to_path_buf(),
        source,
    };
    if let Some(folder) = path.parent() {
        make_folder(folder).map_err(failed)?;
    }
    let file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path);
    file.map(drop).map_err(failed)
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection, HistoryError> {
    let failed = |source| HistoryError::Sql {
        path: path.to_path_buf(),
        source,
    };
    if path.is_dir() {
        return Err(HistoryError::File {
            path: path.to_path_buf(),
            source: std::io::ErrorKind::IsADirectory.into(),
        });
    }
    let file = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(failed)?;
    file.busy_timeout(BUSY_PATIENCE).map_err(failed)?;
    Ok(file)
}

/// Version of the file's tables; 0: there are no tables yet.
fn version(file: &Connection, path: &Path) -> Result<i64, HistoryError> {
    let version = file.query_row("PRAGMA user_version", [], |row| row.get(0));
    let version = version.map_err(|source| HistoryError::Sql {
        path: path.to_path_buf(),
        source,
    })?;
    match version {
        0..=SCHEMA_VERSION => Ok(version),
        version => Err(HistoryError::Newer {
            path: path.to_path_buf(),
            version,
        }),
    }
}

/// A job that ended, or whose broker ends.
#[derive(Debug)]
pub(crate) struct EndedJob {
    /// Its row, without the process's end.
    pub row: HistoryRow,
    /// The end of its process; `None`: the process still runs.
    pub end: Option<Arc<JobEnd>>,
    /// Its recording.
    pub recording: Option<JobRecording>,
    /// Its book from the previous broker, and its book for the next one.
    pub books: BookChange,
}

#[derive(Debug)]
enum HistoryMessage {
    Ended(Box<EndedJob>),
    /// Books of clients that run.
    Books(Vec<BookChange>),
    /// Answered when the rows before it are written.
    Flush(SyncSender<()>),
    /// No rows follow.
    Stop,
}

/// Longest wait of a broker's first client for the books, which usually takes some milliseconds,
/// and time between two looks.
const BOOKS_WITHIN: Duration = Duration::from_millis(500);
const BOOKS_PERIOD: Duration = Duration::from_millis(1);

/// The thread's queue.
#[derive(Debug, Clone)]
pub struct HistoryWriter {
    rows: Option<SyncSender<HistoryMessage>>,
    dropped: Arc<AtomicU64>,
    books: Arc<OnceLock<Vec<OpenBook>>>,
    trouble: Trouble,
}

/// Why jobs that end now are not recorded, one line; `None`: they are.
type Trouble = Arc<Mutex<Option<String>>>;

impl HistoryWriter {
    /// A writer without a thread: nothing is stored. `trouble`: the reason.
    pub fn deaf(trouble: Option<String>) -> HistoryWriter {
        HistoryWriter {
            rows: None,
            dropped: Arc::default(),
            books: Arc::new(OnceLock::from(Vec::new())),
            trouble: Arc::new(Mutex::new(trouble)),
        }
    }

    /// Why jobs that end now are not recorded, one line; `None`: they are.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Queues a job. Never waits.
    pub(crate) fn put(&self, ended: EndedJob) {
        if let Some(rows) = &self.rows
            && rows.try_send(HistoryMessage::Ended(Box::new(ended))).is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queues the books of clients that run. Never waits.
    pub(crate) fn keep(&self, books: Vec<OpenBook>) {
        if let Some(rows) = self.rows.as_ref().filter(|_| !books.is_empty()) {
            let opens = |book| BookChange {
                settles: None,
                opens: Some(book),
            };
            // A full queue is a slow disk: the books before them stay.
            let _ = rows.try_send(HistoryMessage::Books(books.into_iter().map(opens).collect()));
        }
    }

    /// Waits until the rows of all processes that have ended by now are written, at most `longest`.
    pub(crate) fn flush(&self, longest: Duration) {
        let (way, written) = sync_channel(1);
        if let Some(rows) = &self.rows
            && rows.try_send(HistoryMessage::Flush(way)).is_ok()
        {
            // A slow disk may take longer.
            let _ = written.recv_timeout(longest);
        }
    }

    /// Books of jobs that still ran when the last broker ended. If the disk does not answer in
    /// [`BOOKS_WITHIN`], there are none from then on: a job's counters continue from its first
    /// look, or not at all.
    pub fn open_books(&self) -> &[OpenBook] {
        let begin = Instant::now();
        while self.books.get().is_none() && begin.elapsed() < BOOKS_WITHIN {
            std::thread::sleep(BOOKS_PERIOD);
        }
        self.books.get_or_init(Vec::new)
    }
}

/// Handle to wait for the last rows when the broker ends, for a bounded time.
#[derive(Debug)]
pub(crate) struct HistoryEnd {
    rows: SyncSender<HistoryMessage>,
    ended: Receiver<()>,
}

impl HistoryEnd {
    /// Waits until all rows so far are written, at most [`LAST_ROWS`].
    pub fn wait(self) {
        // Full only if the disk has stopped; then there is nothing to wait for.
        if self.rows.try_send(HistoryMessage::Stop).is_ok() {
            let _ = self.ended.recv_timeout(LAST_ROWS);
        }
    }
}

/// Starts the thread that writes to `path`.
pub(crate) fn start(path: PathBuf) -> std::io::Result<(HistoryWriter, HistoryEnd)> {
    let (rows, incoming) = sync_channel(WAITING_ROWS);
    let (done, ended) = sync_channel(1);
    let dropped = Arc::new(AtomicU64::new(0));
    let lost = Arc::clone(&dropped);
    let books = Arc::new(OnceLock::new());
    let found = Arc::clone(&books);
    let trouble = Trouble::default();
    let noted = Arc::clone(&trouble);
    std::thread::Builder::new().name("weft-history".into()).spawn(move || {
        // The first client waits for it.
        let read = open_books::load(&path).unwrap_or_else(|error| {
            log::warn!("{error}; outcomes of running jobs start from zero");
            Vec::new()
        });
        if found.set(read).is_err() {
            log::warn!(
                "{}: the disk is slow; outcomes of running jobs start from zero",
                path.display()
            );
        }
        ThreadPriority::Last.take();
        // The first job that ends can then report the trouble.
        add_or_note(&path, &[], &noted);
        write_all(&path, &incoming, &lost, &noted);
        let _ = done.try_send(());
    })?;
    let writer = HistoryWriter {
        rows: Some(rows.clone()),
        dropped,
        books,
        trouble,
    };
    Ok((writer, HistoryEnd { rows, ended }))
}

fn write_all(path: &Path, incoming: &Receiver<HistoryMessage>, dropped: &AtomicU64, trouble: &Trouble) {
    let mut stops = false;
    // Jobs whose processes still end, and the time until which their rows wait for that.
    let mut ending: Vec<(Box<EndedJob>, Instant)> = Vec::new();
    loop {
        let first = match (ending.is_empty(), stops) {
            (true, true) => return,
            (true, false) => match incoming.recv() {
                Ok(first) => Some(first),
                Err(_) => return,
            },
            (false, _) => None,
        };
        let mut flushes = Vec::new();
        for message in first.into_iter().chain(incoming.try_iter()) {
            match message {
                HistoryMessage::Ended(ended) => ending.push((ended, Instant::now() + EXIT_PATIENCE)),
                HistoryMessage::Books(books) => {
                    if let Err(error) = open_books::change(path, &books) {
                        log::debug!("{error}; the next broker does not know the figures of now");
                    }
                }
                HistoryMessage::Flush(way) => flushes.push(way),
                HistoryMessage::Stop => stops = true,
            }
        }
        let (mut rows, mut recordings, mut books) = (Vec::new(), Vec::new(), Vec::new());
        let soon = Instant::now() + EXIT_PERIOD;
        let ended = ending.extract_if(.., |(ended, until)| {
            ended.end.as_ref().is_none_or(|end| {
                ended.row.exit = end.wait(soon.min(*until));
                end.is_settled() || *until <= Instant::now()
            })
        });
        for (ended, _) in ended {
            rows.push(ended.row);
            recordings.push(ended.recording);
            books.push(ended.books);
        }
        if !rows.is_empty() {
            write(path, (&rows, &recordings, &books), trouble);
        }
        for way in flushes {
            // The receiver may have timed out.
            let _ = way.try_send(());
        }
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            log::warn!("the disk is slow: {lost} ended jobs are not in the history");
        }
    }
}

/// Writes a batch.
fn write(path: &Path, (rows, recordings, books): WrittenBatch<'_>, trouble: &Trouble) {
    if !add_or_note(path, rows, trouble) {
        return;
    }
    if let Err(error) = recordings::add(path, rows, recordings) {
        log::warn!("{error}; the recordings of {} jobs are lost", rows.len());
    }
    // A partial row is replaced only if the final row was written.
    if let Err(error) = open_books::change(path, books) {
        log::warn!("{error}; outcomes of jobs that still run start from zero");
    }
}

/// Adds rows, and notes whether that failed. Returns whether they were added.
fn add_or_note(path: &Path, rows: &[HistoryRow], trouble: &Trouble) -> bool {
    let added = add(path, rows);
    let mut noted = trouble.lock().unwrap_or_else(PoisonError::into_inner);
    match added {
        Ok(said) => {
            *noted = None;
            if let Some(said) = said {
                log::warn!("{said}");
            }
        }
        // Logged once, until a write succeeds again.
        Err(error) => {
            let line = error.with_remedy();
            if noted.replace(line.clone()).is_none() {
                log::warn!("{line}");
            }
        }
    }
    noted.is_none()
}

/// Rows, recordings and books of the same jobs.
type WrittenBatch<'a> = (&'a [HistoryRow], &'a [Option<JobRecording>], &'a [BookChange]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::process::Process;
    use weft_api::outcome::LatenessSum;

    fn row(number: u64) -> HistoryRow {
        HistoryRow {
            ended_ms: 1_000 + number,
            uid: (number % 2) as u32,
            pid: 7,
            client: number,
            name: (!number.is_multiple_of(3)).then(|| format!("train{number}")),
            gang: number.is_multiple_of(4).then(|| "night".to_string()),
            priority: 5,
            command: format!("python train{number}.py"),
            profile: None,
            device: Some("a GPU".to_string()),
            ending: Ending::Goodbye,
            exit: Exit {
                code: (!number.is_multiple_of(3)).then_some(number as i32 % 3),
                signal: (number.is_multiple_of(3)).then_some(9),
                cancelled: number.is_multiple_of(5),
            },
            outcome: Outcome {
                ran_s: 1.5,
                gpu_ns: Some(number),
                cost: Some(LatenessSum {
                    ns: -3,
                    part: 0.25,
                    waits: 0,
                }),
                ..Outcome::default()
            },
        }
    }

    fn ended(row: HistoryRow) -> EndedJob {
        EndedJob {
            row,
            end: None,
            recording: None,
            books: BookChange::default(),
        }
    }

    fn rows(range: std::ops::Range<u64>) -> Vec<HistoryRow> {
        range.map(row).collect()
    }

    fn all(path: &Path) -> Vec<HistoryRow> {
        read(path, &HistoryQuery::default()).expect("read").0
    }

    #[test]
    fn a_process_that_ends_slowly_delays_its_own_row() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        let (writer, end) = start(path.clone()).expect("started");
        let mut slow = std::process::Command::new("/bin/sh")
            .args(["-c", "sleep 2; exit 7"])
            .spawn()
            .expect("a shell");
        let pid = rustix::process::Pid::from_child(&slow);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("it is ours");
        let uid = rustix::process::geteuid().as_raw();
        let end_of_slow = JobEnd::new(Process::of(slow.id()), uid, Some(Arc::new(pidfd)));
        writer.put(EndedJob {
            end: Some(Arc::new(end_of_slow)),
            ..ended(row(1))
        });
        writer.put(ended(row(2)));
        writer.flush(Duration::from_secs(60));
        assert_eq!(all(&path), [row(2)], "another row does not wait");
        end.wait();
        let found: Vec<_> = all(&path).iter().map(|row| (row.client, row.exit.code)).collect();
        assert_eq!(found, [(2, Some(2)), (1, Some(7))]);
        slow.wait().expect("it is ours");
    }

    #[test]
    fn what_was_written_is_read_newest_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b/history.sqlite");
        assert_eq!(all(&path), []);
        assert_eq!(add(&path, &rows(0..3)).expect("written"), None);
        add(&path, &rows(3..5)).expect("written");
        let mut expected = rows(0..5);
        expected.reverse();
        assert_eq!(all(&path), expected);
        let asked = |query| {
            let found = read(&path, &query).expect("read").0;
            found.iter().map(|row| row.client).collect::<Vec<_>>()
        };
        let last = HistoryQuery {
            last: Some(2),
            ..HistoryQuery::default()
        };
        assert_eq!(asked(last), [4, 3]);
        let since = HistoryQuery {
            since_ms: Some(1_002),
            uid: Some(0),
            ..HistoryQuery::default()
        };
        assert_eq!(asked(since), [4, 2]);
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().expect("one"))), (0o600, 0o700));
    }

    #[test]
    fn rows_and_bytes_are_bounded_and_the_oldest_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        for begin in (0..100).step_by(10) {
            add_once(&path, &rows(begin..begin + 10), 25, MOST_BYTES).expect("written");
        }
        let kept: Vec<u64> = all(&path).iter().map(|row| row.client).collect();
        assert_eq!(kept, (75..100).rev().collect::<Vec<_>>());
        const SMALL_BYTES: u64 = 64 << 10;
        for begin in (100..2_000).step_by(10) {
            add_once(&path, &rows(begin..begin + 10), MOST_ROWS, SMALL_BYTES).expect("written");
        }
        assert!(std::fs::metadata(&path).expect("there").len() <= SMALL_BYTES);
        let kept = all(&path);
        assert!((20..1_000).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept.first().map(|row| row.client), Some(1_999));
    }

    #[test]
    fn no_user_pushes_the_rows_of_another_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        let of = |uid: u32, range: std::ops::Range<u64>| {
            let rows = range.map(|number| HistoryRow { uid, ..row(number) });
            rows.collect::<Vec<_>>()
        };
        add_once(&path, &of(61_002, 0..30), 100, MOST_BYTES).expect("written");
        for begin in (100..1_000).step_by(50) {
            add_once(&path, &of(61_001, begin..begin + 50), 100, MOST_BYTES).expect("written");
        }
        let count = |uid| all(&path).iter().filter(|row| row.uid == uid).count();
        assert_eq!((count(61_002), count(61_001)), (30, 70));
        const SMALL_BYTES: u64 = 128 << 10;
        for begin in (1_000..3_000).step_by(50) {
            add_once(&path, &of(61_001, begin..begin + 50), MOST_ROWS, SMALL_BYTES).expect("written");
        }
        assert_eq!(count(61_002), 30, "a full file");
    }

    #[test]
    fn a_damaged_file_is_set_aside_by_who_meets_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        let aside = folder.path().join("history.sqlite.damaged");
        std::fs::write(&path, vec![b'x'; 5_000]).expect("written");
        let said = add(&path, &rows(0..1)).expect("written").expect("said");
        assert!(
            said.contains("history.sqlite.damaged") && said.lines().count() == 1,
            "{said}"
        );
        assert_eq!(std::fs::read(&aside).expect("there")[0], b'x');
        assert_eq!(all(&path).len(), 1);
        // Damage in the middle of a good file.
        add(&path, &rows(1..200)).expect("written");
        let mut bytes = std::fs::read(&path).expect("there");
        bytes[1_024..].fill(0xa5);
        std::fs::write(&path, bytes).expect("written");
        let (found, said) = read(&path, &HistoryQuery::default()).expect("read");
        assert!(found.is_empty() && said.is_some());
        add(&path, &rows(0..1)).expect("written");
        assert_eq!(all(&path).len(), 1);
        // A file with tables of another program.
        std::fs::remove_file(&path).expect("there");
        let other = Connection::open(&path).expect("open");
        other
            .execute_batch("CREATE TABLE x (y); PRAGMA user_version = 1")
            .expect("made");
        drop(other);
        assert!(add(&path, &rows(0..1)).expect("written").is_some());
        // An empty file is a new one.
        std::fs::write(&path, "").expect("written");
        assert_eq!(add(&path, &rows(0..1)).expect("written"), None);
    }

    #[test]
    fn a_damaged_file_is_set_aside_once_by_many_who_meet_it() {
        for _ in 0..20 {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("history.sqlite");
            std::fs::write(&path, vec![b'x'; 5_000]).expect("written");
            let said = std::thread::scope(|scope| {
                let threads = (0..8).map(|number| {
                    let path = &path;
                    scope.spawn(move || match number % 2 {
                        0 => add(path, &rows(number..number + 1)).expect("written"),
                        _ => read(path, &HistoryQuery::default()).expect("read").1,
                    })
                });
                let threads: Vec<_> = threads.collect();
                let said = threads
                    .into_iter()
                    .filter_map(|thread| thread.join().expect("no panic"));
                said.count()
            });
            assert_eq!(said, 1);
            let mut kept: Vec<u64> = all(&path).iter().map(|row| row.client).collect();
            kept.sort_unstable();
            assert_eq!(kept, [0, 2, 4, 6]);
        }
    }

    #[test]
    fn the_rows_of_a_gang_are_selected() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        add(&path, &rows(0..9)).expect("written");
        let of = |gang: &str, uid| {
            let query = HistoryQuery {
                gang: Some(gang.to_string()),
                uid,
                ..HistoryQuery::default()
            };
            let found = read(&path, &query).expect("read").0;
            found.iter().map(|row| row.client).collect::<Vec<_>>()
        };
        assert_eq!((of("night", None), of("day", None)), (vec![8, 4, 0], vec![]));
        assert_eq!(of("night", Some(1)), [0u64; 0], "of another user");
    }

    #[test]
    fn a_file_without_names_is_read_and_then_gets_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        // A file as version 1 made it.
        let old = Connection::open(&path).expect("open");
        let first = SCHEMA.replace(
            ",\n        name TEXT,\n        exit_code INTEGER,\n        exit_signal INTEGER,\n        cancelled INTEGER,\n        gang TEXT\n",
            "\n",
        );
        let first = first.replace("    CREATE INDEX jobs_user ON jobs (uid);\n", "");
        let first = first.replace("user_version = 4", "user_version = 1");
        assert!(
            !first.contains("name")
                && !first.contains("gang")
                && !first.contains("exit")
                && !first.contains("jobs_user")
        );
        old.execute_batch(&first).expect("made");
        old.execute(
            "INSERT INTO jobs (ended_ms, ran_s, uid, pid, client, priority, command, ending, outcome)
             VALUES (1000, 1.5, 0, 7, 1, 5, 'python train.py', 'goodbye', '{}')",
            [],
        )
        .expect("written");
        drop(old);
        let kept = all(&path);
        assert_eq!((kept.len(), kept[0].client, &kept[0].name), (1, 1, &None));
        assert_eq!(kept[0].outcome.ran_s.to_bits(), 1.5f64.to_bits());
        // The row has no exit code, so the end is not called `well`.
        assert_eq!(kept[0].exit.words(kept[0].ending), "ended");
        // Several threads convert it at once.
        std::thread::scope(|scope| {
            for number in 2..6 {
                let path = &path;
                scope.spawn(move || assert_eq!(add(path, &rows(number..number + 1)).expect("written"), None));
            }
        });
        let kept = all(&path);
        assert_eq!((kept.len(), &kept[4].name), (5, &None));
        let mut named: Vec<_> = kept.iter().filter_map(|row| row.name.as_deref()).collect();
        named.sort_unstable();
        assert_eq!(named, ["train2", "train4", "train5"]);
    }

    #[test]
    fn a_newer_file_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        add(&path, &rows(0..1)).expect("written");
        let newer = Connection::open(&path).expect("open");
        newer
            .pragma_update(None, "user_version", SCHEMA_VERSION + 1)
            .expect("set");
        drop(newer);
        assert!(matches!(
            add(&path, &rows(1..2)),
            Err(HistoryError::Newer { version, .. }) if version == SCHEMA_VERSION + 1
        ));
        assert!(matches!(
            read(&path, &HistoryQuery::default()),
            Err(HistoryError::Newer { .. })
        ));
    }

    #[test]
    fn two_processes_may_write_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..10 {
                        add(&path, &rows(number..number + 1)).expect("written");
                    }
                });
            }
        });
        assert_eq!(all(&path).len(), 40);
    }

    #[test]
    fn a_thread_writes_and_whoever_puts_never_waits() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        let (writer, end) = start(path.clone()).expect("started");
        for number in 0..20 {
            writer.put(ended(row(number)));
        }
        drop(writer);
        end.wait();
        assert_eq!(all(&path).len(), 20);
        HistoryWriter::deaf(None).put(ended(row(0)));
        // If the folder cannot be made, only the rows are lost.
        std::fs::write(folder.path().join("taken"), "").expect("written");
        let (writer, end) = start(folder.path().join("taken/history.sqlite")).expect("started");
        writer.put(ended(row(0)));
        drop(writer);
        end.wait();
    }

    #[test]
    fn the_file_lies_in_the_state_folder() {
        let from = |set: &[(&str, &str)], shared: Option<&str>| {
            let variable = |name: &str| {
                let found = set.iter().find(|(called, _)| *called == name);
                found.map(|(_, value)| OsString::from(value))
            };
            file_from(variable, shared.map(Path::new))
                .ok()
                .map(|path| path.display().to_string())
        };
        let all = [("WEFT_STATE_DIR", "/w"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(from(&all, None).as_deref(), Some("/w/history.sqlite"));
        assert_eq!(from(&all[1..], None).as_deref(), Some("/x/weft/history.sqlite"));
        assert_eq!(
            from(&all[2..], None).as_deref(),
            Some("/h/.local/state/weft/history.sqlite")
        );
        assert_eq!(from(&[], None), None);
        let usual = weft_protocol::transport::path::SHARED;
        assert_eq!(
            from(&all[1..], Some(usual)).as_deref(),
            Some("/var/lib/weft/history.sqlite")
        );
        assert_eq!(
            from(&[], Some("/a/b.sock")).as_deref(),
            Some("/a/b.sock.history.sqlite")
        );
        assert_eq!(from(&all, Some("/a/b.sock")).as_deref(), Some("/w/history.sqlite"));
    }
}
