//! Rules of other projects, for comparison: each decides on its own whether a job's next launch may
//! go to the device.
//!
//! They see more than they would in life (no lane, no lost message) and pay the hops that their
//! design pays. None of them is part of weft.
#![forbid(unsafe_code)]

mod count;
mod launch;
mod nvshare;
mod orion;
mod priority;
mod reef;
mod tally;
mod xsched;

pub use count::Count;
pub use launch::{KernelClass, KernelNeeds, KernelPieces, LaunchView};
pub use nvshare::Nvshare;
pub use orion::Orion;
pub use priority::MpsPriority;
pub use reef::Reef;
pub use tally::TallyPriority;
pub use xsched::Xsched;

use crate::Ns;
use crate::cost::AddedCost;

/// What a policy sees of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobView {
    /// 0 (most important) to 9.
    pub priority: u8,
    /// Its work on the device, launches.
    pub outstanding: usize,
    /// Of them, those that are no copies.
    pub kernels: usize,
    /// Calls that its host made and that its queue still holds.
    pub queued: usize,
    /// A launch of it waits for permission.
    pub waits: bool,
    /// When it last launched or its work last ended.
    pub active_at: Ns,
    /// A request of it has come and is not answered.
    pub in_request: bool,
    /// What a request takes alone, about, ns.
    pub request_time: Ns,
    /// The launch that is asked for, where one is.
    pub next: LaunchView,
    /// The launch that went last.
    pub last: LaunchView,
}

impl JobView {
    /// Whether nobody is more important.
    pub fn is_foreground(&self, jobs: &[JobView]) -> bool {
        jobs.iter().all(|view| view.priority >= self.priority)
    }
}

/// Which hosts may leave calls behind before these may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostQueue {
    /// Nobody's: a host waits with its first launch that may not go.
    None,
    /// Those of background jobs: kernels from the first that may not go on, as many as
    /// `Hosts::queue` of the world says. It is weft's launch queue, which bounds their predicted
    /// work too; rules that know no kernel times cannot.
    #[default]
    Background,
    /// Everybody's, all calls that need not block, always, without a bound: XSched's.
    All {
        /// A foreground job's call takes 1 us of its host, and not what the launch takes: another
        /// core makes that.
        spares_launches: bool,
    },
}

/// A rule.
pub trait LabPolicy: std::fmt::Debug + Send {
    /// Whether the job's next launch may go now. Asked at the launch, and again after everything
    /// that happens while it waits.
    fn may_launch(&mut self, now: Ns, job: usize, jobs: &[JobView]) -> bool;

    /// Something changed: a launch went, work ended, somebody waits.
    fn changed(&mut self, _now: Ns, _job: usize, _jobs: &[JobView]) {}

    /// A launch of the job went to the device. It is in [`JobView::outstanding`] already.
    fn launched(&mut self, now: Ns, job: usize, jobs: &[JobView]) {
        self.changed(now, job, jobs);
    }

    /// Which hosts may leave calls behind that may not go yet. A rule that is silent on it gets
    /// what weft gives to background jobs.
    fn host_queue(&self) -> HostQueue {
        HostQueue::Background
    }

    /// What it adds to calls.
    fn added(&self) -> AddedCost {
        AddedCost::default()
    }

    /// Whether the device begins with the kernels of the most important job that has some.
    fn device_priorities(&self) -> bool {
        false
    }

    /// Whether [`JobView::next`] was rewritten so that it can be stopped; if so, how it runs.
    fn pieces(&self, _job: usize, _jobs: &[JobView]) -> Option<KernelPieces> {
        None
    }

    /// Whether a rewritten kernel may go on to its next piece. Asked at the end of each, and after
    /// everything that happens while it is stopped.
    fn may_go_on(&self, _job: usize, _jobs: &[JobView]) -> bool {
        true
    }

    /// The time that [`LabPolicy::next_wake`] named has come.
    fn wake(&mut self, _now: Ns) {}

    /// When to ask again although nothing happened.
    fn next_wake(&self, _now: Ns) -> Option<Ns> {
        None
    }
}
