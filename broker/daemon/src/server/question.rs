//! Questions of the command line's, and who asks them.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::callers::{self, Connection};
use weft_protocol::transport::wire::{LONGEST, Packet};
use weft_protocol::transport::{Error, fds};

/// How long an answer for people may take to be read.
const ANSWER: Duration = Duration::from_secs(2);

/// Who asks, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// The user.
    pub uid: u32,
    /// The process; `None` if it lives in a pid namespace that is not visible here.
    pub pid: Option<u32>,
}

impl Asker {
    /// Whether it may do what the broker's owner may: its own user, or root.
    pub fn is_owner(self) -> bool {
        callers::is_owner(self.uid)
    }
}

/// A question of the command line's.
#[derive(Debug)]
pub struct Question {
    /// What it asks.
    pub text: String,
    /// Who.
    pub asker: Asker,
    pub(super) socket: Connection,
}

impl Question {
    /// Answers. Takes at most two seconds where the asker does not read.
    pub fn answer(self, text: &str) -> Result<(), Error> {
        let deadline = Instant::now() + ANSWER;
        // A piece with its frame must fit a packet.
        let longest = LONGEST - 64;
        let mut rest = text;
        loop {
            let end = (0..=rest.len().min(longest))
                .rev()
                .find(|end| rest.is_char_boundary(*end))
                .unwrap_or(0);
            let (piece, after) = rest.split_at(end);
            let last = after.is_empty();
            let packet = Packet::Answer {
                text: piece.to_string(),
                last,
            };
            fds::send(&self.socket, &packet, &[], deadline)?;
            if last {
                return Ok(());
            }
            rest = after;
        }
    }
}
