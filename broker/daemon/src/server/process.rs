// SPDX-License-Identifier: MIT OR Apache-2.0
//! Socket options that only the broker uses: a caller's pidfd, and permission to send descriptors.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use weft_protocol::transport::TransportError;

/// Socket option (Linux 6.5): pidfd of the process that connected, even if its number was reused.
/// Not in `libc` yet.
const SO_PEERPIDFD: libc::c_int = 77;

/// Socket option (Linux 6.16): whether packets may bring descriptors. Not in `libc` yet.
const SO_PASSRIGHTS: libc::c_int = 83;

/// A descriptor that becomes readable at the connected process's end. `None`: the system has no
/// such descriptors. [`TransportError::Gone`]: the process has ended.
pub(super) fn pidfd(socket: impl AsFd, pid: Option<u32>) -> Result<Option<OwnedFd>, TransportError> {
    let mut found: libc::c_int = -1;
    let mut length = mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both pointers are to locals that outlive the call; `length` is the size of `found`.
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
        // SAFETY: the kernel just made this descriptor for us; nothing else owns it.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(found) }));
    }
    match io::Error::last_os_error().raw_os_error() {
        // On an older system the process id is trusted.
        Some(libc::ENOPROTOOPT) => Ok(by_number(pid)),
        // The process id may be reused by now.
        Some(libc::ESRCH | libc::EINVAL) => Err(TransportError::Gone),
        _ => Ok(None),
    }
}

fn by_number(pid: Option<u32>) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid?).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Sets whether this socket and those accepted from it take packets with descriptors. Returns false
/// if the kernel lacks the option.
pub(super) fn pass_descriptors(listener: impl AsFd, may: bool) -> bool {
    let may = libc::c_int::from(may);
    // SAFETY: the pointer is to a local that outlives the call, and the length is its size.
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
