// SPDX-License-Identifier: MIT OR Apache-2.0
//! A name of one process in the network namespace: an abstract socket. It needs no folder, so
//! another `/tmp` does not hide it, and it ends with its process.
//!
//! A process that finds the name taken connects, and both get the other's process and user from the
//! kernel. Any process may do either, so the result is only a line for people. No call waits.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use weft_protocol::transport::peer;

/// Most callers in the queue; further callers learn only that the name is taken.
const BACKLOG: i32 = 16;

/// Another process with this name, from the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    /// Process id; `None`: in a pid namespace outside this process's, or unknown.
    pub pid: Option<u32>,
    /// User id.
    pub uid: Option<u32>,
}

/// A name that this process has.
#[derive(Debug)]
pub struct Claim(OwnedFd);

impl Claim {
    /// Takes the name, or returns the process that has it. `None`: the system has no such names, or
    /// the name was just freed.
    pub fn take(name: &str) -> Option<Result<Claim, Claimant>> {
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
        let socket = socket()?;
        match rustix::net::bind(&socket, &address) {
            Ok(()) => {
                rustix::net::listen(&socket, BACKLOG).ok()?;
                Some(Ok(Claim(socket)))
            }
            Err(Errno::ADDRINUSE) => other(&address).map(Err),
            Err(_) => None,
        }
    }

    /// Processes that called since the last call of this function.
    pub fn callers(&self) -> Vec<Claimant> {
        let mut found = Vec::new();
        // Bounded: faster callers are dropped.
        for _ in 0..=BACKLOG {
            match rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(caller) => found.push(who(&caller)),
                Err(_) => break,
            }
        }
        found
    }
}

fn socket() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()
}

/// The process that has the name; `None`: it is free again.
fn other(address: &SocketAddrUnix) -> Option<Claimant> {
    let socket = socket()?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => Some(who(&socket)),
        // The queue is full: the owner has not accepted callers for a long time.
        Err(Errno::AGAIN) => Some(Claimant::default()),
        Err(_) => None,
    }
}

fn who(socket: &OwnedFd) -> Claimant {
    peer::peer(socket).map_or_else(
        |_| Claimant::default(),
        |peer| Claimant {
            pid: peer.pid,
            uid: Some(peer.uid),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_learn_of_one_another_and_a_name_goes_with_who_had_it() {
        let name = format!("weft-test-claim-{}", std::process::id());
        let own = Claimant {
            pid: Some(std::process::id()),
            uid: Some(peer::own_uid()),
        };
        let first = Claim::take(&name).expect("a socket").expect("nobody has it");
        assert_eq!(first.callers(), []);
        assert_eq!(Claim::take(&name).expect("a socket").expect_err("it is taken"), own);
        assert_eq!(first.callers(), [own]);
        // Callers beyond the queue remain unknown; none is delayed.
        let many: Vec<Claimant> = (0..3 * BACKLOG)
            .map(|_| Claim::take(&name).expect("a socket").expect_err("it is taken"))
            .collect();
        assert_eq!(many.last(), Some(&Claimant::default()));
        assert!(first.callers().len() <= BACKLOG as usize + 1);
        drop(first);
        assert!(Claim::take(&name).expect("a socket").is_ok());
    }
}
