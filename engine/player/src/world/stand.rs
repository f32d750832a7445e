// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of each job's next launch over time. `crate::why` reads it.
#![forbid(unsafe_code)]

use crate::Ns;

/// Why a waiting launch gets no credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldReason {
    /// With the work on its way and on the device it would exceed the delay bound.
    Bound,
    /// The foreground job is believed to have work.
    Busy,
    /// The foreground job's work should have ended, but no call has reported it.
    Unseen,
    /// The end is known; the gap counts as too short or about to end.
    Short,
    /// A rule of the caller's own holds it back.
    Rule,
}

/// The state of a job's next launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stand {
    /// There is no next launch: the host works, or waits for the device.
    Away,
    /// At the gate; the broker does not know of it yet.
    Asks,
    /// The broker knows of it and holds it back.
    Held(HeldReason),
    /// It has credit, which it is about to see.
    Granted,
}

/// The state of a job's next launch from a time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandChange {
    /// Time of the change, ns.
    pub at: Ns,
    /// The new state.
    pub stand: Stand,
    /// Device time of the launch, ns.
    pub time: Ns,
}
