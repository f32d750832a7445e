//! A client's place on the device: whether it may begin, and how much memory it may have.
//!
//! The broker writes, the client reads. While no broker is attached all of it is zero, which means that nothing was said and nothing is forbidden.
#![forbid(unsafe_code)]

use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// What the broker said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Standing {
    /// Nothing yet.
    Unknown = 0,
    /// The client waits.
    Waits = 1,
    /// It may begin.
    Admitted = 2,
    /// It can never begin.
    Refused = 3,
}

/// The words.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Seat {
    /// A [`Standing`]. Whoever waits sleeps on it as a shared futex.
    pub standing: AtomicU32,
    /// Counts the answers to what was asked for more; slept on in the same way.
    pub answers: AtomicU32,
    /// Bytes the client may have without its contexts; 0: nothing was said.
    pub share: AtomicU64,
    /// What a job is told that sizes itself: it will get no more than this. 0: nothing.
    pub ceiling: AtomicU64,
    /// 1: the share was said beforehand (by a person or a profile), so the device is shown as being of that size.
    pub stated: AtomicU32,
    /// The place in the queue, 1 is next.
    pub position: AtomicU32,
    /// Moves while the broker keeps the queue.
    pub beat: AtomicU64,
}

impl Seat {
    /// What was said. A word that is none of ours counts as nothing.
    pub fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Acquire) {
            1 => Standing::Waits,
            2 => Standing::Admitted,
            3 => Standing::Refused,
            _ => Standing::Unknown,
        }
    }
}
