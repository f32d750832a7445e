// SPDX-License-Identifier: MIT OR Apache-2.0
//! Questions and answers of `weft status`, `queue`, `metrics`, `set`, `profile` and `stop`, as JSON
//! over the broker's socket.
//!
//! The transport checks that both sides are of the same user; for a shared broker it returns the
//! asking user's id. Questions reach the scheduler only through its mailbox.
#![forbid(unsafe_code)]

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::history::{HistoryQuery, HistoryRow, RecordedJob};
use super::paths::Places;
use super::status::{Sampled, Status};
use weft_protocol::latency_budget::LatencyBudget;
use weft_protocol::transport::{self, client};

/// Longest wait for an answer. Only a profile written to a slow disk takes long.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A question to the broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminQuestion {
    /// Asks for the broker's process and version.
    Ping,
    /// The whole status.
    Status,
    /// The jobs that wait for device memory or have it.
    Queue,
    /// The best device for a job that has not begun.
    Place(Box<super::placement::Seeker>),
    /// Changes matching clients.
    Set {
        /// Client number to match.
        client: Option<u64>,
        /// Process id to match.
        pid: Option<u32>,
        /// Name of the job to match, all its processes.
        #[serde(default)]
        job: Option<String>,
        /// 0 (most important) to 9; `None`: unchanged.
        priority: Option<u8>,
        /// Slowdown that they allow as foreground jobs; fields that are not set remain unchanged.
        #[serde(default)]
        budget: LatencyBudget,
    },
    /// Orders clients to move their movable memory.
    Evict {
        /// Their numbers.
        clients: Vec<u64>,
        /// To the host; otherwise back to the device.
        evict: bool,
        /// To the host only until their next call.
        #[serde(default)]
        until_call: bool,
    },
    /// Records that the asking process ends these clients.
    Cancelled {
        /// Their numbers.
        clients: Vec<u64>,
    },
    /// Sets a user's weight in the queue for device memory.
    Weight {
        /// The user's label.
        user: String,
        /// The weight, at least 1.
        weight: u32,
    },
    /// Makes a profile of an ended job's usage.
    ProfileKeep {
        /// The profile's name.
        name: String,
        /// The job's first process; `None`: the last job that ended.
        pid: Option<u32>,
    },
    /// Starts sampling into a profile from the beginning.
    ProfileBegin {
        /// The profile's name.
        name: String,
    },
    /// Writes the samples and asks for the state of sampling.
    ProfileFlush {
        /// The profile's name.
        name: String,
    },
    /// Ends sampling; writes the profile.
    ProfileEnd {
        /// The profile's name.
        name: String,
    },
    /// Jobs that ended, from disk; another user of a shared broker gets only their own.
    History(HistoryQuery),
    /// The metrics, as text.
    Metrics {
        /// In OpenMetrics; else in Prometheus' text format 0.0.4.
        openmetrics: bool,
    },
    /// Recordings of attached jobs and, if a query is given, of ended jobs as for `History`.
    Recorded(Option<HistoryQuery>),
    /// Ends the broker.
    Stop,
    /// Asks for the facts that a job needs to begin.
    Joining {
        /// Whether it joins the broker's MPS.
        mps: bool,
    },
}

/// The broker's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Done,
    /// Answer to [`AdminQuestion::Ping`].
    Pong {
        /// Process id.
        pid: u32,
        /// Protocol version.
        protocol: u32,
        /// Package version.
        version: String,
    },
    /// The whole status.
    Status(Box<Status>),
    /// The jobs that wait for device memory or have it.
    Queue(Box<super::queue::Queue>),
    /// The best device.
    Placed(super::placement::JobPlace),
    /// Number of changed clients.
    Set(usize),
    /// A job's observed usage; the asking process writes the profile.
    Learnt(super::peak_usage::PeakUsage),
    /// The written profile.
    Kept(super::status::KeptProfile),
    /// The samples so far.
    Sampled(Sampled),
    /// Jobs that ended, the newest first.
    History(Vec<HistoryRow>),
    /// The metrics.
    Metrics(String),
    /// Jobs with their recordings: attached ones, then those that ended.
    Recorded(Vec<RecordedJob>),
    /// The reason why the broker could not serve the question.
    Sorry(String),
    /// Answer to [`AdminQuestion::Joining`].
    Joining(super::mps::Joining),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Not reached, or not in time.
    #[error(transparent)]
    Transport(#[from] transport::TransportError),
    /// The answer could not be parsed.
    #[error("cannot parse the broker's answer: use weft and broker of one build")]
    Unclear(#[from] serde_json::Error),
    /// The broker could not serve the question.
    #[error("{0}")]
    Sorry(String),
}

impl AdminError {
    /// Whether no broker listens.
    pub fn is_nobody(&self) -> bool {
        matches!(self, AdminError::Transport(transport::TransportError::NoBroker(_)))
    }
}

/// Asks the broker one question.
pub fn ask(places: &Places, question: &AdminQuestion) -> Result<Answer, AdminError> {
    ask_within(places, question, PATIENCE)
}

/// As [`ask`], with another longest wait for the answer.
pub fn ask_within(places: &Places, question: &AdminQuestion, patience: Duration) -> Result<Answer, AdminError> {
    let answer = client::ask(places.socket(), &serde_json::to_string(question)?, patience)?;
    match serde_json::from_str(&answer)? {
        Answer::Sorry(why) => Err(AdminError::Sorry(why)),
        answer => Ok(answer),
    }
}

/// Waits until the broker, if there is one, has written the rows of jobs that have ended.
pub fn settle_history(places: &Places, patience: Duration) {
    let none = HistoryQuery {
        last: Some(0),
        ..HistoryQuery::default()
    };
    // It answers after that. If it does not, the rows so far are shown.
    let _ = ask_within(places, &AdminQuestion::History(none), patience);
}

/// Whether a broker answers.
pub fn pings(places: &Places) -> bool {
    matches!(ask(places, &AdminQuestion::Ping), Ok(Answer::Pong { .. }))
}
