//! A trace in a file of any name. It is replaced as a whole or not at all.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::Path,
};

use super::{Error, Trace, codec};

impl Trace {
    /// Reads a trace.
    pub fn load(path: &Path) -> Result<Trace, Error> {
        let io_error = |source| Error::Io {
            doing: "read",
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(io_error)?;
        let bytes = file.metadata().map_err(io_error)?.len();
        let mut content = Vec::new();
        // One more than the limit, so that a file that grows meanwhile (or a device that says 0) is found out.
        file.take(codec::MAX_BYTES + 1)
            .read_to_end(&mut content)
            .map_err(io_error)?;
        if content.len() as u64 > codec::MAX_BYTES {
            return Err(Error::TooLarge {
                path: path.to_owned(),
                bytes: bytes.max(content.len() as u64),
                limit: codec::MAX_BYTES,
            });
        }
        codec::decode(&content, path)
    }

    /// Writes the trace, in the place of an older one.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let bytes = codec::encode(self, path)?;
        let io_error = |source| Error::Io {
            doing: "write",
            path: path.to_owned(),
            source,
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}", std::process::id()));
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        written.and_then(|()| fs::rename(&temporary, path)).map_err(|source| {
            // Nothing can be done if this fails too.
            let _ = fs::remove_file(&temporary);
            io_error(source)
        })
    }
}
