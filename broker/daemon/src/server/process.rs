//! What only the broker asks the kernel of a caller: its process, and whether it may send
//! descriptors.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use weft_protocol::transport::Error;

/// The process that connected, whoever has its number by now (Linux 6.5). In no `libc` of the time
/// yet.
const SO_PEERPIDFD: libc::c_int = 77;

/// Whether packets may bring descriptors (Linux 6.16). In no `libc` of the time yet.
const SO_PASSRIGHTS: libc::c_int = 83;

/// A descriptor that becomes readable when the process ends that connected. `None` if the system
/// has none to give; the sockets then tell alone. [`Error::Gone`]: it has ended already.
pub(super) fn pidfd(socket: impl AsFd, pid: Option<u32>) -> Result<Option<OwnedFd>, Error> {
    let mut found: libc::c_int = -1;
    let mut length = mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the two pointers are to locals that live through the call, and `length` is the size
    // of the one it describes.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if answer == 0 && found >= 0 {
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(found) }));
    }
    match io::Error::last_os_error().raw_os_error() {
        // An older system: the number is believed.
        Some(libc::ENOPROTOOPT) => Ok(by_number(pid)),
        // Its number may be another's by now.
        Some(libc::ESRCH | libc::EINVAL) => Err(Error::Gone),
        _ => Ok(None),
    }
}

fn by_number(pid: Option<u32>) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid?).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Says whether packets may bring descriptors on this socket and on all that are accepted of it; if
/// not, the kernel refuses to send them. False: this kernel does not know of it.
pub(super) fn pass_descriptors(listener: impl AsFd, may: bool) -> bool {
    let may = libc::c_int::from(may);
    // SAFETY: the pointer is to a local that lives through the call, and the length is its size.
    let answer = unsafe {
        libc::setsockopt(
            listener.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const may).cast(),
            mem::size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    answer == 0
}
