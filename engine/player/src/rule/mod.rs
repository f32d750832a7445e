// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules in the place of weft's gate: each decides by itself whether a job's next launch may go to
//! the device.
//!
//! A caller plugs one in with [`crate::LaunchControl::Own`]. A rule sees more than it would on a
//! real machine (no lane, no lost message), and pays the hops of its design.
#![forbid(unsafe_code)]

mod launch;
mod priority;

pub use launch::{KernelClass, KernelNeeds, KernelPieces, LaunchView};
pub use priority::MpsPriority;

pub use crate::cost::AddedCost;

use crate::Ns;

/// A rule's view of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobView {
    /// 0 (most important) to 9.
    pub priority: u8,
    /// Number of its launches on the device.
    pub outstanding: usize,
    /// The number of those that are no copies.
    pub kernels: usize,
    /// Number of calls that its host made and that its queue still holds.
    pub queued: usize,
    /// Whether one of its launches waits for permission.
    pub waits: bool,
    /// Time of its last launch or of the last end of its work.
    pub active_at: Ns,
    /// Whether a request of it has come and is not answered.
    pub in_request: bool,
    /// Approximate time of a request in a solo run, ns.
    pub request_time: Ns,
    /// The launch that asks for permission, if there is one.
    pub next: LaunchView,
    /// The last launch that went.
    pub last: LaunchView,
}

impl JobView {
    /// Whether no job is more important.
    pub fn is_foreground(&self, jobs: &[JobView]) -> bool {
        jobs.iter().all(|view| view.priority >= self.priority)
    }
}

/// The hosts that may leave calls behind before these may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostQueue {
    /// No hosts: each waits with its first launch that may not go.
    None,
    /// Hosts of background jobs: they leave kernels behind, from the first that may not go, up to
    /// [`crate::Hosts::queue`]. It is weft's launch queue, which bounds their predicted work
    /// too; rules without kernel times cannot.
    #[default]
    Background,
    /// All hosts: they always leave all calls behind that need not block, without a bound:
    /// XSched's.
    All {
        /// A foreground job's call takes 1 us of its host instead of the launch's time: another
        /// core makes the launch.
        spares_launches: bool,
    },
}

/// A rule.
pub trait PlayedRule: std::fmt::Debug + Send {
    /// Whether the job's next launch may go now. Called at the launch, and again after every event
    /// while it waits.
    fn may_launch(&mut self, now: Ns, job: usize, jobs: &[JobView]) -> bool;

    /// A change happened: a launch went, work ended, a job waits.
    fn changed(&mut self, _now: Ns, _job: usize, _jobs: &[JobView]) {}

    /// A launch of the job went to the device. It is in [`JobView::outstanding`] already.
    fn launched(&mut self, now: Ns, job: usize, jobs: &[JobView]) {
        self.changed(now, job, jobs);
    }

    /// The hosts that may leave calls behind that may not go yet. By default it is as in weft:
    /// background jobs.
    fn host_queue(&self) -> HostQueue {
        HostQueue::Background
    }

    /// Time that it adds to calls.
    fn added(&self) -> AddedCost {
        AddedCost::default()
    }

    /// Whether the device begins with the kernels of the most important job that has some.
    fn device_priorities(&self) -> bool {
        false
    }

    /// The pieces of [`JobView::next`], if it was rewritten so that it can be stopped.
    fn pieces(&self, _job: usize, _jobs: &[JobView]) -> Option<KernelPieces> {
        None
    }

    /// Whether a rewritten kernel may continue with its next piece. Called at the end of each
    /// piece, and after every event while it is stopped.
    fn may_go_on(&self, _job: usize, _jobs: &[JobView]) -> bool {
        true
    }

    /// Called at the time that [`PlayedRule::next_wake`] returned.
    fn wake(&mut self, _now: Ns) {}

    /// The time at which to ask again even if nothing happened.
    fn next_wake(&self, _now: Ns) -> Option<Ns> {
        None
    }
}
