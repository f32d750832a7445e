//! What can be wrong with a profile. Each message is one line and says what, where and what to do.

use std::path::PathBuf;

use crate::format::FileError;

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
    /// Something is wrong with its file.
    #[error(transparent)]
    File(#[from] FileError),
}
