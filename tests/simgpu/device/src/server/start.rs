// SPDX-License-Identifier: MIT OR Apache-2.0
//! Becoming the device: the lock that makes it the only one of its socket, the socket, and leaving
//! the starter's session.

use std::fs::DirBuilder;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Resource;

use crate::link::beside;

/// Clients that may connect while the device is busy: three times the processes of the largest test
/// that starts them at once.
const BACKLOG: i32 = 1024;

/// Suffix of the device's own lock, held for its life. The file stays: after a removal two
/// processes could hold it.
const LOCK: &str = "lock";

/// Whether all users may use the device (`SIMGPU_USERS=all`), as a real one; else its user and
/// root.
pub(super) fn for_all_users() -> bool {
    std::env::var_os("SIMGPU_USERS").is_some_and(|users| users == "all")
}

/// A listening socket, owned only by this device.
pub struct Started {
    pub(super) listener: OwnedFd,
    pub(super) socket: PathBuf,
}

/// Takes the socket's lock and listens. `None`: another device serves the socket.
///
/// With `detach`, the calling process ends here with success, and a child continues in a session of
/// its own. To be called before any thread is started.
pub fn prepare(socket: &Path, detach: bool) -> io::Result<Option<Started>> {
    if let Some(directory) = socket.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    if detach {
        self::detach()?;
    }
    let lock = rustix::fs::open(
        beside(socket, LOCK),
        OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::RUSR | Mode::WUSR,
    )?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    // Held until the process ends, however it ends.
    std::mem::forget(lock);
    // The lock's holder owns the path: a file there is a dead device's.
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    // Only the user may connect, from the first moment on, unless all users may.
    let hidden = if for_all_users() { 0o111 } else { 0o177 };
    let mask = rustix::process::umask(Mode::from_bits_truncate(hidden));
    let bound = rustix::net::bind(&listener, &SocketAddrUnix::new(socket)?);
    rustix::process::umask(mask);
    bound?;
    rustix::net::listen(&listener, BACKLOG)?;
    // Two descriptors a client: the usual soft limit of 1024 would do for half of the clients. The
    // hard limit is usually far higher.
    let mut files = rustix::process::getrlimit(Resource::Nofile);
    files.current = files.maximum;
    let _ = rustix::process::setrlimit(Resource::Nofile, files);
    // The default of 50 us would be added to every sleep.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    Ok(Some(Started {
        listener,
        socket: socket.to_owned(),
    }))
}

/// Leaves the starter's process, session and open files.
fn detach() -> io::Result<()> {
    // SAFETY: the process has one thread (see `prepare`), so the child has all that it needs.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(io::Error::last_os_error()),
        0 => {}
        // SAFETY: ends the process at once; the child is another process.
        _ => unsafe { libc::_exit(0) },
    }
    rustix::process::setsid()?;
    // A pipe of the client's that stayed open here would keep its reader waiting. Standard input,
    // output and errors are the starter's to set. SAFETY: nothing in this process has opened a file
    // yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    Ok(())
}
