//! A trace in a file of any name. It is replaced as a whole or not at all.

use std::{io::Write, path::Path};

use super::{Error, Trace, codec};
use crate::file::{self, NotRead};

impl Trace {
    /// Reads a trace.
    pub fn load(path: &Path) -> Result<Trace, Error> {
        let content = file::read(path, codec::MAX_BYTES).map_err(|why| match why {
            NotRead::Io(source) => Error::Io {
                doing: "read",
                path: path.to_owned(),
                source,
            },
            NotRead::TooLarge(bytes) => Error::TooLarge {
                path: path.to_owned(),
                bytes,
                limit: codec::MAX_BYTES,
            },
        })?;
        codec::decode(&content, path)
    }

    /// Writes the trace, in the place of an older one.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let bytes = codec::encode(self, path)?;
        file::replace(path, 0o666, |file| file.write_all(&bytes)).map_err(|source| Error::Io {
            doing: "write",
            path: path.to_owned(),
            source,
        })
    }
}
