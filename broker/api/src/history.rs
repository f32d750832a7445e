// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of the history, and the query for them.
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
    /// User id from the kernel.
    pub uid: u32,
    /// Process id.
    pub pid: u32,
    /// Client number at its broker.
    pub client: u64,
    /// Its name; `None`: the row is from a version of weft without job names.
    #[serde(default)]
    pub name: Option<String>,
    /// The name that the processes of its job share, from `weft run` or Slurm's plugin; `None`: it
    /// gave none.
    #[serde(default)]
    pub gang: Option<String>,
    /// Its last priority, 0 (most important) to 9.
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
    /// Its outcome.
    pub outcome: Outcome,
}

/// Selection of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryQuery {
    /// At most this number of rows, the newest ones.
    pub last: Option<u64>,
    /// Only clients that ended at or after this time, milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Only rows of this user.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Only rows of this gang.
    #[serde(default)]
    pub gang: Option<String>,
}

/// A job and its recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedJob {
    /// The job; if it runs, its state as of now.
    pub job: HistoryRow,
    /// Whether it runs.
    pub running: bool,
    /// The recording; `None`: there is none, or it is no longer stored.
    pub recording: Option<JobRecording>,
}
