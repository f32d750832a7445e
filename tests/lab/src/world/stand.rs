//! Where each job's next launch stands, as that changes. `crate::why` reads it.
#![forbid(unsafe_code)]

use crate::Ns;

/// Why a waiting launch gets no credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldReason {
    /// With what is out it would exceed the delay bound.
    Bound,
    /// The foreground job is believed to have work.
    Busy,
    /// The foreground job's work should have ended, but no call said so.
    Unseen,
    /// The end is known; the gap counts as too short or about to end.
    Short,
    /// A rule of the lab's own says so.
    Rule,
}

/// Where a job's next launch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// There is none: the host works, or waits for the device.
    Away,
    /// At the gate, not yet heard of.
    Asks,
    /// Heard and held back.
    Held(HeldReason),
    /// Given credit, which it is about to see.
    Granted,
}

/// A job's stand from a time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandChange {
    /// Time of the change, ns.
    pub at: Ns,
    /// The new stand.
    pub stand: Stand,
    /// Device time of the launch, ns.
    pub time: Ns,
}
