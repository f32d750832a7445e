// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages on the device's `SOCK_SEQPACKET` socket: each arrives whole or not at all, and the end
//! of the stream is the other side's death.
#![forbid(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Version of this protocol: messages and layout of lanes together.
pub(crate) const VERSION: u32 = 4;

/// The longest message, bytes. Names are cut well below it.
const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// The longest name the device keeps, bytes.
pub(crate) const MAX_NAME_BYTES: usize = 16 << 10;

/// A client's message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Asks to use the device.
    Attach { version: u32, name: String },
    /// Gives `id` this name from here on.
    Name { id: u32, name: String },
    /// Asks for the status, which is answered with a file of JSON text.
    Status,
}

/// The device's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Attached. Descriptors of lane, board and bell come with it.
    Welcome(Welcome),
    /// Not attached.
    Refused(String),
}

/// Facts for a client that attaches.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// Index of the client on the board.
    pub(crate) client: usize,
    /// Memory of a context, bytes.
    pub(crate) context_memory: u64,
    /// Device time from the end of work to the return of a wait for it, ns.
    pub(crate) wait_return: u64,
    /// Process number of the device.
    pub(crate) pid: u32,
    /// A warning for people, such as of a log that cannot be written.
    pub(crate) warning: Option<String>,
}

/// Sends one message, with file descriptors.
pub(crate) fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    send_bytes(socket, &text, fds)
}

/// Sends one message as it is.
pub(crate) fn send_bytes(socket: impl AsFd, text: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // NOSIGNAL: a client must not die of SIGPIPE when the device did.
    loop {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map(|_| ()).map_err(io::Error::from),
        }
    }
}

/// Receives one message as it is. `None`: the other side is gone.
pub(crate) fn receive_bytes(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut text = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut text)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
    }
    text.truncate(received.bytes);
    Ok(Some((text, fds)))
}

/// Receives one message.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    match receive_bytes(socket)? {
        Some((text, fds)) => Ok(Some((serde_json::from_slice(&text)?, fds))),
        None => Ok(None),
    }
}

/// The longest prefix of a name that fits, cut between characters.
pub(crate) fn cut_name(name: &str) -> &str {
    let mut end = name.len().min(MAX_NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.get(..end).unwrap_or_default()
}
