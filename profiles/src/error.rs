// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of profiles. Each message is one line with the fault, its place and the remedy.

use std::path::PathBuf;

use crate::format::FileError;

/// An error of a profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The name cannot be a file's.
    #[error(
        "{0:?} cannot be the name of a profile: use 1 to 64 letters, digits, '-', '_' and '.', the first one a letter or digit, and no .profile at the end"
    )]
    Name(String),
    /// No directory is known.
    #[error("no folder for profiles: set WEFT_PROFILE_DIR or HOME")]
    NoDirectory,
    /// No profile has this name.
    #[error("no profile {name:?} at {}: record it with `weft profile --name {name} -- COMMAND`", path.display())]
    Missing {
        /// Name of the profile.
        name: String,
        /// Its expected path.
        path: PathBuf,
    },
    /// The profile is of another GPU.
    #[error("profile {name:?} was taken on {taken}, this job runs on {here}: take it again on this GPU")]
    OtherGpu {
        /// Name of the profile.
        name: String,
        /// GPU of the profile.
        taken: String,
        /// GPU of its use.
        here: String,
    },
    /// The profile's file is wrong.
    #[error(transparent)]
    File(#[from] FileError),
}
