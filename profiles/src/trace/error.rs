//! What can be wrong with a trace. Each message is one line and says what, where and what to do.

use std::{io, path::PathBuf};

/// What can be wrong with a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is something else.
    #[error("{} is not a launch trace of weft: give a file that `weft profile --trace FILE` wrote", .0.display())]
    NotATrace(PathBuf),
    /// Written by another version of weft.
    #[error("{} has trace format {found}, this weft reads {known}: record it again with this weft", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u8,
        /// The format of this build.
        known: u8,
    },
    /// The file ends too early, or has more than it says.
    #[error("{} is truncated: {found} bytes of {expected}: record it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that are there.
        found: u64,
        /// Bytes that it says it has.
        expected: u64,
    },
    /// The content is not what was written.
    #[error("{} is corrupt ({why}): record it again", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// More than a trace may have.
    #[error("{} is too large for a trace ({bytes} bytes, at most {limit}): record fewer steps", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },
    /// What was to be written makes no sense.
    #[error("the trace for {} is not sound ({why}): it was not written", path.display())]
    Unsound {
        /// The file that was to be.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
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
            " (a file that was there before is unchanged: make room and record it again)"
        }
        _ => "",
    }
}
