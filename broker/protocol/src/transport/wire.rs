//! The packets of the rendezvous socket.
//!
//! A packet is a header that no version may change (magic, version, kind) and a body in postcard. A
//! reader looks at the body only where the version is its own, so that two builds that differ in
//! everything else can still tell each other so.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::Error;
use crate::control::{Hello, Refusal, ToBroker, ToClient};
use crate::{Ns, VERSION};

/// The longest packet. A hello is some hundred bytes; an answer for people is cut into pieces of
/// this size.
pub const LONGEST: usize = 60 * 1024;

/// Tells a weft socket from another: "weftRDVZ".
const MAGIC: [u8; 8] = *b"weftRDVZ";

const HEADER: usize = 16;

/// What goes over the rendezvous socket, either way.
#[derive(Debug, Serialize, Deserialize)]
pub enum Packet {
    /// Client: let me in.
    Hello(Hello),
    /// Client: a question of the command line's.
    Question(String),
    /// Broker: no.
    Refused(Refusal),
    /// Broker: your lane, epoch page and doorbell come with this packet; connect to the one-shot
    /// server of this name.
    Lane {
        /// Name of the one-shot server. Empty: the broker serves many users, and this socket is the
        /// control channel.
        channel: String,
    },
    /// Client: connected to it.
    Connected,
    /// Broker: a piece of an answer.
    Answer {
        /// The piece.
        text: String,
        /// Nothing follows.
        last: bool,
    },
    /// Shared broker: welcome, in pieces.
    Welcome {
        /// The client's number.
        client: u64,
        /// Some of the costs of its profile's kernels.
        costs: Vec<(u64, Ns)>,
        /// Nothing follows.
        last: bool,
    },
    /// Client of a shared broker: a control message.
    Say(ToBroker),
    /// Shared broker: a control message.
    Tell(ToClient),
    /// Client of a shared broker, after a [`Packet::Hello`] that names a profile and takes no
    /// samples: a piece of that profile. A broker takes no descriptor from anybody: to close one
    /// may take as long as its sender likes.
    Profile {
        /// The piece. Nothing at all: it cannot be read.
        bytes: Vec<u8>,
        /// Nothing follows.
        last: bool,
    },
}

/// What goes up the channel.
#[derive(Debug, Serialize, Deserialize)]
pub enum Up {
    /// The first message: the way down.
    Open(ipc_channel::ipc::IpcSender<ToClient>),
    /// All others.
    Say(ToBroker),
}

/// Packs.
pub fn pack(packet: &Packet) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::with_capacity(512);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    let bytes = postcard::to_extend(packet, bytes).map_err(|_| Error::Nonsense("a packet could not be packed"))?;
    if bytes.len() > LONGEST {
        return Err(Error::Nonsense("a packet would be too long"));
    }
    Ok(bytes)
}

/// Unpacks. `Err(Some(version))` is a packet of another version.
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

/// Why a packet could not be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Unpack {
    /// Its sender speaks another version.
    Version(u32),
    /// No packet of weft's.
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
