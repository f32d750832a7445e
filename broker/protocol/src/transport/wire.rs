// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets of the rendezvous socket: a header that no version may change (magic, version, kind),
//! and a body in postcard.
//!
//! Only bodies of the reader's version are decoded, so any two builds can report their versions to
//! each other.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::TransportError;
use crate::control::{Hello, Refusal, ToBroker, ToClient};
use crate::{Ns, VERSION};

/// Bytes of the longest packet. A hello has some hundred; answers are cut.
pub const LONGEST: usize = 60 * 1024;

/// Marks a packet as weft's: "weftRDVZ".
const MAGIC: [u8; 8] = *b"weftRDVZ";

const HEADER: usize = 16;

/// A packet of the rendezvous socket, either way.
#[derive(Debug, Serialize, Deserialize)]
pub enum Packet {
    /// Client: asks to attach.
    Hello(Hello),
    /// Client: a question from the command line.
    Question(String),
    /// Broker: refusal.
    Refused(Refusal),
    /// Broker: lane, epoch page and doorbell.
    Lane {
        /// One-shot server to connect to; empty: this socket is a shared broker's control channel.
        channel: String,
    },
    /// Client: connected to the one-shot server.
    Connected,
    /// Broker: a piece of an answer.
    Answer {
        /// The piece.
        text: String,
        /// Whether this is the last piece.
        last: bool,
    },
    /// Shared broker: welcome, in pieces.
    Welcome {
        /// The client's number.
        client: u64,
        /// Costs of its profile's kernels: (hash, ns).
        costs: Vec<(u64, Ns)>,
        /// Whether this is the last piece.
        last: bool,
    },
    /// Client of a shared broker: a control message.
    Say(ToBroker),
    /// Shared broker: a control message.
    Tell(ToClient),
    /// Client of a shared broker: a piece of the profile that its [`Packet::Hello`] names. A broker
    /// takes no descriptors: the sender can make the close of a descriptor arbitrarily slow.
    Profile {
        /// The piece; empty: unreadable.
        bytes: Vec<u8>,
        /// Whether this is the last piece.
        last: bool,
    },
}

/// A message up the ipc-channel.
#[derive(Debug, Serialize, Deserialize)]
pub enum UpMessage {
    /// The first message: the way down.
    Open(ipc_channel::ipc::IpcSender<ToClient>),
    /// Any other message.
    Say(ToBroker),
}

/// Packs a packet of at most `LONGEST` bytes.
pub fn pack(packet: &Packet) -> Result<Vec<u8>, TransportError> {
    let mut bytes = Vec::with_capacity(512);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    let bytes =
        postcard::to_extend(packet, bytes).map_err(|_| TransportError::Nonsense("a packet could not be packed"))?;
    if bytes.len() > LONGEST {
        return Err(TransportError::Nonsense("a packet would be too long"));
    }
    Ok(bytes)
}

/// Unpacks a packet.
pub fn unpack(bytes: &[u8]) -> Result<Packet, Unpack> {
    let header: &[u8; HEADER] = bytes.first_chunk().ok_or(Unpack::Nonsense)?;
    let (magic, rest) = header.split_at(8);
    if magic != MAGIC {
        return Err(Unpack::Nonsense);
    }
    let version = rest
        .first_chunk::<4>()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .ok_or(Unpack::Nonsense)?;
    if version != VERSION {
        return Err(Unpack::Version(version));
    }
    postcard::from_bytes(bytes.get(HEADER..).unwrap_or_default()).map_err(|_| Unpack::Nonsense)
}

/// Why a packet cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Unpack {
    /// The sender's version, another than this build's.
    Version(u32),
    /// Not a packet of weft's.
    Nonsense,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_of_another_version_says_which_and_noise_is_noise() {
        let mut bytes = pack(&Packet::Question("status".into())).expect("packed");
        assert!(matches!(unpack(&bytes), Ok(Packet::Question(what)) if what == "status"));
        bytes.truncate(bytes.len() - 1);
        assert_eq!(unpack(&bytes).err(), Some(Unpack::Nonsense));
        bytes[8] = 99;
        assert_eq!(unpack(&bytes).err(), Some(Unpack::Version(99)));
        assert_eq!(unpack(b"GET / HTTP/1.0\r\n\r\n").err(), Some(Unpack::Nonsense));
        assert_eq!(unpack(b"").err(), Some(Unpack::Nonsense));
    }
}
