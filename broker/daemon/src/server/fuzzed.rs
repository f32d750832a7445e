// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader of arbitrary bytes as packets, only for `tests/soak/fuzz`.
#![forbid(unsafe_code)]

use weft_protocol::control::ToBroker;
use weft_protocol::transport::wire::{self, Packet, Unpack};

/// Longest packet that is read, bytes.
pub const LONGEST: usize = wire::LONGEST;

/// The kind of a packet.
#[derive(Debug)]
pub enum Read {
    /// A control message of a shared broker's client.
    Message(ToBroker),
    /// Another valid packet.
    Other,
    /// A packet of this version.
    Version(u32),
    /// No packet.
    Nonsense,
}

/// Reads a packet as the rendezvous socket does, packs it again and panics if the two differ.
pub fn read(bytes: &[u8]) -> Read {
    let packet = match wire::unpack(bytes) {
        Ok(packet) => packet,
        Err(Unpack::Version(version)) => return Read::Version(version),
        Err(Unpack::Nonsense) => return Read::Nonsense,
    };
    // A packet may have had extra bytes at its end. A very long one may be too long when packed
    // again.
    match wire::pack(&packet) {
        Ok(packed) => assert!(wire::unpack(&packed).is_ok(), "{packet:?} is not read again"),
        Err(_) => assert!(bytes.len() > LONGEST / 2, "{packet:?} cannot be packed"),
    }
    match packet {
        Packet::Say(message) => Read::Message(message),
        _ => Read::Other,
    }
}

/// Packs this message.
pub fn message(message: ToBroker) -> Vec<u8> {
    wire::pack(&Packet::Say(message)).unwrap_or_default()
}
