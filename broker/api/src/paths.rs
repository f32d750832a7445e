// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths of a broker's files, all in its socket's directory.
//!
//! Only the user may enter the directory (0700), or only the owner of a shared broker may change it
//! (0755). Each name follows from the socket's path, so two sockets share nothing.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use weft_protocol::transport::{TransportError, path};

/// The files of one broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    socket: PathBuf,
}

impl Places {
    /// The files of the broker at this socket.
    pub fn at(socket: impl Into<PathBuf>) -> Places {
        Places { socket: socket.into() }
    }

    /// The broker of this user's jobs: `WEFT_SOCKET`, else a present shared broker, else the user's
    /// own.
    pub fn of_environment() -> Places {
        Places::at(path::socket())
    }

    /// This user's own broker: `WEFT_SOCKET` unless that is a shared broker's, else the well-known
    /// place.
    pub fn own() -> Places {
        let said = std::env::var_os("WEFT_SOCKET").filter(|value| !value.is_empty());
        let said = said.map(PathBuf::from).filter(|socket| !path::is_shared(socket));
        Places::at(absolute(said.unwrap_or_else(path::own)))
    }

    /// The files of a shared broker: `WEFT_SOCKET`, else the well-known place.
    pub fn shared() -> Places {
        let said = std::env::var_os("WEFT_SOCKET").filter(|value| !value.is_empty());
        Places::at(absolute(
            said.map_or_else(|| PathBuf::from(path::SHARED), PathBuf::from),
        ))
    }

    /// Whether the broker is a shared one, which jobs use but never start.
    pub fn is_shared(&self) -> bool {
        path::is_shared(&self.socket)
    }

    /// The socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Lock held while a process starts a broker, until it answers.
    pub fn start_lock(&self) -> PathBuf {
        self.beside("start")
    }

    /// Output of a broker in the background.
    pub fn log(&self) -> PathBuf {
        self.beside("log")
    }

    /// Jobs that hold or await device memory, for the next broker.
    pub fn ledger(&self) -> PathBuf {
        self.beside("admission_slots")
    }

    /// The socket of the metrics.
    pub fn metrics(&self) -> PathBuf {
        self.beside("metrics")
    }

    /// A shared broker's file of context sizes and observed usage; a private broker has it in its
    /// user's folder of profiles.
    pub fn known(&self) -> PathBuf {
        self.beside("known.json")
    }

    /// The folder of the broker's MPS daemon: its pipes and logs.
    pub fn mps(&self) -> PathBuf {
        self.beside("mps")
    }

    /// The directory of the files.
    pub fn directory(&self) -> PathBuf {
        match self.socket.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        }
    }

    /// Makes the directory (0700) if missing; refuses one that others could change.
    pub fn prepare(&self) -> Result<(), TransportError> {
        path::check_folder(&self.socket, true)
    }

    /// Makes a shared broker's directory (0755), which others may enter.
    pub fn prepare_shared(&self) -> Result<(), TransportError> {
        path::check_shared_folder(&self.socket)
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name: OsString = self.socket.file_name().unwrap_or_default().to_os_string();
        name.push(".");
        name.push(suffix);
        self.socket.with_file_name(name)
    }
}

/// Makes the path absolute, so that it is the same from every working directory.
fn absolute(socket: PathBuf) -> PathBuf {
    std::path::absolute(&socket).unwrap_or(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sockets_share_no_file() {
        let one = Places::at("/run/weft/a.sock");
        let other = Places::at("/run/weft/b.sock");
        assert_ne!(one.start_lock(), other.start_lock());
        assert_ne!(one.log(), other.log());
        assert_eq!(one.directory(), other.directory());
    }
}
