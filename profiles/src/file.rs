// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files: reads within a limit, and atomic replacement.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

/// Most names tried for a temporary file. If killed processes with one process number left more
/// files, no name is free.
const TRIES: u64 = 1000;

/// Reason for which a file was not read.
pub(crate) enum NotRead {
    /// Error of the system.
    Io(io::Error),
    /// Size of the file, or a lower bound, bytes.
    TooLarge(u64),
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, NotRead> {
    let file = File::open(path).map_err(NotRead::Io)?;
    let bytes = file.metadata().map_err(NotRead::Io)?.len();
    let mut content = Vec::new();
    // One more than the limit reveals a file that grows meanwhile, or a device that reports 0.
    file.take(limit + 1).read_to_end(&mut content).map_err(NotRead::Io)?;
    match content.len() as u64 {
        read if read > limit => Err(NotRead::TooLarge(bytes.max(read))),
        _ => Ok(content),
    }
}

/// Replaces a file atomically: writes, flushes and renames a new one. After a full disk, a kill or
/// a power cut the old file remains. `mode` are the permissions, limited by the umask.
pub(crate) fn replace(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    is_regular(path)?;
    let (temporary, file) = beside(path, mode)?;
    write_whole(file, write)
        .and_then(|()| fs::rename(&temporary, path))
        // No remedy if this fails too; the name begins with a dot and is never read.
        .inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    // If the file system supports it, flushing the directory puts the rename on the disk. The
    // content is whole either way.
    if let Some(directory) = path.parent().and_then(|parent| File::open(parent).ok()) {
        let _ = directory.sync_all();
    }
    Ok(())
}

/// Error: something other than a regular file is at `path`. A rename would remove a device.
fn is_regular(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(there) if !there.is_file() => Err(io::Error::other("it is no regular file")),
        _ => Ok(()),
    }
}

/// Checks that a file could be written at `path`: makes a file in the same directory and removes
/// it.
pub(crate) fn could_replace(path: &Path) -> io::Result<()> {
    is_regular(path)?;
    let (temporary, _) = beside(path, 0o600)?;
    fs::remove_file(temporary)
}

/// Makes a new file in the directory of `path`. A killed process of the same number, as in
/// containers, may have left a file of its name.
fn beside(path: &Path, mode: u32) -> io::Result<(PathBuf, File)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut left = TRIES;
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_file_name(format!(".{name}.{}.{number}", process::id()));
        left -= 1;
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)
        {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && left > 0 => {}
            opened => return opened.map(|file| (temporary, file)),
        }
    }
}

fn write_whole(mut file: File, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    write(&mut file)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_a_killed_process_left_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        // All names that this process would take next.
        for number in 0..TRIES / 2 {
            fs::write(folder.path().join(format!(".x.{}.{number}", process::id())), "torn").unwrap();
        }
        for text in ["first", "second"] {
            replace(&path, 0o600, |file| file.write_all(text.as_bytes())).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn what_is_no_regular_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(could_replace(&path).is_err());
        assert!(replace(&path, 0o600, |file| file.write_all(b"x")).is_err());
        assert!(!fs::metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nor is anything left");
    }
}
