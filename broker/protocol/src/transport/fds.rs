// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets and descriptors over a unix socket. Each wait is bounded; no call raises SIGPIPE.
#![forbid(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::wire::{self, Packet, Unpack};
use super::{TimeLimit, TransportError};
use crate::VERSION;
use crate::control::Refusal;

/// Descriptors of a packet: lane, epoch page, doorbell.
const MOST: usize = 3;

/// Descriptors that attaching opens besides its socket: the packet's, three for the control
/// channel, and two with which ipc-channel measures the system once. Without those two ipc-channel
/// panics, now and at every later use.
const TO_ATTACH: usize = MOST + 3 + 2;

/// Takes the free numbers below 3 while the result lives.
pub fn standard_taken() -> Vec<OwnedFd> {
    let mut taken = Vec::new();
    while let Ok(null) = open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        if null.as_raw_fd() > 2 {
            break;
        }
        taken.push(null);
    }
    taken
}

/// Checks that this process can open the descriptors to attach.
pub fn enough(socket: &OwnedFd) -> Result<(), TransportError> {
    let copies: Result<Vec<_>, _> = (0..TO_ATTACH).map(|_| fcntl_dupfd_cloexec(socket, 3)).collect();
    copies.map(drop).map_err(TransportError::system(
        "this process cannot open enough files to attach to the broker: raise its limit (ulimit -n)",
    ))
}

/// Time left until `deadline`.
pub fn left(deadline: Instant) -> Timespec {
    let left = deadline.saturating_duration_since(Instant::now());
    Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
}

/// Waits until `socket` is ready or broken. False: the deadline passed.
pub fn ready(socket: impl AsFd, what: PollFlags, deadline: Instant) -> Result<bool, TransportError> {
    loop {
        let mut set = [PollFd::new(&socket, what)];
        match poll(&mut set, Some(&left(deadline))) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(TransportError::system("waiting for a socket")(errno)),
        }
    }
}

/// Whether a socket's peer, or a pidfd's process, is gone. Never waits.
pub fn hung_up(descriptor: impl AsFd, sign: PollFlags) -> bool {
    let mut set = [PollFd::new(&descriptor, sign)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut set, Some(&now)) {
        Ok(1..) => set
            .first()
            .is_some_and(|entry| entry.revents().intersects(sign | PollFlags::HUP | PollFlags::ERR)),
        _ => false,
    }
}

/// Sends one packet.
pub fn send(
    socket: impl AsFd,
    packet: &Packet,
    descriptors: &[BorrowedFd<'_>],
    limit: TimeLimit,
) -> Result<(), TransportError> {
    let bytes = wire::pack(packet)?;
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(TransportError::Nonsense("too many descriptors for a packet"));
        }
        match sendmsg(
            &socket,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                if !ready(&socket, PollFlags::OUT, limit.deadline())? {
                    return Err(limit.late("the other side"));
                }
            }
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(TransportError::Gone),
            Err(errno) => return Err(TransportError::system("sending")(errno)),
        }
    }
}

/// Takes a packet with descriptors, if one is there.
pub fn take(socket: impl AsFd) -> Result<Option<(Packet, Vec<OwnedFd>)>, TransportError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let Some(packet) = take_with(socket, &mut control)? else {
        return Ok(None);
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    Ok(Some((packet, descriptors)))
}

/// Takes a packet with the descriptors that fit into `control`, if a packet is there.
pub fn take_with(socket: impl AsFd, control: &mut RecvAncillaryBuffer<'_>) -> Result<Option<Packet>, TransportError> {
    let mut bytes = vec![0u8; wire::LONGEST];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut receive = || recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], control, flags);
    // If a peer closes with unread data, it resets the connection. The kernel reports this once,
    // before the peer's last packets.
    let received = match receive() {
        Err(Errno::CONNRESET) => receive(),
        received => received,
    };
    let received = match received {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(Errno::CONNRESET) => return Err(TransportError::Gone),
        Err(errno) => return Err(TransportError::system("receiving")(errno)),
    };
    if received.bytes == 0 {
        return Err(TransportError::Gone);
    }
    match wire::unpack(bytes.get(..received.bytes).unwrap_or_default()) {
        Ok(packet) => Ok(Some(packet)),
        Err(Unpack::Version(other)) => Err(TransportError::Refused(Refusal::Version {
            broker: VERSION,
            client: other,
        })),
        Err(Unpack::Nonsense) => Err(TransportError::Nonsense("the process at the socket is not weft")),
    }
}

/// Receives one packet, within `limit`.
pub fn receive(
    socket: impl AsFd,
    who: &'static str,
    limit: TimeLimit,
) -> Result<(Packet, Vec<OwnedFd>), TransportError> {
    loop {
        if let Some(packet) = take(&socket)? {
            return Ok(packet);
        }
        if !ready(&socket, PollFlags::IN, limit.deadline())? {
            return Err(limit.late(who));
        }
    }
}
