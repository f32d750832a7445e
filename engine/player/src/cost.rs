// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host time that a rule adds to calls, beyond the driver's own time, ns.
//!
//! weft's values are measured (`scripts/bench launch`, in `docs/benchmarks.md` under "A launch").
//! The row of each figure is named. It is the newest one with the launch queue in it, from a slower
//! and busy machine. The quiet one before it had 35 in place of 51, and 64 in place of 83.
//!
//! A rule of the caller's own names its time itself ([`crate::rule::PlayedRule::added`]), except
//! for a queue of all calls: `QUEUED_CALL_NS` of the world's queue. The device's own sharing adds
//! nothing.
#![forbid(unsafe_code)]

use crate::Ns;

/// Time added to calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddedCost {
    /// To a launch or copy, ns.
    pub launch: Ns,
    /// To a call that waits for the device, ns.
    pub wait: Ns,
}

/// weft, a foreground job while a background job waits: +51.4 a launch in a burst, +83.3 with a
/// wait after each. "with the launch queue, slower machine ... foreground job", c4d8700.
pub(crate) const WEFT_FOREGROUND_NS: AddedCost = AddedCost { launch: 51, wait: 32 };

/// weft, a background job within its credit: +82.7 and +194.8. "with the launch queue, slower
/// machine ... background job within its credit", c4d8700.
pub(crate) const WEFT_BACKGROUND_NS: AddedCost = AddedCost { launch: 83, wait: 112 };

/// weft, a job without others: +15.0 and +16.3. "with the launch queue, slower machine: alone",
/// c4d8700.
pub(crate) const WEFT_ALONE_NS: AddedCost = AddedCost { launch: 15, wait: 1 };
