// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules of other projects, for comparison: each decides by itself whether a job's next launch may
//! go to the device.
//!
//! They see more than they would on a real machine (no lane, no lost message) and pay the hops of
//! their design. None of them is part of weft.
//!
//! Each adds to calls the time of its own program on the simulated driver: nvshare's is in its
//! module, XSched's in the player's queue. There are no measurements of Orion, REEF and Tally, so
//! they add nothing. `count` and `one` are no programs and add nothing either. The time that
//! XSched's worker adds to a launch is not in it: it was measured while worker, job and other
//! processes shared two cores.
#![forbid(unsafe_code)]

mod count;
mod exclusive;
mod nvshare;
mod orion;
mod reef;
mod tally;
mod timeslice;
mod xsched;

pub use count::Count;
pub use exclusive::ExclusivePriority;
pub use nvshare::Nvshare;
pub use orion::Orion;
pub use reef::Reef;
pub use tally::TallyPriority;
pub use timeslice::Timeslice;
pub use xsched::Xsched;
