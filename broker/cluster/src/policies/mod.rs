//! Policies: in which order jobs get GPUs. One short file each, which opens with what the paper's
//! symbols are here, and with what the paper leaves open.
//!
//! The core asks for the order in each round ([the round](crate)). A policy sees jobs as they are
//! accounted for by the core: service that was attained, steps that were seen at the driver. It
//! never sees what a job says of itself, but for the expected run where it needs one.

mod astraea;
mod elas;
mod exclusive;
mod fifo;
mod gittins;
mod shortest_remaining;
mod tiresias;

use std::fmt::Debug;

use crate::Ns;
use crate::job::{JobId, TenantId, WHOLE_GPU_MILLI, WorkerAsk};

pub use astraea::AstraeaOrder;
pub use elas::ElasOrder;
pub use exclusive::ExclusiveOrder;
pub use fifo::FifoOrder;
pub use gittins::GittinsOrder;
pub use shortest_remaining::ShortestRemaining;
pub use tiresias::TiresiasOrder;

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
}

impl RankedJob {
    /// Attained service: GPUs times the time on them, GPU-ns.
    pub fn service(&self) -> u128 {
        u128::from(self.ran) * u128::from(self.gpu_milli) / u128::from(WHOLE_GPU_MILLI)
    }
}

/// In which order jobs get GPUs.
pub trait ClusterPolicy: Debug {
    /// What it is called in options and tables.
    fn name(&self) -> &'static str;

    /// The jobs in the order in which they get GPUs. Where the policy does not preempt, only those
    /// that wait are handed in. They come sorted by number.
    fn order(&mut self, now: Ns, jobs: &[RankedJob]) -> Vec<JobId>;

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
        _ => return None,
    })
}

/// What [`named`] knows.
pub const NAMES: [&str; 8] = [
    "fifo",
    "fifo-backfill",
    "shortest-remaining",
    "exclusive",
    "tiresias",
    "gittins",
    "elas",
    "astraea",
];

/// Jobs by a key, the smallest first; of equal keys the one that came first.
fn sorted<K: Ord>(jobs: &[RankedJob], key: impl Fn(&RankedJob) -> K) -> Vec<JobId> {
    let mut jobs: Vec<&RankedJob> = jobs.iter().collect();
    jobs.sort_by_cached_key(|job| (key(job), job.arrived, job.id));
    jobs.into_iter().map(|job| job.id).collect()
}
