//! Rows of the history, and the question for them.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::recording::JobRecording;
use crate::status::{Ending, Exit};

/// A client that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryRow {
    /// When it ended, milliseconds since 1970.
    pub ended_ms: u64,
    /// User id by the kernel.
    pub uid: u32,
    /// Process id.
    pub pid: u32,
    /// Client number at its broker.
    pub client: u64,
    /// What it was called; `None`: kept by a weft that knew no names.
    #[serde(default)]
    pub name: Option<String>,
    /// 0 (most important) to 9, last.
    pub priority: u8,
    /// Command line.
    pub command: String,
    /// Its profile.
    pub profile: Option<String>,
    /// Its device.
    pub device: Option<String>,
    /// How it ended.
    pub ending: Ending,
    /// How its process ended.
    #[serde(default)]
    pub exit: Exit,
    /// What weft did for it.
    pub outcome: Outcome,
}

/// Which rows are wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryQuery {
    /// So many at most, the newest ones.
    pub last: Option<u64>,
    /// Ended since, milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Of this user alone.
    #[serde(default)]
    pub uid: Option<u32>,
}

/// A job and what was recorded of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedJob {
    /// The job; of one that runs, as of now.
    pub job: HistoryRow,
    /// Whether it runs.
    pub running: bool,
    /// What was recorded; `None`: nothing, or it is no longer kept.
    pub recording: Option<JobRecording>,
}
