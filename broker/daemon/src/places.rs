//! Where a broker's files lie.
//!
//! All of them stand beside the socket, in one directory that only the user may enter (0700), or,
//! of a shared broker, that only he may change (0755). What holds: every name is a function of the
//! socket's path, so two brokers with two sockets share nothing.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use weft_protocol::transport::{Error, path};

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

    /// The files of the broker that this user's jobs use: `WEFT_SOCKET`, else the shared one if
    /// there is one, else his own.
    pub fn of_environment() -> Places {
        Places::at(path::socket())
    }

    /// The files of this user's own broker: `WEFT_SOCKET`, unless a shared broker is there, else
    /// the well-known place.
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

    /// Whether they are a shared broker's, which jobs use and never start.
    pub fn is_shared(&self) -> bool {
        path::is_shared(&self.socket)
    }

    /// Where clients attach.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Held locked by whoever starts a broker, until it answers.
    pub fn start_lock(&self) -> PathBuf {
        self.beside("start")
    }

    /// What a broker in the background has to say.
    pub fn log(&self) -> PathBuf {
        self.beside("log")
    }

    /// Who holds and awaits device memory, for a broker that comes after this one.
    pub fn ledger(&self) -> PathBuf {
        self.beside("admission_slots")
    }

    /// What a shared broker has learnt; a private one keeps that beside its user's profiles.
    pub fn known(&self) -> PathBuf {
        self.beside("known.json")
    }

    /// The directory of them all.
    pub fn directory(&self) -> PathBuf {
        match self.socket.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        }
    }

    /// Makes the directory (0700) where it is missing and refuses one that another user could
    /// change.
    pub fn prepare(&self) -> Result<(), Error> {
        path::check_folder(&self.socket, true)
    }

    /// The same for a shared broker: others may enter the directory (0755).
    pub fn prepare_shared(&self) -> Result<(), Error> {
        path::check_shared_folder(&self.socket)
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name: OsString = self.socket.file_name().unwrap_or_default().to_os_string();
        name.push(".");
        name.push(suffix);
        self.socket.with_file_name(name)
    }
}

/// From wherever it is looked at, it is the same.
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
