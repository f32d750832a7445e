//! Policies: in which order jobs get GPUs. One short file each, which opens with what the paper's
//! symbols are here, and with what the paper leaves open.
//!
//! The core asks for the order in each round ([the round](crate)). A policy sees jobs as they are
//! accounted for by the core: service that was attained, steps that were seen at the driver. It
//! never sees what a job says of itself, but for the expected run where it needs one.

mod astraea;
mod crux;
mod elas;
mod exclusive;
mod fifo;
mod gandiva;
mod gittins;
pub mod inss;
pub mod inss_network;
mod sched2;
mod sched2_network;
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
pub use elas::ElasOrder;
pub use exclusive::ExclusiveOrder;
pub use fifo::FifoOrder;
pub use gandiva::GandivaOrder;
pub use gittins::GittinsOrder;
pub use sched2::Sched2Order;
pub use sched2_network::Sched2Network;
pub use shortest_remaining::ShortestRemaining;
pub use tiresias::TiresiasOrder;
pub use weft::WeftOrder;

/// A second.
pub(crate) const SECOND_NS: Ns = 1_000_000_000;

/// A job as a policy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankedJob {
    /// Its number.
    pub id: JobId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What the gang takes in all, thousandths of GPUs.
    pub gpu_milli: u64,
    /// When it came, ns.
    pub arrived: Ns,
    /// It runs now.
    pub running: bool,
    /// How long it has run, or waited, since that began, ns.
    pub lately: Ns,
    /// How long it ran in all, ns.
    pub ran: Ns,
    /// How long it was expected to run, ns.
    pub expected: Option<Ns>,
    /// Millionths of its work that are done.
    pub done_ppm: u32,
    /// How long it runs on, as its progress so far tells, ns; none where no progress was seen.
    pub left: Option<Ns>,
    /// What was measured of it.
    pub measure: JobMeasure,
    /// Its workers.
    pub workers: u32,
    /// The nodes that it is on.
    pub nodes: u32,
    /// It runs in a second seat.
    pub second: bool,
}

impl RankedJob {
    /// Attained service: GPUs times the time on them, GPU-ns. In a second seat time counts by the
    /// speed that was measured.
    pub fn service(&self) -> u128 {
        gpu_time(self, self.ran)
    }
}

/// What a job's GPUs do in a time, GPU-ns.
fn gpu_time(job: &RankedJob, time: Ns) -> u128 {
    u128::from(time) * u128::from(job.gpu_milli) / u128::from(WHOLE_GPU_MILLI)
}

/// Where a job stands in the order, the smallest first. Of equal ones it is the job that came
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct OrderKey(pub u128, pub u128);

/// Which GPUs that others hold have a second seat, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharingRule {
    /// Not those that are busier than this, thousandths.
    pub most_host_milli: u32,
    /// Nor those that would be with one more.
    pub most_load_milli: u32,
    /// The priority at the node's broker of who is in it; none: that of its equals, and the device
    /// shares as it does by itself.
    pub level: Option<u8>,
}

/// In which order jobs get GPUs.
pub trait ClusterPolicy: Debug {
    /// What it is called in options and tables.
    fn name(&self) -> &'static str;

    /// The jobs in the order in which they get GPUs. Where the policy does not preempt, only those
    /// that wait are handed in. They come sorted by number.
    fn order(&mut self, now: Ns, jobs: &[RankedJob]) -> Vec<JobId> {
        let mut keys: Vec<(OrderKey, Ns, JobId)> = jobs
            .iter()
            .map(|job| (self.key(now, job), job.arrived, job.id))
            .collect();
        keys.sort_unstable();
        keys.into_iter().map(|(.., id)| id).collect()
    }

    /// It orders by [`key`](ClusterPolicy::key) alone. The key of a job that waits then stays as
    /// it is until [`shifted`](ClusterPolicy::shifted).
    fn keyed(&self) -> bool {
        false
    }

