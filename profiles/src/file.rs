//! Files that are read within a limit and replaced as a whole or not at all.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

/// Names that are tried for a file beside another. So many killed processes of one number leave
/// none free.
const TRIES: u64 = 1000;

/// Why a file was not read.
pub(crate) enum NotRead {
    /// The system's reason.
    Io(io::Error),
    /// It has so many bytes, or more.
    TooLarge(u64),
}

/// The bytes of a file, if they are no more than `limit`.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, NotRead> {
    let file = File::open(path).map_err(NotRead::Io)?;
    let bytes = file.metadata().map_err(NotRead::Io)?.len();
    let mut content = Vec::new();
    // One more than the limit, so that a file that grows meanwhile (or a device that says 0) is
    // found out.
    file.take(limit + 1).read_to_end(&mut content).map_err(NotRead::Io)?;
    match content.len() as u64 {
        read if read > limit => Err(NotRead::TooLarge(bytes.max(read))),
        _ => Ok(content),
    }
}

/// Puts a file in the place of another, whole or not at all: it is written beside the old one,
/// flushed to the disk and renamed over it. A full disk, a kill or a power cut leaves the old one.
/// `mode` is what others may do with it, as far as the umask lets them.
pub(crate) fn replace(path: &Path, mode: u32, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let (temporary, file) = beside(path, mode)?;
    write_whole(file, write)
        .and_then(|()| fs::rename(&temporary, path))
        // Nothing can be done if this fails too; the name begins with a dot and is never read.
        .inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    // The rename itself is on the disk once the directory is. Not every file system can; the
    // content is whole either way.
    if let Some(directory) = path.parent().and_then(|parent| File::open(parent).ok()) {
        let _ = directory.sync_all();
    }
    Ok(())
}

/// Whether a file could be put at `path` now, found out by making one beside it. Nothing of it is
/// left.
pub(crate) fn could_replace(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let (temporary, _) = beside(path, 0o600)?;
    fs::remove_file(temporary)
}

/// A new file beside `path`. A process that was killed may have left one of the same name: in a
/// container every process has the number that the one before had.
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
}
