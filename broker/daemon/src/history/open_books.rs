// SPDX-License-Identifier: MIT OR Apache-2.0
//! Books of jobs that run, for the next broker: a separate table in the history's file.
//!
//! Invariants:
//! * A book belongs to a process, identified by pid, start and boot. If its broker ended by itself,
//!   its row is in the history too, so a job that no broker finds again is recorded there.
//! * A job that outlives its broker ends up with one row: the next broker's final row replaces the
//!   partial one.
//! * A file of an older weft gets the table, and an older weft ignores it.
#![forbid(unsafe_code)]

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::recordings::bound_pages;
use super::{HistoryError, lock_folder, open, version};
use crate::base::process::{Process, boot};
use weft_api::history::HistoryRow;

/// Most books kept: the most clients of a broker.
const MOST_BOOKS: i64 = 4096;

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS open_books (
        pid INTEGER NOT NULL,
        start INTEGER NOT NULL,
        boot TEXT NOT NULL,
        uid INTEGER NOT NULL,
        device TEXT NOT NULL,
        ended_ms INTEGER NOT NULL,
        client INTEGER NOT NULL,
        sums TEXT NOT NULL,
        PRIMARY KEY (pid, start, boot, ended_ms, client)
    );";

/// A row of the history: its end, client and process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowKey {
    ended_ms: u64,
    client: u64,
    pid: u32,
}

impl RowKey {
    /// The client's number.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// The key of a row.
    pub fn of(row: &HistoryRow) -> RowKey {
        RowKey {
            ended_ms: row.ended_ms,
            client: row.client,
            pid: row.pid,
        }
    }
}

/// The book of a client that runs, or still ran when its broker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenBook {
    /// Its process.
    pub process: Process,
    /// User id from the kernel.
    pub uid: u32,
    /// UUID of its device; empty: not known.
    pub device: String,
    /// Its row so far. That of a client that runs may not be in the history.
    pub row: RowKey,
    /// Its sums, as JSON.
    pub sums: String,
}

/// Changes of books that belong to a row.
#[derive(Debug, Default)]
pub struct BookChange {
    /// The book that the row continues: this book and its row are deleted.
    pub settles: Option<OpenBook>,
    /// The new book, if the job still runs.
    pub opens: Option<OpenBook>,
}

impl BookChange {
    fn is_nothing(&self) -> bool {
        self.settles.is_none() && self.opens.is_none()
    }
}

/// The books of jobs that still run. The other books are deleted.
pub(super) fn load(path: &Path) -> Result<Vec<OpenBook>, HistoryError> {
    let failed = failed(path);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let _lock = lock_folder(path);
    let file = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    version(&file, path)?;
    let there = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'open_books'";
    let there = file.query_row(there, [], |_| Ok(())).optional().map_err(&failed)?;
    if there.is_none() {
        return Ok(Vec::new());
    }
    let books = read(&file, &boot()).map_err(&failed)?;
    let (runs, ended): (Vec<_>, Vec<_>) = books.into_iter().partition(|book| book.process.runs() == Some(true));
    file.execute("DELETE FROM open_books WHERE boot <> ?1", [boot()])
        .map_err(&failed)?;
    for book in ended {
        remove(&file, &book).map_err(&failed)?;
    }
    Ok(runs)
}

fn failed(path: &Path) -> impl Fn(rusqlite::Error) -> HistoryError {
    let path = path.to_path_buf();
    move |source| HistoryError::Sql {
        path: path.clone(),
        source,
    }
}

fn read(file: &Connection, boot: &str) -> rusqlite::Result<Vec<OpenBook>> {
    let mut books =
        file.prepare("SELECT pid, start, uid, device, ended_ms, client, sums FROM open_books WHERE boot = ?1")?;
    let found = books.query_map([boot], |row| {
        let pid = row.get(0)?;
        Ok(OpenBook {
            process: Process {
                pid,
                start: Some(row.get::<_, i64>(1)? as u64),
            },
            uid: row.get(2)?,
            device: row.get(3)?,
            row: RowKey {
                ended_ms: row.get::<_, i64>(4)? as u64,
                client: row.get::<_, i64>(5)? as u64,
                pid,
            },
            sums: row.get(6)?,
        })
    })?;
    found.collect()
}

fn remove(file: &Connection, book: &OpenBook) -> rusqlite::Result<()> {
    let start = book.process.start.unwrap_or(0) as i64;
    file.execute(
        "DELETE FROM open_books WHERE pid = ?1 AND start = ?2 AND ended_ms = ?3 AND client = ?4",
        params![
            book.process.pid,
            start,
            book.row.ended_ms as i64,
            book.row.client as i64
        ],
    )?;
    Ok(())
}

