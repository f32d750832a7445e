//! Bytes that one process hands to another and cannot change afterwards: a sealed memfd. Whoever reads them waits for no disk and meets no truncation.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Write;
#[cfg(feature = "server")]
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
#[cfg(feature = "server")]
use rustix::fs::{fcntl_get_seals, fstat};

use super::Error;

/// No profile is longer.
pub(super) const LONGEST: u64 = weft_profiles::codec::MAX_BYTES;

fn seals() -> SealFlags {
    SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

/// Puts bytes into it.
pub(super) fn make(bytes: &[u8]) -> Result<OwnedFd, Error> {
    let memory = memfd_create(c"weft-profile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(Error::system("making memory for a profile"))?;
    let mut file = File::from(memory);
    file.write_all(bytes)
        .map_err(Error::io("writing a profile to memory"))?;
    fcntl_add_seals(&file, seals()).map_err(Error::system("sealing a profile"))?;
    Ok(file.into())
}

/// Takes them out. What is not sealed is refused before it is read: it could be a file that never answers.
#[cfg(feature = "server")]
pub(super) fn read(memory: &OwnedFd) -> Result<Vec<u8>, Error> {
    let found = fcntl_get_seals(memory).map_err(Error::system("looking at the seals of a profile"))?;
    if !found.contains(seals()) {
        return Err(Error::Nonsense("a profile came in memory that may change"));
    }
    let length = fstat(memory).map_err(Error::system("looking at a profile"))?.st_size;
    let length = u64::try_from(length).unwrap_or(u64::MAX);
    if length > LONGEST {
        return Err(Error::Nonsense("a profile came that is longer than any"));
    }
    let mut bytes = vec![0u8; length as usize];
    let mut done = 0;
    while done < bytes.len() {
        let rest = bytes.get_mut(done..).unwrap_or_default();
        match rustix::io::pread(memory.as_fd(), rest, done as u64) {
            Ok(0) => return Err(Error::Nonsense("a profile came short")),
            Ok(more) => done += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::system("reading a profile")(errno)),
        }
    }
    Ok(bytes)
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use super::*;

    #[test]
    fn what_may_change_is_refused() {
        let memory = make(b"a profile").expect("made");
        assert_eq!(read(&memory).expect("read"), b"a profile");
        let open = memfd_create(c"open", MemfdFlags::ALLOW_SEALING).expect("a memfd");
        assert!(matches!(read(&open), Err(Error::Nonsense(_))));
        let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
        assert!(read(&pipe).is_err());
    }
}
