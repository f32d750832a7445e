// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notifications to the service manager: the broker is ready, reloads, or ends (sd_notify(3)).
//!
//! Each is one datagram to the socket in `NOTIFY_SOCKET`. If the variable is not set or no process
//! reads the socket, nothing happens: the broker runs without a service manager too.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use weft_protocol::{Ns, machine_clock};

const VARIABLE: &str = "NOTIFY_SOCKET";

/// Reports that clients are let in from now on.
pub fn ready() {
    tell("READY=1");
}

/// Reports that the options are being read again; [`ready`] follows.
pub fn reloading() {
    tell(&reloading_at(machine_clock::own()));
}

/// Reports that the broker ends.
pub fn stopping() {
    tell("STOPPING=1");
}

/// The message with the time of CLOCK_MONOTONIC, us, that systemd needs.
fn reloading_at(now: Ns) -> String {
    format!("RELOADING=1\nMONOTONIC_USEC={}", now / 1_000)
}

fn tell(state: &str) {
    let Some(to) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
        return;
    };
    if let Err(error) = send(&to, state) {
        log::debug!("cannot report {state:?} to the service manager: {error}");
    }
}

/// Sends to a path, or to a name that begins with `@`.
fn send(to: &OsStr, state: &str) -> io::Result<()> {
    let address = match to.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(to)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not delay the broker.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_one_datagram_to_a_path_or_a_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("bound");
        let name = format!("weft-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let by_name = UnixDatagram::bind_addr(&address).expect("bound");
        let named = format!("@{name}");
        for (socket, to) in [(&by_path, path.as_os_str()), (&by_name, OsStr::new(&named))] {
            send(to, &reloading_at(2_500)).expect("sent");
            let mut bytes = [0; 64];
            let length = socket.recv(&mut bytes).expect("received");
            assert_eq!(&bytes[..length], b"RELOADING=1\nMONOTONIC_USEC=2");
        }
        assert!(send(OsStr::new("/nowhere/notify"), "READY=1").is_err());
    }
}
