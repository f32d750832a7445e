// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tiresias (NSDI 2019): two-dimensional attained service, discretised. No estimate of a job's run
//! is needed.
//!
//! | paper | here |
//! |---|---|
//! | W_J, GPUs of job J | `gpu_milli` |
//! | t_J, time it ran | `ran` since it was last promoted |
//! | W_J t_J, attained service | `attained`, held against `thresholds` |
//! | Q_1 ... Q_K, queues | `Standing::queue`, 0 to `thresholds.len()` |
//! | Q_i's upper limit | `thresholds`, in GPU-ns |
//! | PROMOTEKNOB | `promote`: 0 never promotes, as in the public simulators |
//!
//! * A job begins in the first queue and is demoted if its service crosses a limit.
//! * Queues go in order. Inside a queue the job that entered it first comes first. A running job
//!   that is before another keeps its GPUs.
//! * A job that waits `promote` times as long as it ran goes back to the first queue, and its
//!   service counts from there.
//!
//! The paper does not state how often limits are checked. Here they are checked every minute and at
//! each event, and a job may exceed a limit by that time. The limit is that of Tiresias's own
//! simulator, two queues with 3,250 GPU-s; Pollux's takes 16 GPU-hours. Not here: the profile of a
//! model's tensors, by which the paper decides whether a gang must be on few nodes. Every gang is
//! put on few.

use std::collections::BTreeMap;

use super::{ClusterPolicy, OrderKey, RankedJob, SECOND_NS};
use crate::Ns;
use crate::job::{JobId, WHOLE_GPU_MILLI};

/// Standing of a job.
#[derive(Debug, Clone, Copy)]
struct Standing {
    queue: usize,
    /// When it entered the queue, and the number of that entry.
    entered: (Ns, u64),
    /// Its run time when it was last promoted, ns.
    forgiven: Ns,
}

/// Order by queues of attained service.
#[derive(Debug, Clone)]
pub struct TiresiasOrder {
    /// Service above which a job leaves each queue but the last, GPU-ns, ascending.
    pub thresholds: Vec<u128>,
    /// A job is promoted when it waits this many times as long as it ran; 0: never.
    pub promote: u64,
    standings: BTreeMap<JobId, Standing>,
    entries: u64,
}

impl TiresiasOrder {
    /// Creates an order with these limits of queues, in GPU-ns, and this promotion factor.
    pub fn new(thresholds: Vec<u128>, promote: u64) -> TiresiasOrder {
        TiresiasOrder {
            thresholds,
            promote,
            standings: BTreeMap::new(),
            entries: 0,
        }
    }

    fn entry(&mut self, now: Ns) -> (Ns, u64) {
        self.entries += 1;
        (now, self.entries)
    }
}

impl Default for TiresiasOrder {
    /// Two queues with a limit of 3,250 GPU-s, no promotion.
    fn default() -> TiresiasOrder {
        TiresiasOrder::new(vec![3_250 * u128::from(SECOND_NS)], 0)
    }
}

impl ClusterPolicy for TiresiasOrder {
    fn name(&self) -> &'static str {
        "tiresias"
    }

    fn keyed(&self) -> bool {
        true
    }

    fn key(&mut self, now: Ns, job: &RankedJob) -> OrderKey {
        let mut standing = match self.standings.get(&job.id) {
            Some(standing) => *standing,
            None => Standing {
                queue: 0,
                entered: self.entry(job.arrived),
                forgiven: 0,
            },
        };
        let ran = job.ran - standing.forgiven.min(job.ran);
        let attained = u128::from(ran) * u128::from(job.gpu_milli) / u128::from(WHOLE_GPU_MILLI);
        let queue = self.thresholds.iter().filter(|limit| attained >= **limit).count();
        if queue > standing.queue {
            standing.queue = queue;
            standing.entered = self.entry(now);
        }
        let waited = if job.running { 0 } else { job.lately };
        if self.promote > 0 && standing.queue > 0 && waited >= ran.saturating_mul(self.promote) {
            standing.queue = 0;
            standing.entered = self.entry(now);
            standing.forgiven = job.ran;
        }
        self.standings.insert(job.id, standing);
        let (entered, number) = standing.entered;
        OrderKey(
            ((standing.queue as u128) << 64) | u128::from(entered),
            u128::from(number),
        )
    }

    /// A waiting job is promoted merely by time.
    fn shifted(&mut self) -> bool {
        self.promote > 0
    }

    fn preempts(&self) -> bool {
        true
    }

    fn level(&self, job: JobId) -> u8 {
        let queue = self.standings.get(&job).map_or(0, |standing| standing.queue);
        (5 + queue).min(9) as u8
    }

    fn levels_move(&self) -> bool {
        true
    }

    fn look_every(&self) -> Option<Ns> {
        Some(60 * SECOND_NS)
    }

    fn ended(&mut self, job: &RankedJob) {
        self.standings.remove(&job.id);
    }
}
