// SPDX-License-Identifier: MIT OR Apache-2.0
//! Questions from the command line, and the process that asks.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::callers::{self, Connection};
use weft_protocol::transport::wire::{LONGEST, Packet};
use weft_protocol::transport::{TimeLimit, TransportError, fds};

/// Longest time for an answer to be read.
const ANSWER: Duration = Duration::from_secs(2);

/// The asking process, from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// User id.
    pub uid: u32,
    /// Process id; `None`: its pid namespace is not visible here.
    pub pid: Option<u32>,
}

impl Asker {
    /// Whether this is root or the broker's own user.
    pub(crate) fn is_owner(self) -> bool {
        callers::is_owner(self.uid)
    }
}

/// A question from the command line.
#[derive(Debug)]
pub struct Question {
    /// The question, in JSON.
    pub text: String,
    /// The asking process.
    pub asker: Asker,
    pub(super) socket: Connection,
}

impl Question {
    /// Sends the answer. Takes at most 2 s if the asking process does not read.
    pub fn answer(self, text: &str) -> Result<(), TransportError> {
        let limit = TimeLimit::new(ANSWER);
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
            fds::send(&self.socket, &packet, &[], limit)?;
            if last {
                return Ok(());
            }
            rest = after;
        }
    }
}
