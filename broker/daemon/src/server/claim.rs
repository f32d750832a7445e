//! A name that one process at a time has, in the network namespace: an abstract socket. It lies in
//! no folder, so also who has another `/tmp` sees it, and it goes with its process.
//!
//! Nothing is said over it. Who finds a name taken connects, and so both sides know of one another
//! what the kernel says: process and user. Anybody may take a name or connect, so what comes of it
//! is a line for people that names who did it. No call here waits.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use weft_protocol::transport::peer;

/// Callers that have not been looked at: the next one is told that somebody is there, not who.
const BACKLOG: i32 = 16;

/// Who else has to do with a name, as the kernel says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who {
    /// Its process; `None`: it is in a pid namespace that is not below this process's, or nothing
    /// could be learnt.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: Option<u32>,
}

/// A name that this process has.
#[derive(Debug)]
pub struct Claim(OwnedFd);

impl Claim {
    /// Takes it, or says who has it. `None`: this system has no such names.
    pub fn take(name: &str) -> Option<Result<Claim, Who>> {
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

    /// Who has found it taken since the last look.
    pub fn callers(&self) -> Vec<Who> {
        let mut found = Vec::new();
        // Who calls faster than this is not kept up with.
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

/// Who has the name. `None`: nobody any more.
fn other(address: &SocketAddrUnix) -> Option<Who> {
    let socket = socket()?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => Some(who(&socket)),
        // It has not looked at its callers for long.
        Err(Errno::AGAIN) => Some(Who::default()),
        Err(_) => None,
    }
}

fn who(socket: &OwnedFd) -> Who {
    peer::peer(socket).map_or_else(
        |_| Who::default(),
        |peer| Who {
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
        let own = Who {
            pid: Some(std::process::id()),
            uid: Some(peer::own_uid()),
        };
        let first = Claim::take(&name).expect("a socket").expect("nobody has it");
        assert_eq!(first.callers(), []);
        assert_eq!(Claim::take(&name).expect("a socket").expect_err("it is taken"), own);
        assert_eq!(first.callers(), [own]);
        // Who never looks at his callers is told of no further ones, and holds nobody up.
        let many: Vec<Who> = (0..3 * BACKLOG)
            .map(|_| Claim::take(&name).expect("a socket").expect_err("it is taken"))
            .collect();
        assert_eq!(many.last(), Some(&Who::default()));
        assert!(first.callers().len() <= BACKLOG as usize + 1);
        drop(first);
        assert!(Claim::take(&name).expect("a socket").is_ok());
    }
}
