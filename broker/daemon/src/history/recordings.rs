// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings of ended jobs: a separate table in the history's file.
//!
//! Invariants:
//! * A file of an older weft gets the table, and an older weft ignores it. So the version of the
//!   file's tables is unchanged.
//! * All recordings together have at most [`MOST_RECORDED_BYTES`]. The oldest ones of the user with
//!   the most bytes are deleted first, and before any row of the history.
//! * A recording belongs to the row with the same end, client and process.
#![forbid(unsafe_code)]

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::{HistoryError, MOST_BYTES, lock_folder, open, read, version};
use weft_api::history::{HistoryQuery, HistoryRow, RecordedJob};
use weft_api::recording::JobRecording;

/// Most bytes of all recordings: a job of an hour takes 15 to 20 thousand, a job of a minute two.
const MOST_RECORDED_BYTES: u64 = 12 << 20;

/// Most recordings of one batch of ended jobs: the newest ones.
const MOST_AT_ONCE: usize = 512;

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS recordings (
        ended_ms INTEGER NOT NULL,
        client INTEGER NOT NULL,
        pid INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        recording TEXT NOT NULL,
        PRIMARY KEY (ended_ms, client, pid)
    );";

/// Adds recordings of rows that were added.
pub(super) fn add(path: &Path, rows: &[HistoryRow], recordings: &[Option<JobRecording>]) -> Result<(), HistoryError> {
    add_bounded(path, rows, recordings, MOST_RECORDED_BYTES)
}

fn add_bounded(
    path: &Path,
    rows: &[HistoryRow],
    recordings: &[Option<JobRecording>],
    most_bytes: u64,
) -> Result<(), HistoryError> {
    let _lock = lock_folder(path);
    let mut file = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    version(&file, path)?;
    let added = bound_pages(&file).and_then(|()| insert(&mut file, rows, recordings, most_bytes));
    let added = match added {
        // Rows of the history need the space.
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) => make_room(&mut file),
        other => other,
    };
    added.map_err(|source| HistoryError::Sql {
        path: path.to_path_buf(),
        source,
    })
}

pub(super) fn bound_pages(file: &Connection) -> rusqlite::Result<()> {
    let page: i64 = file.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    file.pragma_update(None, "max_page_count", (MOST_BYTES as i64 / page.max(1)).max(1))
}

fn insert(
    file: &mut Connection,
    rows: &[HistoryRow],
    recordings: &[Option<JobRecording>],
    most_bytes: u64,
) -> rusqlite::Result<()> {
    let transaction = file.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.execute_batch(TABLE)?;
    // Recordings without a row could never be found.
    transaction.execute(
        "DELETE FROM recordings WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.ended_ms = recordings.ended_ms
            AND jobs.client = recordings.client AND jobs.pid = recordings.pid)",
        [],
    )?;
    for (row, recording) in rows.iter().zip(recordings).rev().take(MOST_AT_ONCE) {
        let Some(recording) = recording else { continue };
        let text = serde_json::to_string(recording).unwrap_or_default();
        transaction.execute(
            "INSERT OR REPLACE INTO recordings (ended_ms, client, pid, bytes, recording) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![row.ended_ms as i64, row.client as i64, row.pid, text.len() as i64, text],
        )?;
    }
    // Keeps recordings up to the bound, ordered by the bytes of each one and its user's newer ones.
    transaction.execute(
        "DELETE FROM recordings WHERE rowid IN (
            SELECT id FROM (SELECT id, sum(bytes) OVER (ORDER BY own, id DESC) AS so_far FROM (
                SELECT recordings.rowid AS id, bytes, sum(bytes) OVER (
                    PARTITION BY uid ORDER BY recordings.ended_ms DESC, recordings.rowid DESC) AS own
                FROM recordings LEFT JOIN jobs ON jobs.ended_ms = recordings.ended_ms
                AND jobs.client = recordings.client AND jobs.pid = recordings.pid))
            WHERE so_far > ?1)",
        [most_bytes as i64],
    )?;
    transaction.commit()
}

/// Deletes the older half.
fn make_room(file: &mut Connection) -> rusqlite::Result<()> {
    file.execute(
        "DELETE FROM recordings WHERE rowid IN
         (SELECT rowid FROM recordings ORDER BY ended_ms LIMIT 1 + (SELECT count(*) FROM recordings) / 2)",
        [],
    )?;
    Ok(())
}

