// SPDX-License-Identifier: MIT OR Apache-2.0
//! File descriptors that a client names by number.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use crate::abi::{Error, R};

/// A copy of the client's descriptor, ours to keep.
pub(crate) fn copy_of(number: i32) -> R<OwnedFd> {
    if number < 0 {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: borrowed for the one call below only, which fails for a number that is not open.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(|_| Error::INVALID_VALUE)
}

/// The file that another process of this user has open under a number.
pub(crate) fn of_process(pid: u32, number: i32) -> R<OwnedFd> {
    let path = PathBuf::from(format!("/proc/{pid}/fd/{number}"));
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map(OwnedFd::from)
        .map_err(|_| Error::INVALID_VALUE)
}
