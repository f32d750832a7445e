// SPDX-License-Identifier: MIT OR Apache-2.0
//! Path of the broker's socket, and whether its folder is safe.
//!
//! A private broker's folder belongs to its user. A shared broker's folder (`/run/weft`) belongs to
//! root, or to a service account if only root can give folders away. No other user can put a socket
//! there.
#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{TransportError, peer::own_uid};

/// Default socket of a shared broker.
pub const SHARED: &str = "/run/weft/broker.sock";

/// Socket of the broker to use, absolute:
///
/// 1. `WEFT_SOCKET`, from the current folder if relative;
/// 2. the shared one ([`SHARED`]) if a socket is there, whether or not a broker listens;
/// 3. the user's own ([`own`]).
pub fn socket() -> PathBuf {
    let socket = socket_from(|name| set(name).map(PathBuf::from), own, is_socket);
    std::path::absolute(&socket).unwrap_or(socket)
}

fn set(name: &str) -> Option<std::ffi::OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn socket_from(
    variable: impl Fn(&str) -> Option<PathBuf>,
    own: impl Fn() -> PathBuf,
    is_socket: impl Fn(&Path) -> bool,
) -> PathBuf {
    if let Some(path) = variable("WEFT_SOCKET") {
        return path;
    }
    let shared = Path::new(SHARED);
    // Jobs wait while a shared broker restarts. With brokers of their own they would be strangers.
    if is_socket(shared) {
        return shared.to_path_buf();
    }
    own()
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|facts| facts.file_type().is_socket())
}

/// Whether a shared broker listens at `path`, or was killed there.
pub fn is_shared(path: &Path) -> bool {
    let open = |facts: fs::Metadata| facts.file_type().is_socket() && facts.permissions().mode() & 0o077 != 0;
    // Others must be able to enter the folder.
    let entered = |facts: fs::Metadata| facts.mode() & 0o011 != 0;
    path == Path::new(SHARED)
        || fs::symlink_metadata(path).is_ok_and(open) && fs::metadata(folder_of(path)).is_ok_and(entered)
}

/// Socket of the user's own broker: `weft/broker.sock` in `XDG_RUNTIME_DIR`, else `broker.sock` in
/// `/run/weft-UID` if that exists, else in `/tmp/weft-UID`.
pub fn own() -> PathBuf {
    own_from(|name| set(name).map(PathBuf::from), own_uid(), Path::is_dir)
}

fn own_from(variable: impl Fn(&str) -> Option<PathBuf>, uid: u32, is_folder: impl Fn(&Path) -> bool) -> PathBuf {
    // The variable may outlive its folder (su, cron).
    if let Some(run) = variable("XDG_RUNTIME_DIR").filter(|run| is_folder(run)) {
        return run.join("weft/broker.sock");
    }
    let system = PathBuf::from(format!("/run/weft-{uid}"));
    if is_folder(&system) {
        return system.join("broker.sock");
    }
    PathBuf::from(format!("/tmp/weft-{uid}/broker.sock"))
}

/// Longest path of a socket, bytes: the broker binds it with `.new` at its end.
pub const LONGEST_BYTES: usize = 103;

/// Checks that a socket may be put at `path`, before anything is made next to it.
fn check_place(path: &Path) -> Result<(), TransportError> {
    let bytes = path.as_os_str().as_bytes();
    let taken = fs::symlink_metadata(path).is_ok_and(|facts| !facts.file_type().is_socket());
    let why = match (bytes.len(), taken || bytes.ends_with(b"/")) {
        (..=LONGEST_BYTES, false) => return Ok(()),
        (..=LONGEST_BYTES, true) => "is not a socket; set WEFT_SOCKET to a broker's socket, or to a free path",
        _ => "the path of a broker's socket has at most 103 bytes; set WEFT_SOCKET to a shorter one",
    };
    Err(TransportError::Folder {
        path: path.to_path_buf(),
        why: why.to_string(),
    })
}

/// Checks that only this user can put a socket at `path`. `make`: makes a missing folder (0700).
pub fn check_folder(path: &Path, make: bool) -> Result<(), TransportError> {
    check_place(path)?;
    check(path, make.then_some(0o700), false).map(|_| ())
}

/// Checks a shared broker's own folder. Makes a missing one (0755).
pub fn check_shared_folder(path: &Path) -> Result<(), TransportError> {
    check_place(path)?;
    let missing = !folder_of(path).exists();
    check(path, Some(0o755), false)?;
    if missing {
        // The mode does not depend on the umask.
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder_of(path), mode)
            .map_err(TransportError::io("opening the folder of a shared broker's socket"))?;
    }
    Ok(())
}

