// SPDX-License-Identifier: MIT OR Apache-2.0
//! SCHED2 ("SCED2" in the survey): a learnt scheduler. Its state includes the gangs' need of
//! locality and the cluster's fragmentation.
//!
//! | paper | here |
//! |---|---|
//! | state: fragmentation of the cluster | `fragments`: of free GPUs, those on nodes that are not empty |
//! | state: locality, how a job slows down on several nodes | `traffic_milli`, measured |
//! | state: the job, its GPUs and its service | GPUs, attained service, time that it waits |
//! | action: the next job and its placement | the least of a score, and the most nodes it may be on |
//! | reward: completion time | the objective of the lab's search |
//! | the deep network | a sum with four weights ([`Sched2Order::WEIGHTS`]) |
//!
//! This is a **stand-in**: the abstract was available, but the network was not. The weights were
//! set by hand. `scripts/lab cluster --only train` searches for better ones by cross-entropy, on
//! seeds that no figure uses; none of its results is in here yet. The paper does not mention
//! preemption: nothing is paused here.

use weft_cluster::policies::{ClusterPolicy, RankedJob, most_gpus, patient};
use weft_cluster::{ClusterNode, JobId, Ns, WHOLE_GPU_MILLI};

const MINUTE_NS: Ns = 60_000_000_000;

/// Order by a score of locality and fragmentation.
#[derive(Debug, Clone)]
pub struct Sched2Order {
    /// Weights: of the logarithm of GPUs, of that of minutes waited, and of locality times
    /// fragmentation. The last is the minutes that a gang waits for few nodes, for each thousandth
    /// by which several nodes slow it down.
    pub weights: [f64; 4],
    /// Fragmentation of the cluster, 0 to 1.
    fragments: f64,
    /// GPUs of the largest node seen.
    gpus_of_node: u32,
}

impl Sched2Order {
    /// Weights set by hand.
    pub const WEIGHTS: [f64; 4] = [1.0, -0.4, 0.5, 0.02];

    /// Creates an order with these weights.
    pub fn new(weights: [f64; 4]) -> Sched2Order {
        Sched2Order {
            weights,
            fragments: 0.0,
            gpus_of_node: 1,
        }
    }

    /// Score of a job; the least goes first.
    fn score(&self, now: Ns, job: &RankedJob) -> f64 {
        let [by_gpus, by_wait, by_locality, _] = self.weights;
        let gpus = job.gpu_milli as f64 / f64::from(WHOLE_GPU_MILLI);
        let waited_min = now.saturating_sub(job.arrived) as f64 / 6e10;
        let locality = f64::from(job.measure.traffic_milli) / 1_000.0;
        by_gpus * (1.0 + gpus).ln() + by_wait * (1.0 + waited_min).ln() + by_locality * locality * self.fragments
    }
}

impl Default for Sched2Order {
    fn default() -> Sched2Order {
        Sched2Order::new(Sched2Order::WEIGHTS)
    }
}

impl ClusterPolicy for Sched2Order {
    fn name(&self) -> &'static str {
        "sched2"
    }

    fn see(&mut self, nodes: &[ClusterNode]) {
        let free: usize = nodes.iter().map(ClusterNode::whole).sum();
        let partly = nodes.iter().filter(|node| node.whole() < node.gpus.len());
        let broken: usize = partly.map(ClusterNode::whole).sum();
        self.fragments = broken as f64 / free.max(1) as f64;
        self.gpus_of_node = most_gpus(nodes);
    }

    fn order(&mut self, now: Ns, jobs: &[RankedJob]) -> Vec<JobId> {
        let mut scored: Vec<(f64, JobId)> = jobs.iter().map(|job| (self.score(now, job), job.id)).collect();
        scored.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        scored.into_iter().map(|(_, id)| id).collect()
    }

    fn spread(&self, now: Ns, job: &RankedJob) -> u32 {
        patient(now, job, self.weights[3], self.gpus_of_node)
    }

    fn look_every(&self) -> Option<Ns> {
        Some(MINUTE_NS)
    }
}
