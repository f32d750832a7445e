//! What the transport makes of bytes that anybody may send, for `tests/soak/fuzz`. Nothing of the
//! broker uses it.
#![forbid(unsafe_code)]

use weft_protocol::control::ToBroker;
use weft_protocol::transport::wire::{self, Packet, Unpack};

/// The longest packet that is read, bytes.
pub const LONGEST: usize = wire::LONGEST;

/// What a packet turned out to be.
#[derive(Debug)]
pub enum Read {
    /// A control message of a shared broker's client.
    Message(ToBroker),
    /// Something else that makes sense.
    Other,
    /// A packet of this version.
    Version(u32),
    /// No packet.
    Nonsense,
}

/// Reads a packet as the rendezvous socket does, and packs what it found again: both ways must
/// agree, so this panics where they do not.
pub fn read(bytes: &[u8]) -> Read {
    let packet = match wire::unpack(bytes) {
        Ok(packet) => packet,
        Err(Unpack::Version(version)) => return Read::Version(version),
        Err(Unpack::Nonsense) => return Read::Nonsense,
    };
    // What was read from a longest packet may be longer in words, never in bytes; a packet may have
    // had bytes behind it.
    match wire::pack(&packet) {
        Ok(packed) => assert!(wire::unpack(&packed).is_ok(), "{packet:?} is not read again"),
        Err(_) => assert!(bytes.len() > LONGEST / 2, "{packet:?} cannot be packed"),
    }
    match packet {
        Packet::Say(message) => Read::Message(message),
        _ => Read::Other,
    }
}

/// A packet with this message.
pub fn message(message: ToBroker) -> Vec<u8> {
    wire::pack(&Packet::Say(message)).unwrap_or_default()
}
