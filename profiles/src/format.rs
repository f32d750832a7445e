// SPDX-License-Identifier: MIT OR Apache-2.0
//! Versioned files with a checksum: profiles and traces are [`Format`]s.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | [`Format::magic`] |
//! | 8 | 1 | the version: of the header and of what follows it |
//! | 9 | 7 | zero |
//! | 16 | 8 | length of the body, little-endian |
//! | 24 | 8 | [`weft_kernel_id::image_hash`] of the body, little-endian |
//! | 32 | | the body, by bincode 2's standard configuration |
//!
//! The checksum is compared before decoding. The decoder may allocate at most the size of the
//! largest file, so a length in a file cannot claim memory.

use std::{
    error, fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::file::{self, NotRead};

/// Size of the header, bytes.
pub const HEADER_BYTES: usize = 32;

/// A kind of file, of at most `MAX_BYTES` bytes.
#[derive(Debug)]
pub struct Format<const MAX_BYTES: usize> {
    /// First bytes of its files.
    pub magic: [u8; 8],
    /// Version that this build writes.
    pub version: u8,
    /// Oldest version that this build reads.
    pub oldest: u8,
    /// Texts of its messages.
    pub wording: &'static Wording,
}

/// Texts of a format's messages.
#[derive(Debug, PartialEq, Eq)]
pub struct Wording {
    /// Name of the content.
    pub name: &'static str,
    /// Text after the path of a file of another kind.
    pub not_ours: &'static str,
    /// Advice on a broken file, or one of another version.
    pub again: &'static str,
    /// Advice on a file that is too large.
    pub smaller: &'static str,
    /// Text after a full disk's message.
    pub full: &'static str,
    /// Text after the message of a folder without write permission.
    pub denied: &'static str,
}

/// The fault of a file.
#[derive(Debug)]
pub enum Problem {
    /// The file is of another kind.
    NotOurs,
    /// This build does not read the version.
    Version {
        /// Version of the file.
        found: u8,
        /// Version that this build writes.
        known: u8,
    },
    /// The file's length differs from the length in its header.
    Truncated {
        /// Bytes present.
        found: u64,
        /// Bytes by the header.
        expected: u64,
    },
    /// The content differs from the written content, for this reason.
    Corrupt(String),
    /// The file is too large for its kind.
    TooLarge {
        /// Size, bytes.
        bytes: u64,
        /// Largest size that is read, bytes.
        limit: u64,
    },
    /// The system refused an operation.
    Io {
        /// Operation that failed.
        doing: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

/// Error of a file. The message is one line and contains the remedy.
#[derive(Debug)]
pub struct FileError {
    /// Path of the file.
    pub path: PathBuf,
    /// Its fault.
    pub problem: Problem,
    wording: &'static Wording,
}

impl FileError {
    /// Whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(&self.problem, Problem::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let FileError { path, problem, wording } = self;
        let Wording {
            name, again, smaller, ..
        } = wording;
        let path = path.display();
        match problem {
            Problem::NotOurs => write!(out, "{path} {}", wording.not_ours),
            Problem::Version { found, known } => write!(
                out,
                "{path} has {name} format {found}, this weft reads {known}: {again} with this weft"
            ),
            Problem::Truncated { found, expected } => {
                write!(out, "{path} is truncated: {found} bytes of {expected}: {again}")
            }
            Problem::Corrupt(why) => write!(out, "{path} is corrupt ({why}): {again}"),
            Problem::TooLarge { bytes, limit } => write!(
                out,
                "{path} is too large for a {name} ({bytes} bytes, at most {limit}): {smaller}"
            ),
            Problem::Io { doing, source } => {
                write!(out, "cannot {doing} {path}: {source}{}", wording.hint(source))
            }
        }
    }
}

impl error::Error for FileError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match &self.problem {
            Problem::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl Wording {
    /// Advice on an error of the system.
    fn hint(&self, error: &io::Error) -> &'static str {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => self.full,
            io::ErrorKind::IsADirectory => ": name a file in it",
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => self.denied,
            _ => "",
        }
    }
}

impl<const MAX_BYTES: usize> Format<MAX_BYTES> {
    /// Makes the error of a file of this kind.
    pub fn error(&self, path: &Path, problem: Problem) -> FileError {
        FileError {
            path: path.to_owned(),
            problem,
            wording: self.wording,
        }
    }

    /// Makes the error of a corrupt file.
    pub fn corrupt(&self, path: &Path, why: impl ToString) -> FileError {
        self.error(path, Problem::Corrupt(why.to_string()))
    }

    /// Makes the error of a failed system call.
    pub fn io(&self, doing: &'static str, path: &Path, source: io::Error) -> FileError {
        self.error(path, Problem::Io { doing, source })
    }

    /// Makes a file of this body.
    pub fn seal(&self, version: u8, body: &[u8]) -> Vec<u8> {
        let mut file = Vec::with_capacity(HEADER_BYTES + body.len());
        file.extend_from_slice(&self.magic);
        file.push(version);
        file.extend_from_slice(&[0; 7]);
        file.extend_from_slice(&(body.len() as u64).to_le_bytes());
        file.extend_from_slice(&weft_kernel_id::image_hash(body).to_le_bytes());
        file.extend_from_slice(body);
        file
    }

    /// Checks a file and returns its version and body. `path` is for the message.
    pub fn open<'a>(&self, file: &'a [u8], path: &Path) -> Result<(u8, &'a [u8]), FileError> {
        let truncated = |expected: u64| {
            let found = file.len() as u64;
            self.error(path, Problem::Truncated { found, expected })
        };
        let (Some(magic), Some(version)) = (file.first_chunk::<8>(), file.get(8)) else {
            return Err(self.error(path, Problem::NotOurs));
        };
        if *magic != self.magic {
            return Err(self.error(path, Problem::NotOurs));
        }
        if !(self.oldest..=self.version).contains(version) {
            let (found, known) = (*version, self.version);
            return Err(self.error(path, Problem::Version { found, known }));
        }
        let word = |at: usize| {
            let bytes = file.get(at..)?.first_chunk::<8>()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let (Some(length), Some(checksum)) = (word(16), word(24)) else {
            return Err(truncated(HEADER_BYTES as u64));
        };
        if file.get(9..16) != Some(&[0; 7]) {
            return Err(self.corrupt(path, "header"));
        }
        let body = file.get(HEADER_BYTES..).unwrap_or_default();
        if body.len() as u64 != length {
            return Err(truncated(length.saturating_add(HEADER_BYTES as u64)));
        }
        if weft_kernel_id::image_hash(body) != checksum {
            return Err(self.corrupt(path, "checksum"));
        }
        Ok((*version, body))
    }

    /// Makes a file with this value as its body. `path` is for the message.
    pub fn encode(&self, value: &impl Serialize, path: &Path) -> Result<Vec<u8>, FileError> {
        let body = bincode::serde::encode_to_vec(value, bincode::config::standard().with_limit::<MAX_BYTES>())
            .map_err(|error| self.corrupt(path, error))?;
        let (bytes, limit) = ((HEADER_BYTES + body.len()) as u64, MAX_BYTES as u64);
        match bytes > limit {
            true => Err(self.error(path, Problem::TooLarge { bytes, limit })),
            false => Ok(self.seal(self.version, &body)),
        }
    }

    /// Decodes a value that fills the whole body. `path` is for the message.
    pub fn decode<T: DeserializeOwned>(&self, body: &[u8], path: &Path) -> Result<T, FileError> {
        let decoded = bincode::serde::decode_from_slice(body, bincode::config::standard().with_limit::<MAX_BYTES>());
        let (value, used) = decoded.map_err(|error| self.corrupt(path, error))?;
        match used == body.len() {
            true => Ok(value),
            false => Err(self.corrupt(path, "bytes left over")),
        }
    }

    /// Reads a file's bytes without checks, up to `MAX_BYTES`.
    pub fn read(&self, path: &Path) -> Result<Vec<u8>, FileError> {
        let limit = MAX_BYTES as u64;
        file::read(path, limit).map_err(|why| match why {
            NotRead::Io(source) => self.io("read", path, source),
            NotRead::TooLarge(bytes) => self.error(path, Problem::TooLarge { bytes, limit }),
        })
    }

    /// Replaces a file atomically. `mode` are its permissions, limited by the umask.
    pub fn replace(
        &self,
        path: &Path,
        mode: u32,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), FileError> {
        file::replace(path, mode, write).map_err(|source| self.io("write", path, source))
    }
}
