//! Host time that a rule adds to calls, beyond the driver's own time, ns.
//!
//! weft's values are measured (`scripts/bench launch`, in `docs/benchmarks.md` under "A launch").
//! The row of each figure is named. It is the newest one with the launch queue in it, from a slower
//! and busy machine. The quiet one before it had 35 in place of 51, and 64 in place of 83.
//!
//! Other rules have the times of their own programs on the simulated driver: nvshare's below,
//! XSched's in `QUEUED_CALL_NS` of the world's queue. There are no measurements of Orion, REEF and
//! Tally, so they add nothing. Rules that are no program (`count`, `one`) and the device's own add
//! nothing either. The time that XSched's worker adds to a launch is not in it: it was measured
//! while worker, job and other processes shared two cores.
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
pub const WEFT_FOREGROUND_NS: AddedCost = AddedCost { launch: 51, wait: 32 };

/// weft, a background job within its credit: +82.7 and +194.8. "with the launch queue, slower
/// machine ... background job within its credit", c4d8700.
pub const WEFT_BACKGROUND_NS: AddedCost = AddedCost { launch: 83, wait: 112 };

/// weft, a job without others: +15.0 and +16.3. "with the launch queue, slower machine: alone",
/// c4d8700.
pub const WEFT_ALONE_NS: AddedCost = AddedCost { launch: 15, wait: 1 };

/// nvshare while it has the lock: 2,718 instead of 2,064 per launch in bursts, 2,648 instead of
/// 2,090 with a wait after each. Its own library on the simulated driver whose launches take 2 us,
/// two cores.
pub const NVSHARE_NS: AddedCost = AddedCost { launch: 654, wait: 0 };