/// Checks that the socket at `path` is trusted, and returns the folder's owner: this user, root, or
/// an account that got the folder from root.
pub fn trusted(path: &Path) -> Result<u32, TransportError> {
    check(path, None, true)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Whether a missing folder of a socket is made: only in a folder that exists, and not in the root
/// folder. A mistyped path makes nothing there.
pub fn may_make(folder: &Path) -> bool {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let parent = folder.parent().filter(|parent| parent.parent().is_some());
    parent.is_some_and(Path::is_dir)
}

/// Whether only root can make folders here.
fn is_roots(folder: &Path) -> bool {
    const ROOT: u32 = 0;
    fs::metadata(folder).is_ok_and(|facts| facts.uid() == ROOT && facts.mode() & 0o022 == 0)
}

fn check(path: &Path, make: Option<u32>, others: bool) -> Result<u32, TransportError> {
    let folder = folder_of(path);
    let refuse = |why: &str| {
        Err(TransportError::Folder {
            path: folder.to_path_buf(),
            why: why.to_string(),
        })
    };
    if let Some(mode) = make
        && !folder.exists()
    {
        if !may_make(folder) {
            return refuse(
                "there is no such folder for the broker's socket; make it, or set WEFT_SOCKET to a path in a folder of your own",
            );
        }
        if let Err(why) = fs::DirBuilder::new().mode(mode).create(folder)
            && !folder.is_dir()
        {
            return refuse(&format!("cannot make the folder of the broker's socket: {why}"));
        }
    }
    let facts = match fs::metadata(folder) {
        Ok(facts) => facts,
        Err(why) if make.is_none() && why.kind() == io::ErrorKind::NotFound => {
            return Err(TransportError::NoBroker(path.to_path_buf()));
        }
        Err(why) => {
            return refuse(&format!(
                "cannot examine the folder of the broker's socket: {why}; set WEFT_SOCKET to a path in a folder of your own"
            ));
        }
    };
    if !facts.is_dir() {
        return refuse("is not a folder; set WEFT_SOCKET to a path in a folder of your own");
    }
    let own = facts.uid() == own_uid();
    // Root's, or given away by root: no other user can make folders in its parent.
    let given = || is_roots(folder) || folder.parent().is_some_and(is_roots);
    if !(own || others && given()) {
        return refuse(
            "the folder of the broker's socket belongs to another user; set WEFT_SOCKET to a path in a folder of your own",
        );
    }
    if facts.mode() & 0o022 != 0 {
        return refuse(
            "other users can write to the folder of the broker's socket; chmod 700 it, or set WEFT_SOCKET to a path in another folder",
        );
    }
    Ok(facts.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_first_of_the_five_places_that_exists_is_taken() {
        let none = |_: &str| None;
        let said = |name: &str| (name == "WEFT_SOCKET").then(|| PathBuf::from("/x/y"));
        let run = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| PathBuf::from("/run/user/7"));
        let own = || PathBuf::from("/own");
        assert_eq!(socket_from(said, own, |_| true), Path::new("/x/y"));
        assert_eq!(socket_from(none, own, |_| true), Path::new(SHARED));
        assert_eq!(socket_from(none, own, |_| false), Path::new("/own"));
        assert_eq!(own_from(run, 7, |_| true), Path::new("/run/user/7/weft/broker.sock"));
        assert_eq!(own_from(run, 7, |_| false), Path::new("/tmp/weft-7/broker.sock"));
        assert_eq!(own_from(none, 7, |_| true), Path::new("/run/weft-7/broker.sock"));
    }

    #[test]
    fn a_folder_that_anybody_may_have_made_is_not_trusted() {
        // /proc/sys and /proc are both root's.
        assert_eq!(trusted(Path::new("/proc/sys/broker.sock")).expect("root's"), 0);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let own = trusted(&folder.path().join("broker.sock")).expect("one's own");
        assert_eq!(own, own_uid());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).expect("chmod");
        assert!(matches!(
            trusted(&folder.path().join("broker.sock")),
            Err(TransportError::Folder { .. })
        ));
        assert!(!is_roots(folder.path()), "anybody may make folders in it");
    }

    #[test]
    fn a_socket_that_others_can_reach_is_a_shared_brokers() {
        let mode = |path: &Path, bits| fs::set_permissions(path, fs::Permissions::from_mode(bits)).expect("chmod");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("broker.sock");
        let _dead = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        for (of_folder, of_socket, shared) in [
            (0o700, 0o666, false),
            (0o755, 0o600, false),
            (0o755, 0o666, true),
            (0o710, 0o660, true),
        ] {
            mode(folder.path(), of_folder);
            mode(&socket, of_socket);
            assert_eq!(is_shared(&socket), shared, "{of_folder:o} {of_socket:o}");
        }
        assert!(is_shared(Path::new(SHARED)) && !is_shared(&folder.path().join("none")));
    }

    #[test]
    fn nothing_is_made_for_a_path_that_can_be_no_socket() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        let long = folder.path().join("x".repeat(LONGEST_BYTES));
        for socket in [file, folder.path().into(), folder.path().join("deep/"), long] {
            let error = check_folder(&socket, true).expect_err("no socket").to_string();
            assert!(error.contains("set WEFT_SOCKET to a"), "{error}");
            check_shared_folder(&socket).expect_err("no socket");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 1);
    }

    #[test]
    fn a_mistyped_path_makes_no_folders() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for socket in [
            folder.path().join("a/b/broker.sock"),
            "/no-such-folder/broker.sock".into(),
        ] {
            let error = check_folder(&socket, true).expect_err("no folder").to_string();
            assert!(error.contains("no such folder"), "{error}");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 0);
        assert!(!Path::new("/no-such-folder").exists());
    }

    #[test]
    fn a_folder_below_a_file_is_not_a_missing_broker() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        for socket in [file.path().join("broker.sock"), file.path().join("deep/broker.sock")] {
            let error = trusted(&socket).expect_err("no folder");
            assert!(matches!(error, TransportError::Folder { .. }), "{error}");
            assert!(error.to_string().ends_with("in a folder of your own"), "{error}");
        }
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("deep/broker.sock");
        assert!(matches!(check_folder(&socket, false), Err(TransportError::NoBroker(_))));
        check_folder(&socket, true).expect("a fresh folder is safe");
        let mode = fs::metadata(folder.path().join("deep"))
            .expect("it was made")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::set_permissions(folder.path().join("deep"), fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(matches!(
            check_folder(&socket, true),
            Err(TransportError::Folder { .. })
        ));
    }
}
