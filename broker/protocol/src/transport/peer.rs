// SPDX-License-Identifier: MIT OR Apache-2.0
//! The peer of a unix socket, as the kernel names it.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

use super::TransportError;

/// A peer.
#[derive(Debug)]
pub struct PeerProcess {
    /// Process id; `None` in a pid namespace that this process cannot see.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
}

/// Asks the kernel for the peer. Uses libc: rustix 1.1 cannot read a pid of 0, which a peer of
/// another pid namespace has.
pub fn peer(socket: impl AsFd) -> Result<PeerProcess, TransportError> {
    let mut said = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to locals that live through the call; `length` is the size of the
    // first.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut said).cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(TransportError::io("asking who the peer is")(io::Error::last_os_error()));
    }
    Ok(PeerProcess {
        pid: u32::try_from(said.pid).ok().filter(|pid| *pid != 0),
        uid: said.uid,
    })
}

/// User of this process.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
