//! Rules of other projects, for comparison: each decides by itself whether a job's next launch may
//! go to the device.
//!
//! They see more than they would on a real machine (no lane, no lost message) and pay the hops of
//! their design. None of them is part of weft.
#![forbid(unsafe_code)]

mod count;
mod nvshare;
mod orion;
mod reef;
mod tally;
mod xsched;

pub use count::Count;
pub use nvshare::Nvshare;
pub use orion::Orion;
pub use reef::Reef;
pub use tally::TallyPriority;
pub use xsched::Xsched;