/// Applies changes, after the rows were added.
pub(super) fn change(path: &Path, changes: &[BookChange]) -> Result<(), HistoryError> {
    if changes.iter().all(BookChange::is_nothing) {
        return Ok(());
    }
    let failed = failed(path);
    let _lock = lock_folder(path);
    let mut file = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    version(&file, path)?;
    bound_pages(&file).map_err(&failed)?;
    change_in(&mut file, changes).map_err(&failed)
}

fn change_in(file: &mut Connection, changes: &[BookChange]) -> rusqlite::Result<()> {
    let transaction = file.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.execute_batch(TABLE)?;
    for settled in changes.iter().filter_map(|change| change.settles.as_ref()) {
        remove(&transaction, settled)?;
        let RowKey { ended_ms, client, pid } = settled.row;
        transaction.execute(
            "DELETE FROM jobs WHERE ended_ms = ?1 AND client = ?2 AND pid = ?3",
            params![ended_ms as i64, client as i64, pid],
        )?;
    }
    for opened in changes.iter().filter_map(|change| change.opens.as_ref()) {
        let Some(start) = opened.process.start else { continue };
        transaction.execute(
            "INSERT OR REPLACE INTO open_books (pid, start, boot, uid, device, ended_ms, client, sums)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                opened.process.pid,
                start as i64,
                boot(),
                opened.uid,
                opened.device,
                opened.row.ended_ms as i64,
                opened.row.client as i64,
                opened.sums
            ],
        )?;
    }
    transaction.execute(
        "DELETE FROM open_books WHERE rowid NOT IN (SELECT rowid FROM open_books ORDER BY rowid DESC LIMIT ?1)",
        [MOST_BOOKS],
    )?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::super::{add, read as read_rows};
    use super::*;
    use weft_api::history::HistoryQuery;
    use weft_api::outcome::Outcome;
    use weft_api::status::{Ending, Exit};

    fn row(client: u64) -> HistoryRow {
        HistoryRow {
            ended_ms: 1_000,
            uid: 7,
            pid: std::process::id(),
            client,
            name: None,
            gang: None,
            priority: 5,
            command: "python train.py".to_string(),
            profile: None,
            device: None,
            ending: Ending::Detached,
            exit: Exit::default(),
            outcome: Outcome::default(),
        }
    }

    fn book(process: Process, client: u64) -> OpenBook {
        OpenBook {
            process,
            uid: 7,
            device: String::new(),
            row: RowKey::of(&row(client)),
            sums: "{}".to_string(),
        }
    }

    fn opens(book: OpenBook) -> BookChange {
        BookChange {
            opens: Some(book),
            settles: None,
        }
    }

    #[test]
    fn books_of_processes_that_run_are_found_and_a_settled_one_goes_with_its_row() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        assert_eq!(load(&path).expect("none"), []);
        add(&path, &[row(1), row(2)]).expect("written");
        assert_eq!(load(&path).expect("no table"), []);
        let own = Process::of(std::process::id());
        let gone = Process {
            start: own.start.map(|start| start + 1),
            ..own
        };
        change(&path, &[opens(book(own, 1)), opens(book(gone, 2))]).expect("written");
        let found = load(&path).expect("read");
        assert_eq!(found, [book(own, 1)], "the other one ended");
        let later = OpenBook {
            sums: "{\"launches\": 1}".to_string(),
            ..book(own, 1)
        };
        change(&path, &[opens(later.clone())]).expect("written");
        assert_eq!(load(&path).expect("read"), [later], "it replaces the one before");
        assert_eq!(
            read(&open(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("open"), &boot())
                .expect("read")
                .len(),
            1
        );
        let settled = BookChange {
            settles: Some(book(own, 1)),
            opens: None,
        };
        change(&path, &[BookChange::default(), settled]).expect("written");
        assert_eq!(load(&path).expect("read"), []);
        let rows = read_rows(&path, &HistoryQuery::default()).expect("read").0;
        assert_eq!(rows.iter().map(|row| row.client).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_book_of_another_boot_is_nobodys() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        add(&path, &[row(1)]).expect("written");
        change(&path, &[opens(book(Process::of(std::process::id()), 1))]).expect("written");
        let file = open(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).expect("open");
        file.execute("UPDATE open_books SET boot = 'x'", []).expect("changed");
        drop(file);
        assert_eq!(load(&path).expect("read"), []);
    }
}
