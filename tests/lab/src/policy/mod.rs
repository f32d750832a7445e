//! Rules of other projects, for comparison: each decides on its own whether a job's next launch may
//! go to the device.
//!
//! They see more than they would in life (no lane, no lost message) and pay the hops that their
//! design pays. None of them is part of weft.
#![forbid(unsafe_code)]

mod count;
mod nvshare;
mod xsched;

pub use count::Count;
pub use nvshare::Nvshare;
pub use xsched::Xsched;

use crate::Ns;

/// What a policy sees of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobView {
    /// 0 (most important) to 9.
    pub priority: u8,
    /// Its work on the device, launches.
    pub outstanding: usize,
    /// A launch of it waits for permission.
    pub waits: bool,
    /// When it last launched or its work last ended.
    pub active_at: Ns,
}

/// A rule.
pub trait LabPolicy: std::fmt::Debug + Send {
    /// Whether the job's next launch may go now. Asked at the launch, and again after everything
    /// that happens while it waits.
    fn may_launch(&mut self, now: Ns, job: usize, jobs: &[JobView]) -> bool;

    /// Something changed: a launch went, work ended, somebody waits.
    fn changed(&mut self, _now: Ns, _job: usize, _jobs: &[JobView]) {}

    /// The time that [`LabPolicy::next_wake`] named has come.
    fn wake(&mut self, _now: Ns) {}

    /// When to ask again although nothing happened.
    fn next_wake(&self, _now: Ns) -> Option<Ns> {
        None
    }
}
