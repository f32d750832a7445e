// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events that processes share: a small file that all of them have open counts an event's records,
//! and those that the device has passed.
//!
//! A wait covers the records that any process had made when the wait was made. The records of a
//! process that died count as passed: the device has dropped its work. The opener finds the file
//! through `/proc`, so it must run as the same user. It keeps the file open as long as it has the
//! event.
#![forbid(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use rustix::process::{Pid, test_kill_process};

use crate::abi::{Error, R};
use crate::fd;

/// The content of a `CUipcEventHandle`: a mark, process, file.
pub(crate) type Bytes = [u64; 8];

/// `CUipcEventHandle` as an argument: by value, which for this size is on the stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EventHandleArgument(pub(crate) Bytes);

const MARK: u64 = u64::from_le_bytes(*b"simcudae");

/// The words of the file.
const TOLD: u64 = 0;
const PASSED: u64 = 8;
const TELLER: u64 = 16;
const SIZE: u64 = 24;

/// One such event.
pub(crate) struct Shared(OwnedFd);

impl Shared {
    pub(crate) fn create() -> R<Shared> {
        let file = memfd_create("simcuda-event", MemfdFlags::CLOEXEC).map_err(|_| Error::OUT_OF_MEMORY)?;
        ftruncate(&file, SIZE).map_err(|_| Error::OUT_OF_MEMORY)?;
        Ok(Shared(file))
    }

    /// Another process's.
    pub(crate) fn open([mark, pid, file, ..]: Bytes) -> R<Shared> {
        let (Ok(pid), Ok(file)) = (u32::try_from(pid), i32::try_from(file)) else {
            return Err(Error::INVALID_VALUE);
        };
        if mark != MARK {
            return Err(Error::INVALID_VALUE);
        }
        fd::of_process(pid, file).map(Shared)
    }

    pub(crate) fn handle(&self) -> R<Bytes> {
        let file = u64::try_from(self.0.as_raw_fd()).map_err(|_| Error::UNKNOWN)?;
        Ok([MARK, std::process::id().into(), file, 0, 0, 0, 0, 0])
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        match pread(&self.0, &mut bytes, at) {
            Ok(8) => u64::from_ne_bytes(bytes),
            _ => 0,
        }
    }

    fn set(&self, at: u64, value: u64) {
        let _ = pwrite(&self.0, &value.to_ne_bytes(), at);
    }

    /// A record is on its way; its number.
    pub(crate) fn tell(&self) -> u64 {
        let number = self.told() + 1;
        self.set(TELLER, std::process::id().into());
        self.set(TOLD, number);
        number
    }

    /// The device has passed a record.
    pub(crate) fn pass(&self, number: u64) {
        if number > self.word(PASSED) {
            self.set(PASSED, number);
        }
    }

    /// The last record's number.
    pub(crate) fn told(&self) -> u64 {
        self.word(TOLD)
    }

    /// Whether the device has passed this one.
    pub(crate) fn has_passed(&self, number: u64) -> bool {
        if self.word(PASSED) >= number {
            return true;
        }
        let teller = i32::try_from(self.word(TELLER)).ok().and_then(Pid::from_raw);
        teller.is_none_or(|teller| test_kill_process(teller) == Err(rustix::io::Errno::SRCH))
    }
}
