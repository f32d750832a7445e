// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attachment of a client to a broker, and the channel for messages that are not urgent.
//!
//! 1. The broker listens on a unix socket of sequenced packets ([`path::socket`]; 0600 in a folder
//!    of the same user).
//! 2. A client sends its [`Hello`](crate::control::Hello). Both sides ask the kernel whether the
//!    other belongs to the same user.
//! 3. The broker answers with the descriptors of lane, epoch page and doorbell, and the name of an
//!    ipc-channel one-shot server for this client.
//! 4. The client connects to that server, which carries `Welcome` and all control messages.
//!
//! A shared broker's socket is 0666 or 0660. Its folder belongs to root, or to a service account
//! that got it from root. The broker serves any client that may connect, and the kernel names the
//! client's user and process. The rendezvous socket is its control channel, with one message per
//! packet.
//!
//! The rendezvous socket stays open. The socket and a pidfd reveal a death that would stay hidden
//! if a forked child held the channel's descriptors.
//!
//! Invariants: every step is bounded ([`HANDSHAKE`]). Input is checked before use. Only [`client`]
//! and the daemon's `server` name ipc-channel.
//!
//! Not guaranteed: ipc-channel trusts announced lengths, so a hostile process *of the same user*
//! can make a private broker allocate.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::control::Refusal;

pub mod client;
#[doc(hidden)]
pub mod fds;
pub mod map;
pub mod path;
#[doc(hidden)]
pub mod peer;
#[doc(hidden)]
pub mod wire;

/// The broker's bound of a whole handshake, during which other clients wait. A handshake takes
/// under 1 ms on an idle machine. The caller of [`client::attach`] sets a client's bound.
pub const HANDSHAKE: Duration = Duration::from_millis(500);

/// Time limit of a step: its length and its end.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct TimeLimit {
    within: Duration,
    deadline: Instant,
}

impl TimeLimit {
    /// A limit that begins now.
    pub fn new(within: Duration) -> TimeLimit {
        TimeLimit {
            within,
            deadline: Instant::now() + within,
        }
    }

    /// When the time is up.
    pub fn deadline(self) -> Instant {
        self.deadline
    }

    /// The error for `who`, which did not answer in this time.
    pub fn late(self, who: &'static str) -> TransportError {
        // The rest of another limit has odd nanoseconds.
        let millis = self.within.as_micros().div_ceil(1_000);
        TransportError::Late(who, Duration::from_millis(millis.try_into().unwrap_or(u64::MAX)))
    }
}

/// Bytes of the largest profile that a shared broker accepts. A profile of some hundred kernels
/// takes some hundred kilobytes.
pub const MAX_PROFILE_BYTES: usize = 4 << 20;

/// Errors on the way to a broker or a client.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// No broker listens.
    #[error("no broker answers at {}", .0.display())]
    NoBroker(PathBuf),
    /// Another broker listens already.
    #[error("a broker already runs at {}; replace it (--replace), or stop it (weft stop)", .0.display())]
    Taken(PathBuf),
    /// The socket is another user's.
    #[error("the socket {} belongs to user {uid}: set WEFT_SOCKET to a path of your own", path.display())]
    OtherUser {
        /// Its path.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// The folder of the socket is not safe.
    #[error("{}: {why}", path.display())]
    Folder {
        /// Its path.
        path: PathBuf,
        /// The fault and its remedy.
        why: String,
    },
    /// The broker refused.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The other side did not answer in time.
    #[error("{0} did not answer within {1:?}")]
    Late(&'static str, Duration),
    /// The other side sent an invalid message.
    #[error("{0}")]
    Nonsense(&'static str),
    /// The other side is gone.
    #[error("the other side is gone")]
    Gone,
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// The failed step.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl TransportError {
    #[doc(hidden)]
    pub fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> TransportError {
        move |errno| TransportError::System {
            what,
            source: errno.into(),
        }
    }

    #[doc(hidden)]
    pub fn io(what: &'static str) -> impl Fn(io::Error) -> TransportError {
        move |source| TransportError::System { what, source }
    }
}