    /// Where a job stands.
    fn key(&mut self, _now: Ns, _job: &RankedJob) -> OrderKey {
        OrderKey::default()
    }

    /// Keys of jobs that wait have changed since this was last asked.
    fn shifted(&mut self) -> bool {
        false
    }

    /// What is free of the nodes, before the order is asked for.
    fn see(&mut self, _nodes: &[ClusterNode]) {}

    /// The most nodes that a gang is to be on; 0: it is not to begin now.
    fn spread(&self, _now: Ns, _job: &RankedJob) -> u32 {
        u32::MAX
    }

    /// Whether a running gang is to move where that puts it on fewer nodes. Asked at each look.
    fn moves(&self, _now: Ns, _job: &RankedJob) -> bool {
        false
    }

    /// Whether jobs are put on GPUs that others hold.
    fn sharing(&self) -> Option<SharingRule> {
        None
    }

    /// By how many thousandths the GPUs of another second seat are to be less busy for a job to
    /// move there; none: it stays. Asked at each look. Where jobs move so, one that sends nothing
    /// takes the least busy seats wherever they are, and not those of few nodes.
    fn moves_seats(&self) -> Option<u32> {
        None
    }

    /// Whether this job may be in a second seat. One that is in it and may not is paused.
    fn seconds(&mut self, _job: &RankedJob) -> bool {
        true
    }

    /// Path and priority of each flow. The path is else drawn by the job's number, as a switch does
    /// by its hash, and all have one priority.
    fn routes(&mut self, flows: &[Flow], links: &ClusterLinks) -> Vec<(JobId, FlowRoute)> {
        crux::by_hash(flows, links)
    }

    /// A running job makes room for one before it in the order.
    fn preempts(&self) -> bool {
        false
    }

    /// No job passes one that waits and does not fit.
    fn strict(&self) -> bool {
        false
    }

    /// What a worker is given in place of what it asked for.
    fn grant(&self, ask: WorkerAsk) -> WorkerAsk {
        ask
    }

    /// The priority that the node's broker is to give a job, 0 to 9.
    fn level(&self, _job: JobId) -> u8 {
        5
    }

    /// [`level`](ClusterPolicy::level) of a job changes while it runs.
    fn levels_move(&self) -> bool {
        false
    }

    /// How often it wants to be asked where nothing else happens, ns.
    fn look_every(&self) -> Option<Ns> {
        None
    }

    /// A job is gone, with this account.
    fn ended(&mut self, _job: &RankedJob) {}
}

/// The policy of a name, with its published settings.
pub fn named(name: &str) -> Option<Box<dyn ClusterPolicy>> {
    Some(match name {
        "fifo" => Box::new(FifoOrder::strict()),
        "fifo-backfill" => Box::new(FifoOrder::passing()),
        "shortest-remaining" => Box::new(ShortestRemaining),
        "exclusive" => Box::new(ExclusiveOrder),
        "tiresias" => Box::new(TiresiasOrder::default()),
        "gittins" => Box::new(GittinsOrder::default()),
        "elas" => Box::new(ElasOrder),
        "astraea" => Box::new(AstraeaOrder::default()),
        "gandiva" => Box::new(GandivaOrder::default()),
        "crux" => Box::new(CruxOrder),
        "sched2" => Box::new(Sched2Order::default()),
        "sched2-net" => Box::new(Sched2Network::shipped(false).ok()?),
        "sched2-net-told" => Box::new(Sched2Network::shipped(true).ok()?),
        "weft" => Box::new(WeftOrder::default()),
        "weft-exclusive" => Box::new(WeftOrder::new(false)),
        _ => return None,
    })
}

/// What [`named`] knows.
pub const NAMES: [&str; 15] = [
    "fifo",
    "fifo-backfill",
    "shortest-remaining",
    "exclusive",
    "tiresias",
    "gittins",
    "elas",
    "astraea",
    "gandiva",
    "crux",
    "sched2",
    "sched2-net",
    "sched2-net-told",
    "weft",
    "weft-exclusive",
];
