//! Packets of callers, taken without what they may bring: descriptors stay with the kernel.
#![forbid(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};
use weft_protocol::transport::fds::{ready, take_with};
use weft_protocol::transport::wire::Packet;
use weft_protocol::transport::{Error, HANDSHAKE};

/// Takes one packet that is already there, without any descriptor.
///
/// The last close of a descriptor may wait as long as its sender likes; one that is not taken is
/// closed by the kernel in the same call. Where senders may pass some (`passes`), that is looked at
/// first, and a packet that brings some stays where it is: the whole socket is then to be closed
/// where nothing waits for it.
pub(super) fn take_plain(socket: impl AsFd, passes: bool) -> Result<Option<Packet>, Error> {
    if passes && brings_descriptors(&socket) {
        return Err(Error::Nonsense("it sent a descriptor; nobody takes any here"));
    }
    take_with(socket, &mut RecvAncillaryBuffer::default())
}

/// Whether the next packet brings descriptors. They stay with it.
fn brings_descriptors(socket: impl AsFd) -> bool {
    let mut byte = [0u8; 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let looked = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut RecvAncillaryBuffer::default(),
        flags,
    );
    // There was no room to say which: that there are some is said so.
    looked.is_ok_and(|looked| looked.flags.contains(ReturnFlags::CTRUNC))
}

/// Receives one packet, as [`take_plain`] takes it.
pub(super) fn receive_plain(
    socket: impl AsFd,
    passes: bool,
    who: &'static str,
    deadline: Instant,
) -> Result<Packet, Error> {
    loop {
        if let Some(packet) = take_plain(&socket, passes)? {
            return Ok(packet);
        }
        if !ready(&socket, PollFlags::IN, deadline)? {
            return Err(Error::Late(who, HANDSHAKE));
        }
    }
}
