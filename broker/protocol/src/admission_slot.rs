//! A client's place on the device: whether it may begin, and how much memory it may have.
//!
//! The broker writes [`AdmissionSlot`], the client reads it. While no broker is attached all of it
//! is zero, which means that nothing was said and nothing is forbidden. The client writes
//! [`Moves`].
#![forbid(unsafe_code)]

use super::Ns;
use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// What the broker said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AdmissionState {
    /// Nothing yet.
    Unknown = 0,
    /// The client waits.
    Waits = 1,
    /// It may begin.
    Admitted = 2,
    /// It can never begin.
    Refused = 3,
}

/// What the broker says of the memory of a job that is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Memory {
    /// It is the device's.
    Device = 1,
    /// It is managed.
    Managed = 2,
}

/// The words.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct AdmissionSlot {
    /// A [`AdmissionState`]. Whoever waits sleeps on it as a shared futex.
    pub state: AtomicU32,
    /// Counts the answers to what was asked for more; slept on in the same way.
    pub answers: AtomicU32,
    /// Bytes the client may have without its contexts; 0: nothing was said.
    pub quota: AtomicU64,
    /// What a job is told that sizes itself: it will get no more than this. 0: nothing.
    pub limit: AtomicU64,
    /// 1: the share was said beforehand (by a person or a profile), so the device is shown as being
    /// of that size.
    pub declared: AtomicU32,
    /// The place in the queue, 1 is next.
    pub position: AtomicU32,
    /// Moves while the broker keeps the queue.
    pub heartbeat: AtomicU64,
    /// Counts the looks at the device's free memory that told nothing, since others took or gave
    /// back memory meanwhile: the client is to look again.
    pub probe_requests: AtomicU32,
    /// 1: what was asked for more is not free, and the client waits for it.
    pub growing: AtomicU32,
    /// A [`Memory`], said before [`AdmissionSlot::state`] is [`AdmissionState::Admitted`]; 0:
    /// nothing.
    pub backing: AtomicU32,
}

impl AdmissionSlot {
    /// What was said. A word that is none of ours counts as nothing.
    pub fn state(&self) -> AdmissionState {
        match self.state.load(Ordering::Acquire) {
            1 => AdmissionState::Waits,
            2 => AdmissionState::Admitted,
            3 => AdmissionState::Refused,
            _ => AdmissionState::Unknown,
        }
    }

    /// Whether the memory of a client that is admitted is to be managed, if it left that open.
    pub fn is_managed(&self) -> bool {
        self.backing.load(Ordering::Acquire) == Memory::Managed as u32
    }
}

/// When what the client holds of device memory changed. A change begins before the driver is called
/// and ends when the lane's `memory` says what came of it, so whoever finds none under way knows
/// what the client holds in truth.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Moves {
    begun: AtomicU64,
    done: AtomicU64,
    last: AtomicU64,
}

impl Moves {
    /// So many changes have begun.
    pub fn begun(&self, count: u64) {
        self.begun.fetch_max(count, Ordering::AcqRel);
    }

    /// So many have ended, the last one then (`CLOCK_MONOTONIC`).
    pub fn done(&self, count: u64, at: Ns) {
        self.last.fetch_max(at, Ordering::AcqRel);
        self.done.fetch_max(count, Ordering::AcqRel);
    }

    /// How many changes have ended, if one is under way: the same number later is the same one,
    /// still under way.
    pub fn under_way(&self) -> Option<u64> {
        let done = self.done.load(Ordering::Acquire);
        (self.begun.load(Ordering::Acquire) != done).then_some(done)
    }

    /// Whether nothing changed since then. `None`: nothing ever did.
    pub fn still_since(&self, at: Ns) -> Option<bool> {
        let done = self.done.load(Ordering::Acquire);
        let last = self.last.load(Ordering::Acquire);
        let begun = self.begun.load(Ordering::Acquire);
        (begun > 0).then_some(begun == done && last <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_under_way_and_a_late_one_are_no_stillness() {
        let moves = Moves::default();
        assert_eq!(moves.still_since(100), None);
        moves.begun(1);
        assert_eq!(moves.still_since(100), Some(false));
        // Two at once, and the words come in another order.
        moves.begun(2);
        moves.done(1, 50);
        assert_eq!(moves.still_since(100), Some(false));
        moves.done(2, 40);
        assert_eq!(moves.still_since(100), Some(true));
        assert_eq!(moves.still_since(49), Some(false));
    }
}
