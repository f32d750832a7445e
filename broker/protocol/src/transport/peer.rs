//! Who is at the other end of a unix socket, as the kernel says.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

use super::Error;

/// The kernel's word about a peer.
#[derive(Debug)]
pub struct Peer {
    /// Its process id here; `None` if it lives in a pid namespace that this process can not see.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
}

/// Asks the kernel. (rustix 1.1 reads the pid into a type that can not be zero, which a peer of
/// another pid namespace is; hence libc.)
pub fn peer(socket: impl AsFd) -> Result<Peer, Error> {
    let mut said = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the two pointers are to locals that live through the call, and `length` is the size
    // of the one it describes.
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
        return Err(Error::io("asking who the peer is")(io::Error::last_os_error()));
    }
    Ok(Peer {
        pid: u32::try_from(said.pid).ok().filter(|pid| *pid != 0),
        uid: said.uid,
    })
}

/// This process's user.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
