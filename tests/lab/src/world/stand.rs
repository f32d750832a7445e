//! How each job stands between wanting to launch and having launched, written down as it changes.
//! `crate::why` reads it.
#![forbid(unsafe_code)]

use crate::Ns;

/// Why the broker, or a rule of the lab's own, gives no credit to one who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldReason {
    /// What is out and this together are beyond the delay bound.
    Bound,
    /// The foreground job is believed to be at work.
    Busy,
    /// The foreground job's work should have ended, but no call of it has told.
    Unseen,
    /// The end was told: the gap counts as too short, or as about to end.
    Short,
    /// The rule says so (rules of the lab's own).
    Rule,
}

/// Where a job's next launch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// It wants to launch nothing: its host works, or waits for the device.
    Away,
    /// At the gate, and whoever decides has not heard of it.
    Asks,
    /// Heard and held back.
    Held(HeldReason),
    /// It has the credit and is about to see it.
    Granted,
}

/// A job's stand from a time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandChange {
    /// Since when.
    pub at: Ns,
    /// How it stands.
    pub stand: Stand,
    /// Device time of what it wants to launch.
    pub time: Ns,
}
