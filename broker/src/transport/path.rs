//! Where the broker's socket is, and whether its folder is safe. Pure but for looking at the file system.
#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::Error;

/// The socket of this user's broker: `WEFT_SOCKET`, else `weft/broker.sock` in `XDG_RUNTIME_DIR`, else in `/run/weft-UID` if that exists, else in `/tmp/weft-UID`.
pub fn socket() -> PathBuf {
    socket_from(
        |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from),
        rustix::process::geteuid().as_raw(),
        Path::is_dir,
    )
}

fn socket_from(variable: impl Fn(&str) -> Option<PathBuf>, uid: u32, is_folder: impl Fn(&Path) -> bool) -> PathBuf {
    if let Some(path) = variable("WEFT_SOCKET") {
        return path;
    }
    // The runtime folder of a user who is no longer logged in may be gone while its variable is still set (su, cron).
    if let Some(run) = variable("XDG_RUNTIME_DIR").filter(|run| is_folder(run)) {
        return run.join("weft/broker.sock");
    }
    let system = PathBuf::from(format!("/run/weft-{uid}"));
    if is_folder(&system) {
        return system.join("broker.sock");
    }
    PathBuf::from(format!("/tmp/weft-{uid}/broker.sock"))
}

/// Checks that nobody but this user can put a socket at `path`; with `make`, makes a missing folder (0700).
pub fn check_folder(path: &Path, make: bool) -> Result<(), Error> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let refuse = |why: &str| {
        Err(Error::Folder {
            path: folder.to_path_buf(),
            why: why.to_string(),
        })
    };
    if make && !folder.exists() {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        if let Err(why) = builder.create(folder)
            && !folder.is_dir()
        {
            return refuse(&format!("cannot make the folder of the broker's socket: {why}"));
        }
    }
    let facts = match fs::metadata(folder) {
        Ok(facts) => facts,
        Err(_) if !make => return Err(Error::NoBroker(path.to_path_buf())),
        Err(why) => return refuse(&format!("cannot look at the folder of the broker's socket: {why}")),
    };
    if !facts.is_dir() {
        return refuse("is not a folder; set WEFT_SOCKET to a path in a folder of your own");
    }
    if facts.uid() != rustix::process::geteuid().as_raw() {
        return refuse(
            "the folder of the broker's socket belongs to another user; set WEFT_SOCKET to a path in a folder of your own",
        );
    }
    if facts.mode() & 0o022 != 0 {
        return refuse(
            "others can write to the folder of the broker's socket; chmod 700 it, or set WEFT_SOCKET to a path in another folder",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_first_of_the_four_places_that_exists_is_taken() {
        let none = |_: &str| None;
        let run = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| PathBuf::from("/run/user/7"));
        assert_eq!(
            socket_from(
                |name| (name == "WEFT_SOCKET").then(|| PathBuf::from("/x/y")),
                7,
                |_| true
            ),
            Path::new("/x/y")
        );
        assert_eq!(socket_from(run, 7, |_| true), Path::new("/run/user/7/weft/broker.sock"));
        assert_eq!(socket_from(run, 7, |_| false), Path::new("/tmp/weft-7/broker.sock"));
        assert_eq!(socket_from(none, 7, |_| true), Path::new("/run/weft-7/broker.sock"));
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("deep/broker.sock");
        assert!(matches!(check_folder(&socket, false), Err(Error::NoBroker(_))));
        check_folder(&socket, true).expect("a fresh folder is safe");
        let mode = fs::metadata(folder.path().join("deep"))
            .expect("it was made")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::set_permissions(folder.path().join("deep"), fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(matches!(check_folder(&socket, true), Err(Error::Folder { .. })));
    }
}
