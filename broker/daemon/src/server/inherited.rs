// SPDX-License-Identifier: MIT OR Apache-2.0
//! A socket that the service manager bound and passed on (`LISTEN_FDS`).
//!
//! This module checks the properties that [`super::Listener`] gives its own socket: type, path,
//! owner and permissions. The folder was checked before.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{SocketAddrUnix, SocketType, getsockname};

use crate::base::options::Door;
use weft_protocol::transport::{TransportError, peer};

/// Mode bits of group and others: only the owner may use the socket of a private broker.
const OTHERS: u32 = 0o077;

/// Checks that the socket is the one that clients find at `path`. Returns its file's metadata.
pub(super) fn check(socket: &OwnedFd, path: &Path, door: Door) -> Result<Metadata, TransportError> {
    let refuse = |why: String| {
        Err(TransportError::Folder {
            path: path.to_path_buf(),
            why,
        })
    };
    let bound = getsockname(socket)
        .ok()
        .and_then(|address| SocketAddrUnix::try_from(address).ok());
    let Some(bound) = bound else {
        return refuse("the descriptor from the service manager (LISTEN_FDS) is not a unix socket".to_string());
    };
    if socket_type(socket) != Ok(SocketType::SEQPACKET) {
        return refuse(
            "the service manager's socket has the wrong type; its unit needs ListenSequentialPacket=".to_string(),
        );
    }
    if socket_acceptconn(socket) != Ok(true) {
        return refuse("the service manager's socket does not listen; its unit needs Accept=no".to_string());
    }
    // Jobs get the listening user from the kernel, and trust only the folder's owner.
    if !peer::peer(socket).is_ok_and(|listens| listens.uid == peer::own_uid()) {
        return refuse("the service manager's socket was made by another user than this broker's".to_string());
    }
    let place = bound.path_bytes().map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)));
    if place.as_deref() != Some(path) {
        return refuse(format!(
            "the service manager's socket is at {}, where clients do not look: its unit needs ListenSequentialPacket={}",
            place.map_or_else(|| "no path".to_string(), |place| place.display().to_string()),
            path.display()
        ));
    }
    let facts = fs::symlink_metadata(path).map_err(TransportError::io("examining the service manager's socket"))?;
    if !facts.file_type().is_socket() {
        return refuse("is no longer a socket; restart its unit".to_string());
    }
    if facts.uid() != peer::own_uid() {
        return refuse(
            "the service manager's socket belongs to another user; its unit needs no SocketUser=".to_string(),
        );
    }
    let group = match door {
        Door::Private if facts.mode() & OTHERS != 0 => {
            return refuse(
                "other users may use the service manager's socket; its unit needs SocketMode=0600".to_string(),
            );
        }
        Door::Shared { group: Some(group) } => group,
        Door::Private | Door::Shared { group: None } => return Ok(facts),
    };
    match facts.gid() == group && facts.mode() & 0o007 == 0 {
        true => Ok(facts),
        false => refuse(
            "users outside --group may use the service manager's socket; its unit needs SocketGroup= and SocketMode=0660"
                .to_string(),
        ),
    }
}
