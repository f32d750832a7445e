// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives callers' packets without their descriptors, which remain in the kernel.
#![forbid(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use rustix::event::PollFlags;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};
use weft_protocol::transport::fds::{ready, take_with};
use weft_protocol::transport::wire::Packet;
use weft_protocol::transport::{TimeLimit, TransportError};

/// Takes a packet that has arrived, without descriptors.
///
/// The kernel closes descriptors that are not taken within the same call, and a last close may take
/// as long as the sender likes. So if senders may pass descriptors (`passes`), a packet that has
/// some is not read. Its socket must be closed on a thread for which no other user waits.
pub(super) fn take_plain(socket: impl AsFd, passes: bool) -> Result<Option<Packet>, TransportError> {
    if passes && brings_descriptors(&socket) {
        return Err(TransportError::Nonsense(
            "it sent a descriptor, which is not accepted here",
        ));
    }
    take_with(socket, &mut RecvAncillaryBuffer::default())
}

/// Whether the next packet has descriptors; the packet is not taken.
fn brings_descriptors(socket: impl AsFd) -> bool {
    let mut byte = [0u8; 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let looked = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut RecvAncillaryBuffer::default(),
        flags,
    );
    // Without room for descriptors the kernel reports a truncated control message.
    looked.is_ok_and(|looked| looked.flags.contains(ReturnFlags::CTRUNC))
}

/// Receives one packet as [`take_plain`] does, within `limit`.
pub(super) fn receive_plain(
    socket: impl AsFd,
    passes: bool,
    who: &'static str,
    limit: TimeLimit,
) -> Result<Packet, TransportError> {
    loop {
        if let Some(packet) = take_plain(&socket, passes)? {
            return Ok(packet);
        }
        if !ready(&socket, PollFlags::IN, limit.deadline())? {
            return Err(limit.late(who));
        }
    }
}
