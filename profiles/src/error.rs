//! What can be wrong with a profile. Each message is one line and says what, where and what to do.

use std::{io, path::PathBuf};

/// What can be wrong with a profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name cannot be a file's.
    #[error(
        "{0:?} cannot be the name of a profile: use 1 to 64 letters, digits, '-', '_' and '.', the first one a letter or digit"
    )]
    Name(String),
    /// No directory is known.
    #[error("no place for profiles: set WEFT_PROFILE_DIR, or HOME")]
    NoDirectory,
    /// There is none of this name.
    #[error("there is no profile {name:?} at {}: take it with `weft profile --name {name} -- COMMAND`", path.display())]
    Missing {
        /// Its name.
        name: String,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{} is not a profile of weft: remove it and take the profile again", .0.display())]
    NotAProfile(PathBuf),
    /// Written by another version of weft.
    #[error(
        "{} has profile format {found}, this weft reads {known}: take the profile again with this weft",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u8,
        /// The format of this build.
        known: u8,
    },
    /// The file ends too early, or has more than it says.
    #[error("{} is truncated: {found} bytes of {expected}: take the profile again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that are there.
        found: u64,
        /// Bytes that it says it has.
        expected: u64,
    },
    /// The content is not what was written.
    #[error("{} is corrupt ({why}): take the profile again", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// More than a profile may have.
    #[error("{} is too large for a profile ({bytes} bytes, at most {limit}): take the profile again", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },
    /// Taken on another GPU.
    #[error("profile {name:?} was taken on {taken}, this job runs on {here}: take it again on this GPU")]
    OtherGpu {
        /// Its name.
        name: String,
        /// Where it was taken.
        taken: String,
        /// Where it would be used.
        here: String,
    },
    /// The system refused.
    #[error("cannot {doing} {}: {source}{}", path.display(), hint(source))]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What to do about an error of the system.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (the profile that was there before is unchanged: make room and take it again)"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            " (set WEFT_PROFILE_DIR to a directory of yours)"
        }
        _ => "",
    }
}
