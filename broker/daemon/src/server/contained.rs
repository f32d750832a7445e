// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users of processes in containers: root of a container is not root of this system.
//!
//! Most containers' processes have uid 0. A container has the broker's socket to share a GPU, not
//! to control other users' jobs. So a shared broker maps the owner's uid within a container to the
//! user `nobody`, a guest, as NFS does with another machine's root.
//!
//! A process with the owner's uid counts as the owner's only if it is in the broker's user
//! namespace. It must also be in the broker's pid namespace or have `CAP_SYS_ADMIN`. `CAP_KILL`
//! does not count: Docker gives it to each container.
#![forbid(unsafe_code)]

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::event::PollFlags;

use super::callers::is_owner;
use super::process;
use weft_protocol::transport::fds;
use weft_protocol::transport::peer::PeerProcess;

/// User id of the owner's processes in containers: the kernel's own overflow uid.
pub const NOBODY: u32 = 65_534;

/// `CAP_SYS_ADMIN`, as a bit of `CapEff`.
const SYS_ADMIN: u64 = 0x20_0000;

/// The user as which a connected process counts.
pub fn user_of(socket: impl AsFd, peer: &PeerProcess) -> u32 {
    match is_owner(peer.uid) && !is_outside(socket, peer.pid) {
        true => NOBODY,
        false => peer.uid,
    }
}

/// Whether the process that connected is in no container.
fn is_outside(socket: impl AsFd, pid: Option<u32>) -> bool {
    let (Some(pid), Ok(pidfd)) = (pid, process::pidfd(socket, pid)) else {
        return false;
    };
    let found = Surroundings::of(&pid.to_string());
    // If the process still runs, its pid was not reused meanwhile.
    let ended = pidfd.is_some_and(|pidfd| fds::hung_up(&pidfd, PollFlags::IN));
    let (Some(found), Some(own), false) = (found, Surroundings::of("self"), ended) else {
        return false;
    };
    found.is_outside(&own)
}

/// Namespaces and rights of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Surroundings {
    /// Number of its pid namespaces that are visible from here.
    depth: usize,
    is_admin: bool,
    /// User namespace; `None`: this process may not read it, because the other has more rights.
    users: Option<PathBuf>,
}

impl Surroundings {
    fn of(process: &str) -> Option<Surroundings> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let users = fs::read_link(format!("/proc/{process}/ns/user")).ok();
        Surroundings::read(&status, users)
    }

    fn read(status: &str, users: Option<PathBuf>) -> Option<Surroundings> {
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let capabilities = u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?;
        Some(Surroundings {
            // A kernel without pid namespaces has no such line.
            depth: field("NSpid:").map_or(1, |pids| pids.split_whitespace().count()),
            is_admin: capabilities & SYS_ADMIN != 0,
            users,
        })
    }

    /// Whether the process is outside of containers, for a broker with these surroundings. A
    /// visible pid namespace of the same depth is the same namespace.
    fn is_outside(&self, broker: &Surroundings) -> bool {
        match (&self.users, &broker.users) {
            (Some(its), Some(own)) => its == own && (self.depth == broker.depth || self.is_admin),
            _ => self.depth == broker.depth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(pids: &str, capabilities: &str, users: Option<&str>) -> Surroundings {
        let status = format!("Name:\tNSpid: 1\nNSpid:\t{pids}\nCapEff:\t{capabilities}\n");
        Surroundings::read(&status, users.map(PathBuf::from)).expect("read")
    }

    #[test]
    fn root_of_a_container_is_outside_with_the_systems_rights_alone() {
        let (none, dockers, all) = ("0000000000000000", "00000000a80425fb", "000001ffffffffff");
        let (own, other) = (Some("user:[1]"), Some("user:[2]"));
        let broker = at("812", all, own);
        for (found, outside) in [
            (at("900", all, own), true),
            (at("900", none, own), true),
            // A process with more rights than the broker is not readable.
            (at("900", all, None), true),
            (at("900\t1", none, own), false),
            (at("900\t1", dockers, own), false),
            (at("900\t1", all, None), false),
            // A privileged container can do anything to this system anyway.
            (at("900\t1", all, own), true),
            (at("900\t1", all, other), false),
            (at("900", all, other), false),
        ] {
            assert_eq!(found.is_outside(&broker), outside, "{found:?}");
        }
        assert_eq!(Surroundings::read("Name:\tx\n", None), None);
        assert!(Surroundings::of("self").is_some_and(|own| own.is_outside(&own)));
    }
}