/// Reads rows with their recordings, as [`read`] does.
pub fn read_recorded(path: &Path, query: &HistoryQuery) -> Result<(Vec<RecordedJob>, Option<String>), HistoryError> {
    let (rows, damaged) = read(path, query)?;
    let found = find(path, &rows)?;
    let jobs = rows.into_iter().zip(found).map(|(job, recording)| RecordedJob {
        job,
        running: false,
        recording,
    });
    Ok((jobs.collect(), damaged))
}

fn find(path: &Path, rows: &[HistoryRow]) -> Result<Vec<Option<JobRecording>>, HistoryError> {
    let failed = |source| HistoryError::Sql {
        path: path.to_path_buf(),
        source,
    };
    let nothing = || rows.iter().map(|_| None).collect();
    if rows.is_empty() {
        return Ok(nothing());
    }
    let file = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let there = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'recordings'";
    let there = file.query_row(there, [], |_| Ok(())).optional().map_err(failed)?;
    if there.is_none() {
        return Ok(nothing());
    }
    let mut wanted = file
        .prepare("SELECT recording FROM recordings WHERE ended_ms = ?1 AND client = ?2 AND pid = ?3")
        .map_err(failed)?;
    let one = |row: &HistoryRow| {
        let key = params![row.ended_ms as i64, row.client as i64, row.pid];
        let text: Option<String> = wanted.query_row(key, |found| found.get(0)).optional()?;
        // A recording that cannot be read counts as missing.
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    };
    rows.iter().map(one).collect::<rusqlite::Result<_>>().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::add as add_rows;
    use weft_api::outcome::Outcome;
    use weft_api::recording::JobInterval;
    use weft_api::status::{Ending, Exit};

    fn row(number: u64) -> HistoryRow {
        HistoryRow {
            name: None,
            gang: None,
            ended_ms: 1_000 + number,
            uid: 1,
            pid: 7,
            client: number % 3,
            priority: 5,
            command: format!("python train{number}.py"),
            profile: None,
            device: None,
            ending: Ending::Goodbye,
            exit: Exit::default(),
            outcome: Outcome::default(),
        }
    }

    fn recording(number: u64) -> JobRecording {
        JobRecording {
            begin_ms: number,
            intervals: vec![JobInterval {
                length_ns: number as i64,
                ..JobInterval::default()
            }],
            ..JobRecording::default()
        }
    }

    fn put(path: &Path, range: std::ops::Range<u64>, most_bytes: u64) {
        let rows: Vec<_> = range.clone().map(row).collect();
        let recordings: Vec<_> = range.map(|number| Some(recording(number))).collect();
        add_rows(path, &rows).expect("written");
        add_bounded(path, &rows, &recordings, most_bytes).expect("written");
    }

    fn kept(path: &Path) -> Vec<Option<u64>> {
        let found = read_recorded(path, &HistoryQuery::default()).expect("read").0;
        let begins = found
            .iter()
            .map(|one| one.recording.as_ref().map(|found| found.begin_ms));
        begins.collect()
    }

    #[test]
    fn each_row_has_its_own_and_an_old_file_has_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        assert_eq!(kept(&path), []);
        add_rows(&path, &[row(1)]).expect("written");
        assert_eq!(kept(&path), [None], "a file of an older weft");
        put(&path, 2..5, MOST_RECORDED_BYTES);
        assert_eq!(kept(&path), [Some(4), Some(3), Some(2), None]);
        let file = Connection::open(&path).expect("open");
        file.execute("UPDATE recordings SET recording = 'x' WHERE ended_ms = 1003", [])
            .expect("set");
        assert_eq!(kept(&path), [Some(4), None, Some(2), None]);
        file.execute("DELETE FROM jobs WHERE ended_ms < 1004", [])
            .expect("deleted");
        put(&path, 6..7, MOST_RECORDED_BYTES);
        let count = file.query_row("SELECT count(*) FROM recordings", [], |row| row.get(0));
        assert_eq!(count, Ok(2), "those without rows are gone");
    }

    #[test]
    fn bytes_are_bounded_and_the_oldest_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.sqlite");
        let one = serde_json::to_string(&recording(100)).expect("JSON").len() as u64;
        for begin in (100..160).step_by(10) {
            put(&path, begin..begin + 10, 25 * one);
        }
        let found = kept(&path);
        assert_eq!(found.len(), 60, "rows stay");
        assert_eq!(found.iter().flatten().count(), 25);
        assert!(found[..25].iter().all(Option::is_some));
    }
}
