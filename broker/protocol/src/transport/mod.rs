//! How a client and the broker come together, and the channel they keep for messages that are not
//! urgent.
//!
//! 1. The broker listens on a well-known unix socket ([`path::socket`]; 0600 in a folder of the
//!    same user; sequenced packets).
//! 2. A client connects and sends one packet, its [`Hello`](crate::control::Hello). Both sides
//!    check with the kernel that the other belongs to the same user. A shared broker (0666 or 0660,
//!    in a folder of root's, or of a service account's that root gave it) lets in whoever may
//!    connect, and goes by the user and the process that the kernel names.
//! 3. The broker answers with one packet: the descriptors of the lane, the epoch page and the
//!    doorbell, and the name of an ipc-channel one-shot server made for this client alone (such a
//!    server takes a single client, so there is one a client).
//! 4. The client connects to that, the broker sends `Welcome` through it, and from then on it
//!    carries the control messages.
//!
//! The client's half is [`client`]; the broker's is `server` in `weft-daemon`. Both are made of the
//! hidden modules here.
//!
//! The rendezvous socket stays open: it and a pidfd are death notices besides the channel's own,
//! which a forked child that inherited the descriptors would hide. ipc-channel is named in these
//! two places only.
//!
//! What holds: every step is bounded ([`HANDSHAKE`]); nothing here is on a launch's path; what the
//! other side says is checked before it is used. What does not: ipc-channel believes the length a
//! message announces, so a hostile process *of the same user* can make the broker allocate. Another
//! user cannot connect to a private broker at all, and a shared one has the rendezvous socket
//! itself for its control channel, a message a packet (see `server` in `weft-daemon`).

use std::io;
use std::path::PathBuf;
use std::time::Duration;

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

/// A whole handshake may take this long. Measured: under 1 ms on an idle machine; 300 clients that
/// start at once on two busy cores need most of it.
pub const HANDSHAKE: Duration = Duration::from_millis(500);

/// Bytes of the largest profile that a shared broker takes from a guest. A service of some hundred
/// kernels has some hundred kilobytes.
pub const LARGEST_PROFILE: usize = 4 << 20;

/// What goes wrong on the way to a broker, or to a client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error("no broker answers at {}", .0.display())]
    NoBroker(PathBuf),
    /// Somebody listens already.
    #[error("a broker already runs at {}; stop it, or set WEFT_SOCKET to another path", .0.display())]
    Taken(PathBuf),
    /// The socket is another user's.
    #[error("the socket {} belongs to user {uid}: set WEFT_SOCKET to a path of your own", path.display())]
    OtherUser {
        /// Where.
        path: PathBuf,
        /// Whose.
        uid: u32,
    },
    /// The folder of the socket is not safe.
    #[error("{}: {why}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
    /// The broker said no.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The other side did not answer in time.
    #[error("{0} did not answer within {1:?}")]
    Late(&'static str, Duration),
    /// The other side sent what makes no sense.
    #[error("{0}")]
    Nonsense(&'static str),
    /// The other side is gone.
    #[error("the other side is gone")]
    Gone,
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    #[doc(hidden)]
    pub fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
        move |errno| Error::System {
            what,
            source: errno.into(),
        }
    }

    #[doc(hidden)]
    pub fn io(what: &'static str) -> impl Fn(io::Error) -> Error {
        move |source| Error::System { what, source }
    }
}
