// SPDX-License-Identifier: MIT OR Apache-2.0
//! Candidate paths of the real driver, in the order of the dynamic linker and of driver packages.
#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use weft_protocol::linker_cache;

use crate::processor::DRIVER_FOLDERS;

/// Variable with the driver's path, if the user sets it.
pub const VARIABLE: &str = "WEFT_CUDA_LIBRARY";

/// Path that `weft run` found, tried first. A container may have the driver elsewhere.
pub const HINT: &str = "WEFT_CUDA_LIBRARY_HINT";

/// Driver names. Programs link against the first, which is sought everywhere before the second.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Folder of the CUDA toolkit's link library, whose calls all fail.
const STUBS: &str = "stubs";

/// Further folders that driver packages and container runtimes use.
const FOLDERS: [&str; 9] = [
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib64/nvidia",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/cuda/compat",
];

pub type Identity = (u64, u64);

/// Identity of a file, under any name.
pub fn identity(path: impl AsRef<Path>) -> Option<Identity> {
    let about = fs::metadata(path).ok()?;
    about.is_file().then(|| (about.dev(), about.ino()))
}

/// The driver that `VARIABLE` names, if any.
pub fn named() -> Option<OsString> {
    env::var_os(VARIABLE).filter(|value| !value.is_empty())
}

/// Absolute paths to try, in order. `VARIABLE`, if set, is the only one, so that the user notices a
/// wrong value.
pub fn candidates() -> Vec<PathBuf> {
    if let Some(named) = named() {
        return vec![absolute(Path::new(&named))];
    }
    let hint = env::var_os(HINT).filter(|value| !value.is_empty());
    let library_path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let cache = fs::read("/etc/ld.so.cache").unwrap_or_default();
    let searched = collect(library_path.as_bytes(), &cache);
    hint.map(|hint| absolute(Path::new(&hint)))
        .into_iter()
        .chain(searched)
        .collect()
}

/// All places for the first name, then for the second.
fn collect(library_path: &[u8], cache: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut add = |path: PathBuf| {
        if !found.contains(&path) {
            found.push(path);
        }
    };
    for name in NAMES {
        // Both separators are accepted; an empty entry means the working folder.
        if !library_path.is_empty() {
            for folder in library_path.split(|byte| *byte == b':' || *byte == b';') {
                let folder = absolute(Path::new(std::ffi::OsStr::from_bytes(folder)));
                // Programs request the first name, so without weft they never meet the stub.
                if name == NAMES[0] || !folder.ends_with(STUBS) {
                    add(folder.join(name));
                }
            }
        }
        linker_cache::paths(cache, name).into_iter().for_each(&mut add);
        let folders = DRIVER_FOLDERS.iter().chain(&FOLDERS);
        folders.for_each(|folder| add(Path::new(folder).join(name)));
    }
    found
}

fn absolute(path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() {
        return env::current_dir().unwrap_or_default();
    }
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_path_comes_first_and_nothing_twice() {
        let found = collect(b"/a:/b;/a:/usr/lib64", b"");
        let strings: Vec<_> = found.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        assert_eq!(
            strings[..3],
            ["/a/libcuda.so.1", "/b/libcuda.so.1", "/usr/lib64/libcuda.so.1"]
        );
        assert_eq!(
            strings.iter().filter(|path| *path == "/usr/lib64/libcuda.so.1").count(),
            1
        );
        assert!(found.iter().all(|path| path.is_absolute()));
    }

    #[test]
    fn the_first_name_is_looked_for_everywhere_before_the_second() {
        let found = collect(b"/usr/local/cuda/lib64/stubs:/b", b"");
        let second = found.iter().position(|path| path.ends_with("libcuda.so")).unwrap();
        let (first, rest) = found.split_at(second);
        assert!(first.iter().all(|path| path.ends_with("libcuda.so.1")));
        assert!(rest.iter().all(|path| path.ends_with("libcuda.so")));
        assert_eq!(first.len(), rest.len() + 1);
        assert!(!rest.contains(&PathBuf::from("/usr/local/cuda/lib64/stubs/libcuda.so")));
        assert!(rest.contains(&PathBuf::from("/b/libcuda.so")));
    }

    #[test]
    fn an_empty_entry_is_the_working_folder() {
        let here = env::current_dir().unwrap().join("libcuda.so.1");
        assert!(collect(b"/a::/b", b"").contains(&here));
        assert!(!collect(b"", b"").contains(&here));
    }

    #[test]
    fn a_file_is_itself_under_every_name() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b, c) = (
            folder.path().join("a"),
            folder.path().join("b"),
            folder.path().join("c"),
        );
        fs::write(&a, "x").unwrap();
        std::os::unix::fs::symlink(&a, &b).unwrap();
        fs::write(&c, "x").unwrap();
        assert!(identity(&a).is_some());
        assert_eq!(identity(&a), identity(&b));
        assert_ne!(identity(&a), identity(&c));
        assert_eq!(identity(folder.path()), None);
    }
}
