// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission slot: whether a client may begin, and how much memory it may have.
//!
//! The broker writes [`AdmissionSlot`], the client writes [`ChangeCounts`]. All zero: the broker
//! has set nothing, so nothing is forbidden.
#![forbid(unsafe_code)]

use super::Ns;
use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// Default for the longest wait of a running job for more memory.
///
/// The job waits inside an allocation, often under the allocator's lock and Python's. Its health
/// checks wait too. They come about every 10 s, and the third failure kills the job.
pub const DEFAULT_PATIENCE_NS: Ns = 10_000_000_000;

/// The broker's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AdmissionState {
    /// None yet.
    Unknown = 0,
    /// The client must wait.
    Waits = 1,
    /// The client may begin.
    Admitted = 2,
    /// The client can never begin.
    Refused = 3,
}

/// Memory of an admitted job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SlotBacking {
    /// Device memory.
    Device = 1,
    /// Managed memory.
    Managed = 2,
}

/// The broker's words for one client.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct AdmissionSlot {
    /// An [`AdmissionState`], a shared futex for the waiting client.
    pub state: AtomicU32,
    /// Counts answers to requests for more bytes; a shared futex too.
    pub answers: AtomicU32,
    /// Bytes that the client may have, without contexts; 0: not set.
    pub quota: AtomicU64,
    /// Most bytes that a job that sizes itself ever gets; 0: not set.
    pub limit: AtomicU64,
    /// 1: the need was declared; the device is shown as that large.
    pub declared: AtomicU32,
    /// Place in the queue; 1 is next.
    pub position: AtomicU32,
    /// Moves while the broker keeps the queue.
    pub heartbeat: AtomicU64,
    /// Counts probes to repeat: other clients took or freed memory meanwhile.
    pub probe_requests: AtomicU32,
    /// 1: the requested bytes are not free; the client waits.
    pub growing: AtomicU32,
    /// A [`SlotBacking`], set before [`AdmissionState::Admitted`]; 0: not set.
    pub backing: AtomicU32,
}

impl AdmissionSlot {
    /// The broker's answer; unknown words count as none.
    pub fn state(&self) -> AdmissionState {
        match self.state.load(Ordering::Acquire) {
            1 => AdmissionState::Waits,
            2 => AdmissionState::Admitted,
            3 => AdmissionState::Refused,
            _ => AdmissionState::Unknown,
        }
    }

    /// Whether an admitted client with auto backing is to be managed.
    pub fn is_managed(&self) -> bool {
        self.backing.load(Ordering::Acquire) == SlotBacking::Managed as u32
    }
}

/// Changes of the client's device memory. A change begins before the driver's call and ends once
/// the lane's `memory` has the result. Between changes `memory` is exact.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ChangeCounts {
    begun: AtomicU64,
    done: AtomicU64,
    last: AtomicU64,
}

impl ChangeCounts {
    /// Notes that `count` changes have begun.
    pub fn begun(&self, count: u64) {
        self.begun.fetch_max(count, Ordering::AcqRel);
    }

    /// Notes the end of `count` changes, the last at `at` (`CLOCK_MONOTONIC`).
    pub fn done(&self, count: u64, at: Ns) {
        self.last.fetch_max(at, Ordering::AcqRel);
        self.done.fetch_max(count, Ordering::AcqRel);
    }

    /// Number of ended changes, if a change is under way. An equal number later means the same
    /// change.
    pub fn under_way(&self) -> Option<u64> {
        let done = self.done.load(Ordering::Acquire);
        (self.begun.load(Ordering::Acquire) != done).then_some(done)
    }

    /// Number of ended changes; `None`: a change is under way.
    pub fn ended(&self) -> Option<u64> {
        let done = self.done.load(Ordering::Acquire);
        (self.begun.load(Ordering::Acquire) == done).then_some(done)
    }

    /// Whether nothing changed since `at`; `None`: nothing ever did.
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
        let moves = ChangeCounts::default();
        assert_eq!(moves.still_since(100), None);
        moves.begun(1);
        assert_eq!(moves.still_since(100), Some(false));
        // Two at once, reported out of order.
        moves.begun(2);
        moves.done(1, 50);
        assert_eq!(moves.still_since(100), Some(false));
        moves.done(2, 40);
        assert_eq!(moves.still_since(100), Some(true));
        assert_eq!(moves.still_since(49), Some(false));
    }
}
