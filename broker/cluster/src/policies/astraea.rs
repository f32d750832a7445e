// SPDX-License-Identifier: MIT OR Apache-2.0
//! ASTRAEA: fairness of GPU time over the long run, first among tenants, then among a tenant's
//! jobs, by leases.
//!
//! | paper | here |
//! |---|---|
//! | lease term | `lease`, ns |
//! | GPU time that a tenant received | the sum of its jobs' service, also of those that ended |
//! | GPU time to which it is entitled | an equal part for each tenant that has jobs |
//! | a job's received over its entitled | its service over the time since it came |
//!
//! * A running job keeps its GPUs until its lease ends. Then it competes like any other, and
//!   continues if it wins.
//! * Phase 1: the tenant with the least service. Phase 2: its job with the smallest ratio. The GPU
//!   time of a lease counts from its beginning until its end, and so the next turn may be another
//!   tenant's.
//!
//! The paper was not available in full. Not stated, or not known here: unequal shares of tenants,
//! the length of a lease (20 minutes here), and the entitlement of a job that came late. Here a
//! tenant starts at the least service of those that have jobs, so that none is owed time in which
//! it had no job.

use std::collections::BTreeMap;

use super::{ClusterPolicy, RankedJob, SECOND_NS, gpu_time};
use crate::Ns;
use crate::job::{JobId, TenantId};

/// Order by tenants' and jobs' received GPU time.
#[derive(Debug, Clone)]
pub struct AstraeaOrder {
    /// Time for which a job that was begun is not paused, ns.
    pub lease: Ns,
    /// Per tenant with jobs: its service, GPU-ns.
    received: BTreeMap<TenantId, u128>,
    /// Per job: the part of its service that is in `received`.
    counted: BTreeMap<JobId, u128>,
    /// When a job that continued got another lease.
    renewed: BTreeMap<JobId, Ns>,
}

impl Default for AstraeaOrder {
    /// With leases of twenty minutes.
    fn default() -> AstraeaOrder {
        AstraeaOrder {
            lease: 1_200 * SECOND_NS,
            received: BTreeMap::new(),
            counted: BTreeMap::new(),
            renewed: BTreeMap::new(),
        }
    }
}

impl AstraeaOrder {
    /// Rest of a running job's lease, ns.
    fn left(&self, now: Ns, job: &RankedJob) -> Ns {
        let begun = now.saturating_sub(job.lately);
        let leased = self.renewed.get(&job.id).map_or(begun, |renewed| begun.max(*renewed));
        match job.running {
            true => self.lease.saturating_sub(now.saturating_sub(leased)),
            false => 0,
        }
    }

    /// Adds the jobs' service since the last call.
    fn count(&mut self, jobs: &[RankedJob]) {
        let present = |tenant: &TenantId| jobs.iter().any(|job| job.tenant == *tenant);
        self.received.retain(|tenant, _| present(tenant));
        let least = self.received.values().min().copied().unwrap_or(0);
        for job in jobs {
            self.received.entry(job.tenant).or_insert(least);
            self.count_one(job);
        }
    }

    fn count_one(&mut self, job: &RankedJob) {
        let counted = self.counted.entry(job.id).or_insert(0);
        if let Some(received) = self.received.get_mut(&job.tenant) {
            *received += job.service().saturating_sub(*counted);
        }
        *counted = job.service().max(*counted);
    }
}

/// Received over entitled time, in millionths; 0 for a job that just came.
fn ratio(now: Ns, job: &RankedJob) -> u128 {
    let wanted = gpu_time(job, now.saturating_sub(job.arrived));
    (job.service() * 1_000_000).checked_div(wanted).unwrap_or(0)
}

impl ClusterPolicy for AstraeaOrder {
    fn name(&self) -> &'static str {
        "astraea"
    }

    fn order(&mut self, now: Ns, jobs: &[RankedJob]) -> Vec<JobId> {
        self.count(jobs);
        let mut order = Vec::new();
        let mut received = self.received.clone();
        let mut open: BTreeMap<TenantId, Vec<&RankedJob>> = BTreeMap::new();
        for job in jobs {
            let left = self.left(now, job);
            if left > 0 {
                // The rest of its lease still counts, as it did at its beginning.
                *received.entry(job.tenant).or_insert(0) += gpu_time(job, left);
                order.push(job.id);
                continue;
            }
            // A job that continues has another lease; one that is paused loses it.
            if job.running {
                self.renewed.insert(job.id, now);
            }
            open.entry(job.tenant).or_default().push(job);
        }
        // The best is last, to be popped.
        for list in open.values_mut() {
            list.sort_by_key(|job| std::cmp::Reverse((ratio(now, job), job.arrived, job.id)));
        }
        let least = |received: &BTreeMap<TenantId, u128>, open: &BTreeMap<TenantId, Vec<&RankedJob>>| {
            open.keys()
                .min_by_key(|tenant| (received.get(*tenant).copied(), **tenant))
                .copied()
        };
        while let Some(tenant) = least(&received, &open) {
            let Some(job) = open.get_mut(&tenant).and_then(Vec::pop) else {
                open.remove(&tenant);
                continue;
            };
            *received.entry(tenant).or_insert(0) += gpu_time(job, self.lease);
            order.push(job.id);
        }
        order
    }

    fn preempts(&self) -> bool {
        true
    }

    fn look_every(&self) -> Option<Ns> {
        Some(60 * SECOND_NS)
    }

    fn ended(&mut self, job: &RankedJob) {
        self.count_one(job);
        self.counted.remove(&job.id);
        self.renewed.remove(&job.id);
    }
}
