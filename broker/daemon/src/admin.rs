//! The questions of `weft status`, `weft queue`, `weft set`, `weft profile` and `weft stop`, and
//! their answers.
//!
//! They travel as JSON over the broker's socket, whose transport checks that both sides are one
//! user's, or says whose the question is. Nothing asked here touches the scheduling but through the
//! scheduler's own queue.
#![forbid(unsafe_code)]

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::places::Places;
use super::status::{Sampled, Status};
use weft_protocol::transport::{self, client};

/// How long an answer may take. A broker answers from memory; only writing a profile to a slow disk
/// takes long.
const PATIENCE: Duration = Duration::from_secs(10);

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Who is there.
    Ping,
    /// Everything.
    Status,
    /// Who waits for device memory, and who has it.
    Queue,
    /// On which device a job that has not begun fits best.
    Place(Box<super::admission::Seeker>),
    /// Another priority for the clients that match.
    Set {
        /// By the client's number.
        client: Option<u64>,
        /// By the process.
        pid: Option<u32>,
        /// 0 (most important) to 9.
        priority: u8,
    },
    /// A user counts for so many others where device memory is waited for.
    Weight {
        /// Who.
        user: String,
        /// One, or how many.
        weight: u32,
    },
    /// What a job took that has ended becomes a profile.
    ProfileKeep {
        /// What it is called.
        name: String,
        /// Its first process; none: the last job that ended.
        pid: Option<u32>,
    },
    /// Sampling into a profile begins anew.
    ProfileBegin {
        /// What it is called.
        name: String,
    },
    /// How far the sampling came; written to disk first.
    ProfileFlush {
        /// What it is called.
        name: String,
    },
    /// The sampling is over: written, then forgotten.
    ProfileEnd {
        /// What it is called.
        name: String,
    },
    /// End the broker.
    Stop,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Done,
    /// The broker is there.
    Pong {
        /// Its process.
        pid: u32,
        /// Its protocol.
        protocol: u32,
        /// Version of the package.
        version: String,
    },
    /// Everything.
    Status(Box<Status>),
    /// Who waits and who has it.
    Queue(Box<super::admission::Queue>),
    /// There.
    Placed(super::admission::Place),
    /// So many clients have the new priority.
    Set(usize),
    /// What a job took: whoever asked a shared broker makes the profile himself.
    Learnt(super::admission::Took),
    /// The profile that was written.
    Kept(super::status::Kept),
    /// What became of the samples.
    Sampled(Sampled),
    /// It could not be done.
    Sorry(String),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not reached, or no answer in time.
    #[error(transparent)]
    Transport(#[from] transport::Error),
    /// It said something else.
    #[error("the broker's answer is not understood; is it of another build?")]
    Unclear(#[from] serde_json::Error),
    /// It said no.
    #[error("{0}")]
    Sorry(String),
}

impl Error {
    /// Whether nobody listens.
    pub fn is_nobody(&self) -> bool {
        matches!(self, Error::Transport(transport::Error::NoBroker(_)))
    }
}

/// Asks the broker one thing.
pub fn ask(places: &Places, question: &Question) -> Result<Answer, Error> {
    let answer = client::ask(places.socket(), &serde_json::to_string(question)?, PATIENCE)?;
    match serde_json::from_str(&answer)? {
        Answer::Sorry(why) => Err(Error::Sorry(why)),
        answer => Ok(answer),
    }
}

/// Whether a broker answers.
pub fn pings(places: &Places) -> bool {
    matches!(ask(places, &Question::Ping), Ok(Answer::Pong { .. }))
}
