// SPDX-License-Identifier: MIT OR Apache-2.0
//! Search for the real driver and weft's own library, distinguished by device and inode.
#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use weft_protocol::linker_cache;

/// File name against which programs are linked.
pub const DRIVER: &str = "libcuda.so.1";
/// File name that some programs open instead.
pub const DRIVER_BARE: &str = "libcuda.so";
/// File name of weft's library.
pub const WEFT: &str = "libweft.so";

/// Driver directories of Debian and Red Hat families, WSL, Debian's alternatives, NixOS.
const DRIVER_DIRECTORIES: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/run/opengl-driver/lib",
];

/// Device and inode of a file.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Whether both paths lead to one file.
pub fn same_file(one: &Path, other: &Path) -> bool {
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// weft's library: `WEFT_LIBRARY`, else next to this program, else in `../lib/weft` or `../lib`.
pub fn find_weft() -> Option<PathBuf> {
    if let Some(named) = env::var_os("WEFT_LIBRARY").filter(|value| !value.is_empty()) {
        return fs::canonicalize(named).ok().filter(|path| is_library(path));
    }
    let program = env::current_exe().ok()?;
    let directory = program.parent()?;
    // A program under test is one folder deeper than the library.
    let candidates = [".", "../lib/weft", "../lib", ".."];
    candidates
        .iter()
        .map(|folder| directory.join(folder).join(WEFT))
        .find_map(|path| fs::canonicalize(path).ok())
}

/// Whether a file is a program or a shared library, by its first bytes. A job with anything else
/// preloaded starts with the linker's error messages, or not at all.
fn is_library(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}

/// Newest glibc version that a library needs (major, minor), from the version names among its
/// strings. On an older system no process starts with it preloaded.
pub fn glibc_of(library: &Path) -> Option<(u32, u32)> {
    newest_glibc(&fs::read(library).ok()?)
}

fn newest_glibc(data: &[u8]) -> Option<(u32, u32)> {
    const PREFIX: &[u8] = b"\0GLIBC_";
    let numbers = |at: usize| {
        let rest = data.get(at + PREFIX.len()..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        let (major, minor) = std::str::from_utf8(rest.get(..end)?).ok()?.split_once('.')?;
        // `2.2.5` and the like are older than `2.3`.
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let places = data.iter().enumerate().filter(|(_, byte)| **byte == 0);
    places
        .filter(|(at, _)| data.get(*at..*at + PREFIX.len()) == Some(PREFIX))
        .filter_map(|(at, _)| numbers(at))
        .max()
}

/// A driver found on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverLibrary {
    /// Absolute path.
    pub path: PathBuf,
    /// Means by which it was found, for people.
    pub by: String,
}

/// Variable with which `weft run` passes the driver's path to the job, unless the user named one.
/// It is only a guess: in a container the driver is elsewhere.
pub const HINT: &str = "WEFT_CUDA_LIBRARY_HINT";

/// The driver that `WEFT_CUDA_LIBRARY` names, if any.
fn named_driver() -> Option<PathBuf> {
    let named = env::var_os("WEFT_CUDA_LIBRARY").filter(|value| !value.is_empty());
    named.map(PathBuf::from)
}

/// Message that the variable does not name a driver; `None` if it is not set.
pub fn misnamed_driver() -> Option<String> {
    Some(format!(
        "WEFT_CUDA_LIBRARY={} is not a driver",
        named_driver()?.display()
    ))
}

/// The real driver: by `WEFT_CUDA_LIBRARY`, [`HINT`], `LD_LIBRARY_PATH`, the linker's cache, else
/// in the usual directories.
pub fn find_driver(weft: Option<&Path>) -> Option<DriverLibrary> {
    if let Some(path) = named_driver() {
        return is_driver(&path, weft).then(|| DriverLibrary {
            path: std::path::absolute(&path).unwrap_or(path),
            by: "WEFT_CUDA_LIBRARY".to_string(),
        });
    }
    let hint = env::var_os(HINT).map(PathBuf::from);
    if let Some(path) = hint.filter(|path| path.is_absolute() && is_driver(path, weft)) {
        let by = HINT.to_string();
        return Some(DriverLibrary { path, by });
    }
    let library_path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    search(&library_path, weft)
}

fn search(library_path: &OsStr, weft: Option<&Path>) -> Option<DriverLibrary> {
    let along = env::split_paths(library_path)
        // To the linker an empty entry is the working directory, which has no driver.
        .filter(|directory| directory.is_absolute())
        .flat_map(|directory| [directory.join(DRIVER), directory.join(DRIVER_BARE)])
        .map(|path| (path, "LD_LIBRARY_PATH"));
    let cache = fs::read("/etc/ld.so.cache").unwrap_or_default();
    let cached = linker_cache::paths(&cache, DRIVER)
        .into_iter()
        .map(|path| (path, "the linker's cache"));
    let known = DRIVER_DIRECTORIES
        .iter()
        .map(|directory| (Path::new(directory).join(DRIVER), "the usual directories"));
    along
        .chain(cached)
        .chain(known)
        .find(|(path, _)| is_driver(path, weft))
        .map(|(path, by)| DriverLibrary {
            path,
            by: by.to_string(),
        })
}

/// Whether a file is a library, but neither a stub nor weft's.
fn is_driver(path: &Path, weft: Option<&Path>) -> bool {
    let begins = |mut file: fs::File| {
        let mut magic = [0; 4];
        file.read_exact(&mut magic).is_ok_and(|()| magic == *b"\x7fELF")
    };
    // Opening a pipe would block.
    let substantial = fs::metadata(path).is_ok_and(|meta| meta.is_file()) && fs::File::open(path).is_ok_and(begins);
    // The toolkit's `stubs` are for linking only.
    let stub = path.parent().and_then(Path::file_name) == Some(OsStr::new("stubs"));
    substantial && !stub && !weft.is_some_and(|weft| same_file(path, weft))
}

/// The directory `lib` next to weft's library, if both driver names in it lead to the library.
pub fn links_beside(weft: &Path) -> Option<PathBuf> {
    let beside = weft.parent()?.join("lib");
    let mut names = [DRIVER, DRIVER_BARE].iter();
    names.all(|name| same_file(&beside.join(name), weft)).then_some(beside)
}

/// A directory under `scratch` in which both driver names link to weft's library. Fails if another
/// user could change it and so make the job load any library.
pub fn link_directory(weft: &Path, scratch: &Path) -> io::Result<PathBuf> {
    let (device, inode) = identity(weft).ok_or(io::ErrorKind::NotFound)?;
    let directory = scratch.join(format!("lib-{device:x}-{inode:x}"));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let facts = fs::symlink_metadata(&directory)?;
    let own = facts.is_dir() && facts.uid() == rustix::process::geteuid().as_raw() && facts.mode() & 0o022 == 0;
    if !own {
        let why = format!("{} belongs to or can be changed by another user", directory.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    for name in [DRIVER, DRIVER_BARE] {
        let link = directory.join(name);
        if same_file(&link, weft) {
            continue;
        }
        // Made under a temporary name, then renamed: another process may do the same.
        let fresh = directory.join(format!(".{name}.{}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        symlink(weft, &fresh)?;
        fs::rename(&fresh, &link)?;
    }
    Ok(directory)
}

/// A fresh directory private to this user, never reused. A parent that outlives the job removes it.
pub fn fresh_directory() -> io::Result<PathBuf> {
    /// Each name is new, so a taken one is an attack.
    const TRIES: u32 = 64;
    let since = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.subsec_nanos());
    for turn in 0..TRIES {
        let name = format!("weft-lib-{}-{:x}", std::process::id(), since.wrapping_add(turn));
        let directory = env::temp_dir().join(name);
        // Fails if anything exists there, including a link.
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| directory),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weft_is_never_taken_for_the_driver() {
        let home = tempfile::tempdir().expect("a directory");
        let ours = home.path().join("ours");
        let real = home.path().join("real");
        fs::create_dir_all(&ours).expect("made");
        fs::create_dir_all(&real).expect("made");
        let weft = home.path().join(WEFT);
        fs::write(&weft, b"\x7fELF ours").expect("written");
        symlink(&weft, ours.join(DRIVER)).expect("linked");
        fs::hard_link(&weft, ours.join(DRIVER_BARE)).expect("linked");
        fs::write(real.join(DRIVER), b"\x7fELF real").expect("written");
        let text = home.path().join("text");
        fs::write(&text, "root:x:0:0").expect("written");
        assert!(!is_driver(&text, None));
        let path = env::join_paths([&ours, &real]).expect("joined");
        let found = search(&path, Some(&weft)).expect("found");
        assert_eq!(found.path, real.join(DRIVER));
        assert_eq!(found.by, "LD_LIBRARY_PATH");
    }

    #[test]
    fn the_newest_glibc_that_is_named_counts() {
        let names = b"GLIBC_9.9\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE\0GLIBC_2.99 \0x\0GLIBC_2.50";
        assert_eq!(newest_glibc(names), Some((2, 34)));
        assert_eq!(newest_glibc(b"no names"), None);
    }

    #[test]
    fn stubs_are_no_driver() {
        let home = tempfile::tempdir().expect("a directory");
        let stubs = home.path().join("stubs");
        fs::create_dir_all(&stubs).expect("made");
        fs::write(stubs.join(DRIVER), "stub").expect("written");
        assert!(!is_driver(&stubs.join(DRIVER), None));
    }

    #[test]
    fn links_are_made_where_none_stand() {
        let home = tempfile::tempdir().expect("a directory");
        let weft = home.path().join(WEFT);
        fs::write(&weft, b"\x7fELF ours").expect("written");
        let scratch = home.path().join("scratch");
        for _ in 0..2 {
            let made = link_directory(&weft, &scratch).expect("made");
            assert!(made.starts_with(&scratch));
            assert!(same_file(&made.join(DRIVER), &weft));
            assert!(same_file(&made.join(DRIVER_BARE), &weft));
        }
        let beside = home.path().join("lib");
        fs::create_dir(&beside).expect("made");
        symlink(&weft, beside.join(DRIVER)).expect("linked");
        assert_eq!(links_beside(&weft), None, "one name is missing");
        symlink(&weft, beside.join(DRIVER_BARE)).expect("linked");
        assert_eq!(links_beside(&weft), Some(beside));
    }

    #[test]
    fn links_that_others_could_change_are_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().expect("a directory");
        let weft = home.path().join(WEFT);
        fs::write(&weft, b"\x7fELF ours").expect("written");
        let made = link_directory(&weft, home.path()).expect("made");
        fs::set_permissions(&made, fs::Permissions::from_mode(0o777)).expect("chmod");
        let refused = link_directory(&weft, home.path()).expect_err("anybody may have put links there");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let fresh = fresh_directory().expect("made");
        let mode = fs::metadata(&fresh).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert_ne!(fresh_directory().ok().as_ref(), Some(&fresh));
        let linked = link_directory(&weft, &fresh).expect("made");
        assert!(same_file(&linked.join(DRIVER), &weft));
        let _ = fs::remove_dir_all(fresh);
    }
}
