//! What a rule's calls take of their hosts beyond the driver's own time, ns.
//!
//! weft's are measured (`scripts/bench launch`, in `docs/benchmarks.md` under "A launch"). Of each
//! figure the row is named. It is the newest one that has the launch queue in it, of a slower and
//! busy machine: the quiet one before it had 35 in place of 51, and 64 in place of 83.
//!
//! Others' rules carry what their own programs were measured to take on the simulated driver:
//! nvshare's below, XSched's in `QUEUED_CALL_NS` of the world's queue. Nothing is known of Orion,
//! REEF and Tally, so they carry nothing. Nor do rules that are no program (`count`, `one`) and the
//! device's own. What XSched's worker adds to a launch is not in it either: it was measured where
//! worker and job had two cores between them and others.
#![forbid(unsafe_code)]

use crate::Ns;

/// What is added to calls.
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

/// weft, a job that shares with nobody: +15.0 and +16.3. "with the launch queue, slower machine:
/// alone", c4d8700.
pub const WEFT_ALONE_NS: AddedCost = AddedCost { launch: 15, wait: 1 };

/// nvshare while it has the lock: 2,718 for 2,064 a launch in bursts, 2,648 for 2,090 with a wait
/// after each. Its own library on the simulated driver whose launches take 2 us, two cores.
pub const NVSHARE_NS: AddedCost = AddedCost { launch: 654, wait: 0 };
