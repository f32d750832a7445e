// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policies: in which order jobs get GPUs. One short file each. It begins with the paper's symbols
//! and their counterparts here, and with the questions that the paper leaves open.
//!
//! The core asks for the order in each round ([the round](crate)). A policy sees jobs as the core
//! accounts for them: attained service, and steps seen at the driver. It never sees a job's own
//! reports, except for the expected run if it needs one.

mod astraea;
mod crux;
mod fifo;
mod gittins;
mod shortest_remaining;
mod tiresias;
mod weft;

use std::fmt::Debug;

use crate::Ns;
use crate::job::{JobId, JobMeasure, TenantId, WHOLE_GPU_MILLI, WorkerAsk};
use crate::links::{ClusterLinks, Flow, FlowRoute};
use crate::node::ClusterNode;

pub use astraea::AstraeaOrder;
pub use crux::CruxOrder;
pub use fifo::FifoOrder;
pub use gittins::GittinsOrder;
pub use shortest_remaining::ShortestRemaining;
pub use tiresias::TiresiasOrder;
pub use weft::{WeftOrder, most_gpus, patient};

/// A second.
pub(crate) const SECOND_NS: Ns = 1_000_000_000;

/// A job as a policy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankedJob {
    /// Its number.
    pub id: JobId,
    /// Its owner.
    pub tenant: TenantId,
    /// Total GPUs of the gang, thousandths.
    pub gpu_milli: u64,
    /// When it came, ns.
    pub arrived: Ns,
    /// Whether it runs now.
    pub running: bool,
    /// Length of its present run or wait, ns.
    pub lately: Ns,
    /// Total run time, ns.
    pub ran: Ns,
    /// Expected run time, ns.
    pub expected: Option<Ns>,
    /// Millionths of its work that are done.
    pub done_ppm: u32,
    /// Remaining run time by its progress so far, ns; none if no progress was seen.
    pub left: Option<Ns>,
    /// Measures of the job.
    pub measure: JobMeasure,
    /// Its workers.
    pub workers: u32,
    /// Number of nodes that it is on.
    pub nodes: u32,
    /// Whether it runs in a second seat.
    pub second: bool,
}

impl RankedJob {
    /// Attained service: GPUs times the time on them, GPU-ns. In a second seat time counts by the
    /// measured speed.
    pub fn service(&self) -> u128 {
        gpu_time(self, self.ran)
    }
}

/// Work of a job's GPUs in a time, GPU-ns.
fn gpu_time(job: &RankedJob, time: Ns) -> u128 {
    u128::from(time) * u128::from(job.gpu_milli) / u128::from(WHOLE_GPU_MILLI)
}

/// Position of a job in the order, the smallest first. Equal jobs go in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct OrderKey(pub u128, pub u128);

/// Rule for second seats: on which held GPUs they are, and for which jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharingRule {
    /// Load of a GPU above which it has no second seat, thousandths.
    pub most_host_milli: u32,
    /// Load that a GPU may reach with its guest, thousandths.
    pub most_load_milli: u32,
    /// Priority of the guest at the node's broker. None: that of its equals, and the device shares
    /// without weft's help.
    pub level: Option<u8>,
}

/// Rule for the order in which jobs get GPUs.
pub trait ClusterPolicy: Debug {
    /// Name in options and tables.
    fn name(&self) -> &'static str;

    /// Orders jobs as they get GPUs. If the policy does not preempt, `jobs` are only the waiting
    /// ones. They come sorted by number.
    fn order(&mut self, now: Ns, jobs: &[RankedJob]) -> Vec<JobId> {
        let mut keys: Vec<(OrderKey, Ns, JobId)> = jobs
            .iter()
            .map(|job| (self.key(now, job), job.arrived, job.id))
            .collect();
        keys.sort_unstable();
        keys.into_iter().map(|(.., id)| id).collect()
    }

    /// Whether it orders only by [`key`](ClusterPolicy::key). The key of a waiting job then stays
    /// as it is until [`shifted`](ClusterPolicy::shifted).
    fn keyed(&self) -> bool {
        false
    }

    /// Position of a job in the order.
    fn key(&mut self, _now: Ns, _job: &RankedJob) -> OrderKey {
        OrderKey::default()
    }

    /// Whether keys of waiting jobs have changed since the last call.
    fn shifted(&mut self) -> bool {
        false
    }

    /// Takes in the nodes' free resources, before the order is requested.
    fn see(&mut self, _nodes: &[ClusterNode]) {}

    /// Most nodes that a gang may be on; 0: it may not begin now.
    fn spread(&self, _now: Ns, _job: &RankedJob) -> u32 {
        u32::MAX
    }

    /// Whether a running gang is to move to fewer nodes, if that is possible. Asked at each look.
    fn moves(&self, _now: Ns, _job: &RankedJob) -> bool {
        false
    }

    /// Whether jobs are put on GPUs that others hold.
    fn sharing(&self) -> Option<SharingRule> {
        None
    }

    /// Difference in load for which a job moves to less busy GPUs of another second seat,
    /// thousandths. None: it stays. Asked at each look. If jobs move in this way, one that sends
    /// nothing takes the least busy seats wherever they are, and not those of few nodes.
    fn moves_seats(&self) -> Option<u32> {
        None
    }

    /// Whether this job may be in a second seat. A job that is in one and may not be is paused.
    fn seconds(&mut self, _job: &RankedJob) -> bool {
        true
    }

    /// Path and priority of each flow. By default the path is a hash of the job's number, as a
    /// switch chooses it, and all have one priority.
    fn routes(&mut self, flows: &[Flow], links: &ClusterLinks) -> Vec<(JobId, FlowRoute)> {
        crux::by_hash(flows, links)
    }

    /// Whether a running job makes room for one before it in the order.
    fn preempts(&self) -> bool {
        false
    }

    /// Whether no job passes a waiting one that does not fit.
    fn strict(&self) -> bool {
        false
    }

    /// Resources that a worker gets in place of its request.
    fn grant(&self, ask: WorkerAsk) -> WorkerAsk {
        ask
    }

    /// Priority that the node's broker is to give a job, 0 to 9.
    fn level(&self, _job: JobId) -> u8 {
        5
    }

    /// Whether the [`level`](ClusterPolicy::level) of a job changes while it runs.
    fn levels_move(&self) -> bool {
        false
    }

    /// Interval at which the policy must be asked if no event comes, ns.
    fn look_every(&self) -> Option<Ns> {
        None
    }

    /// Takes in that a job is gone, with its final account.
    fn ended(&mut self, _job: &RankedJob) {}
}

/// Policy of a name, with its published settings.
pub fn named(name: &str) -> Option<Box<dyn ClusterPolicy>> {
    Some(match name {
        "fifo" => Box::new(FifoOrder::strict()),
        "fifo-backfill" => Box::new(FifoOrder::passing()),
        "shortest-remaining" => Box::new(ShortestRemaining),
        "tiresias" => Box::new(TiresiasOrder::default()),
        "gittins" => Box::new(GittinsOrder::default()),
        "astraea" => Box::new(AstraeaOrder::default()),
        "crux" => Box::new(CruxOrder),
        "weft" => Box::new(WeftOrder::default()),
        "weft-exclusive" => Box::new(WeftOrder::new(false)),
        _ => return None,
    })
}

/// Names that [`named`] knows.
pub const NAMES: [&str; 9] = [
    "fifo",
    "fifo-backfill",
    "shortest-remaining",
    "tiresias",
    "gittins",
    "astraea",
    "crux",
    "weft",
    "weft-exclusive",
];
