// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker's doorbell: an eventfd that came with the lane.
//!
//! A job may close descriptors that it did not open, and its next file may reuse the number. So the
//! descriptor's identity is checked before each write. A changed descriptor is never used again.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fs::fstat;

const NONE: RawFd = -1;

#[derive(Debug)]
pub struct Bell {
    descriptor: AtomicI32,
    identity: AtomicU64,
}

impl Default for Bell {
    fn default() -> Bell {
        Bell {
            descriptor: AtomicI32::new(NONE),
            identity: AtomicU64::new(0),
        }
    }
}

/// Identity of an open file, mixed into a word.
fn identity(descriptor: BorrowedFd<'_>) -> Option<u64> {
    let facts = fstat(descriptor).ok()?;
    Some(facts.st_ino ^ facts.st_dev.rotate_left(32) ^ u64::from(facts.st_mode).rotate_left(17))
}

impl Bell {
    fn borrow(&self) -> Option<BorrowedFd<'static>> {
        let descriptor = self.descriptor.load(Ordering::Acquire);
        if descriptor == NONE {
            return None;
        }
        // SAFETY: not -1. `ring` checks that it is open and ours: fstat fails on a closed one, a
        // reused one has another identity.
        Some(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    /// Installs a doorbell. An old descriptor number is redirected, so a concurrent ring reaches
    /// either.
    pub fn hang(&self, new: OwnedFd) {
        let identity = identity(std::os::fd::AsFd::as_fd(&new)).unwrap_or(0);
        let old = self.descriptor.load(Ordering::Acquire);
        let intact = self.borrow().and_then(self::identity) == Some(self.identity.load(Ordering::Acquire));
        if old != NONE && intact {
            // SAFETY: both numbers are open descriptors of weft; dup3 replaces in one step.
            let replaced = unsafe { libc::dup3(new.as_raw_fd(), old, libc::O_CLOEXEC) };
            if replaced == old {
                self.identity.store(identity, Ordering::Release);
                return;
            }
        }
        self.identity.store(identity, Ordering::Release);
        self.descriptor.store(new.into_raw_fd(), Ordering::Release);
    }

    /// Rings. Never waits: the eventfd is non-blocking.
    pub fn ring(&self) {
        let Some(bell) = self.borrow() else { return };
        if identity(bell) != Some(self.identity.load(Ordering::Acquire)) {
            self.descriptor.store(NONE, Ordering::Release);
            return;
        }
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Read;

    fn count(bell: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        match rustix::io::read(bell, &mut bytes) {
            Ok(8) => u64::from_ne_bytes(bytes),
            _ => 0,
        }
    }

    fn new_bell() -> OwnedFd {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an eventfd")
    }

    #[test]
    fn the_newest_bell_rings() {
        let bell = Bell::default();
        bell.ring();
        let (first, second) = (new_bell(), new_bell());
        bell.hang(first.try_clone().expect("dup"));
        bell.ring();
        bell.ring();
        assert_eq!(count(&first), 2);
        bell.hang(second.try_clone().expect("dup"));
        bell.ring();
        assert_eq!((count(&first), count(&second)), (0, 1));
    }

    #[test]
    fn a_file_that_took_the_bells_number_is_left_alone() {
        let bell = Bell::default();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        bell.hang(new_bell());
        let number = bell.descriptor.load(Ordering::Relaxed);
        // As a job that closes everything and opens a file, in one step.
        // SAFETY: both numbers are open; the test closes one of the writer's two.
        assert_eq!(unsafe { libc::dup2(writer.as_raw_fd(), number) }, number);
        bell.ring();
        bell.ring();
        drop(writer);
        rustix::io::ioctl_fionbio(&reader, true).expect("not blocking");
        let mut reader = reader;
        assert!(reader.read(&mut [0; 8]).is_err(), "nothing was written");
    }
}
