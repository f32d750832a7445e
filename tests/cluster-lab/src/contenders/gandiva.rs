// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gandiva (OSDI 2018): jobs take turns on GPUs, two of them share one if that makes both together
//! faster, and gangs move closer together.
//!
//! | paper | here |
//! |---|---|
//! | suspend and resume at a mini-batch's end | pause and resume, with the memory moved out |
//! | a turn, about a minute | `turn`, ns |
//! | round robin over jobs | a waiting job goes before one that had its turn; of waiting jobs, the one that waits longest |
//! | packing, by profiled memory and GPU use | a second seat if both are busy for at most `PACK_MILLI` together |
//! | unpacking, if throughput fell | the guest's `speed_milli` below `UNPACK_MILLI`: it leaves for good |
//! | migration, for locality | a gang moves if that puts it on fewer nodes |
//! | mini-batches a second | steps, as the node's broker counts them: `speed_milli` of alone |
//!
//! A job is packed as the equal of the job on its GPU: the device shares without weft's help. The
//! paper does not state how long a pair is watched (here until the next measure). Nor does it state
//! in which order jobs are tried (here as they wait). It does not treat services apart from
//! training jobs. Not here: growing and shrinking of gangs, and the measured throughput of the
//! *pair*, which needs both. The guest's own speed replaces it, as equals lose alike.

use std::collections::BTreeSet;

use weft_cluster::policies::{ClusterPolicy, OrderKey, RankedJob, SharingRule};
use weft_cluster::{JobId, Ns};

const MINUTE_NS: Ns = 60_000_000_000;

/// Load of two jobs that may share one GPU, thousandths: a full GPU. Beyond that, time sharing is
/// no gain.
const PACK_MILLI: u32 = 1_000;
/// Speed, relative to that without other jobs, below which two are slower together than in turns,
/// thousandths.
const UNPACK_MILLI: u32 = 500;

/// Order by turns.
#[derive(Debug, Clone)]
pub struct GandivaOrder {
    /// Length of a turn, ns.
    pub turn: Ns,
    /// Jobs that are not packed again.
    alone: BTreeSet<JobId>,
}

impl Default for GandivaOrder {
    /// With turns of a minute.
    fn default() -> GandivaOrder {
        GandivaOrder {
            turn: MINUTE_NS,
            alone: BTreeSet::new(),
        }
    }
}

impl ClusterPolicy for GandivaOrder {
    fn name(&self) -> &'static str {
        "gandiva"
    }

    fn keyed(&self) -> bool {
        true
    }

    fn key(&mut self, now: Ns, job: &RankedJob) -> OrderKey {
        let since = u128::from(now.saturating_sub(job.lately));
        let in_turn = job.running && !job.second && job.lately < self.turn;
        let rank = match (in_turn, job.running && !job.second) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        OrderKey(rank, since)
    }

    fn preempts(&self) -> bool {
        true
    }

    fn look_every(&self) -> Option<Ns> {
        Some(self.turn)
    }

    fn moves(&self, _now: Ns, job: &RankedJob) -> bool {
        job.measure.traffic_milli > 0
    }

    fn sharing(&self) -> Option<SharingRule> {
        Some(SharingRule {
            most_host_milli: PACK_MILLI,
            most_load_milli: PACK_MILLI,
            level: None,
        })
    }

    fn seconds(&mut self, job: &RankedJob) -> bool {
        if job.second && job.measure.speed_milli < UNPACK_MILLI {
            self.alone.insert(job.id);
        }
        !self.alone.contains(&job.id)
    }

    fn ended(&mut self, job: &RankedJob) {
        self.alone.remove(&job.id);
    }
}
