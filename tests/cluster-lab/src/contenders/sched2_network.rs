// SPDX-License-Identifier: MIT OR Apache-2.0
//! SCHED2 (GLOBECOM 2019) with a trained network: it chooses the job that begins next, or none.
//!
//! | paper | here |
//! |---|---|
//! | state: fragmentation of the cluster | `fragments`, now and with the job begun |
//! | state: locality, how a job slows down on several nodes | `traffic_milli`, on the fewest nodes that have room for it now |
//! | state: the job | GPUs, time that it waits, place in the queue; its run, if that is known |
//! | action: the next job and its placement | the row that is taken; then the next, until the row "wait" |
//! | reward: completion time | jobs in the system times the time they are, with the sign turned |
//! | the deep network, trained by reinforcement | [`RowNetwork`], `scripts/learn`, masked PPO |
//!
//! Only the abstract was available. So the network's form is not known here, nor whether a job's
//! run is known in advance, nor whether jobs are preempted. Here nothing is paused. A job's run is
//! unknown unless [`Sched2Network::told`] is set. The network sees the first [`CANDIDATES`] waiting
//! jobs. A gang is put on the fewest nodes that have room for it when it is chosen.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_cluster::policies::{ClusterPolicy, RankedJob};
use weft_cluster::{ClusterNode, JobId, Ns, WHOLE_GPU_MILLI};

use super::learnt::{BrokenNetwork, ChoiceRows, RowChooser, RowNetwork, flag, part, rough_log2};

const MINUTE_NS: Ns = 60_000_000_000;

/// Features of a job that could begin. The last row is "wait".
pub const FEATURES: [&str; 16] = [
    "it is a job",
    "logarithm of its GPUs",
    "traffic",
    "logarithm of the minutes it waits",
    "logarithm of the minutes it runs, where told",
    "logarithm of its GPU minutes, where told",
    "as few nodes as can be",
    "traffic, where several nodes",
    "its nodes are full with it",
    "fragments with it",
    "fragments now",
    "part of the free GPUs that it takes",
    "free part of all GPUs",
    "place among those that wait",
    "logarithm of those that wait",
    "it is one worker",
];

/// Number of waiting jobs that the network sees, by arrival.
pub const CANDIDATES: usize = 48;

/// The networks of this package's folder.
const SHIPPED: [&str; 2] = [
    include_str!("../../networks/sched2.txt"),
    include_str!("../../networks/sched2-told.txt"),
];

/// Order by a network, or by a trainer of one.
#[derive(Debug, Clone)]
pub struct Sched2Network {
    chooser: Arc<dyn RowChooser>,
    /// Whether a job's run is known in advance.
    pub told: bool,
    /// Free whole GPUs, and all whole GPUs, of each node.
    nodes: Vec<(u32, u32)>,
    /// Bound on the nodes of the jobs that were chosen in this round.
    bounds: BTreeMap<JobId, u32>,
}

/// GPUs of a worker, at least 1.
fn gpus_of_worker(job: &RankedJob) -> u32 {
    let gpus = job.gpu_milli / u64::from(job.workers.max(1)) / u64::from(WHOLE_GPU_MILLI);
    (gpus as u32).max(1)
}

/// Free GPUs on nodes that are not empty, as a part of all free GPUs.
fn fragments(nodes: &[(u32, u32)]) -> f32 {
    let free: u32 = nodes.iter().map(|(free, _)| free).sum();
    let broken = nodes.iter().filter(|(free, all)| free < all).map(|(free, _)| free);
    if free == 0 {
        0.0
    } else {
        part(u64::from(broken.sum::<u32>()), u64::from(free))
    }
}

/// Nodes on which a gang would be, with the GPUs of each; none if there is no room.
fn fewest(nodes: &[(u32, u32)], workers: u32, each: u32) -> Option<Vec<(usize, u32)>> {
    let mut left = workers;
    let mut found: Vec<(usize, u32)> = Vec::new();
    while left > 0 {
        let unused = |at: &usize| !found.iter().any(|(used, _)| used == at);
        let rooms = (0..nodes.len()).filter(unused).map(|at| (nodes[at].0 / each, at));
        let rooms = rooms.filter(|(room, _)| *room > 0);
        // The fullest node that takes the whole rest, else the emptiest.
        let by = |(room, at): (u32, usize)| (room < left, if room < left { u32::MAX - room } else { room }, at);
        let (.., at) = rooms.map(by).min()?;
        let takes = (nodes[at].0 / each).min(left);
        found.push((at, takes * each));
        left -= takes;
    }
    Some(found)
}

impl Sched2Network {
    /// The shipped network: for unknown runs, or for known runs (`told`).
    pub fn shipped(told: bool) -> Result<Sched2Network, BrokenNetwork> {
        Sched2Network::from_text(SHIPPED[usize::from(told)], told)
    }

    /// From a network's file.
    pub fn from_text(text: &str, told: bool) -> Result<Sched2Network, BrokenNetwork> {
        let network = RowNetwork::for_rows(text, FEATURES.len(), "a job")?;
        Ok(Sched2Network::new(Arc::new(network), told))
    }

    /// Creates an order with this chooser.
    pub fn new(chooser: Arc<dyn RowChooser>, told: bool) -> Sched2Network {
        Sched2Network {
            chooser,
            told,
            nodes: Vec::new(),
            bounds: BTreeMap::new(),
        }
    }

    fn row(&self, now: Ns, job: &RankedJob, on: &[(usize, u32)], place: [usize; 2]) -> [f32; FEATURES.len()] {
        let gpus: u32 = on.iter().map(|(_, gpus)| gpus).sum();
        let largest = self.nodes.iter().map(|(_, all)| *all).max().unwrap_or(1).max(1);
        let fewest = gpus.div_ceil(largest) as usize;
        let mut after = self.nodes.clone();
        for (at, gpus) in on {
            after[*at].0 -= gpus;
        }
        let free: u32 = self.nodes.iter().map(|(free, _)| free).sum();
        let minutes = |ns: Ns| ns / MINUTE_NS;
        let run = job.expected.filter(|_| self.told).map_or(0, minutes);
        let traffic = job.measure.traffic_milli.min(4_000) as f32 / 1e3;
        let [at, waiting] = place;
        [
            1.0,
            rough_log2(u64::from(gpus)) / 4.0,
            traffic,
            rough_log2(minutes(now.saturating_sub(job.arrived))) / 8.0,
            rough_log2(run) / 8.0,
            rough_log2(run * u64::from(gpus)) / 12.0,
            flag(on.len() <= fewest),
            traffic * flag(on.len() > 1),
            flag(on.iter().all(|(at, _)| after[*at].0 == 0)),
            fragments(&after),
            fragments(&self.nodes),
            part(u64::from(gpus), u64::from(free)),
            self.free_part(),
            part(at as u64, waiting as u64),
            rough_log2(waiting as u64) / 8.0,
            flag(job.workers == 1),
        ]
    }

    fn free_part(&self) -> f32 {
        let (free, all) = self.nodes.iter().fold((0, 0), |(free, all), node| {
            (free + u64::from(node.0), all + u64::from(node.1))
        });
        part(free, all)
    }
}

impl ClusterPolicy for Sched2Network {
    fn name(&self) -> &'static str {
        if self.told { "sched2-net-told" } else { "sched2-net" }
    }

    fn see(&mut self, nodes: &[ClusterNode]) {
        let whole = |node: &ClusterNode| (node.whole() as u32, node.gpus.len() as u32);
        self.nodes = nodes.iter().map(whole).collect();
    }

    fn order(&mut self, now: Ns, jobs: &[RankedJob]) -> Vec<JobId> {
        self.bounds.clear();
        let mut waiting: Vec<&RankedJob> = jobs.iter().collect();
        waiting.sort_by_key(|job| (job.arrived, job.id));
        let mut order = Vec::with_capacity(jobs.len());
        loop {
            let mut rows = ChoiceRows::new(FEATURES.len());
            let mut rooms = Vec::new();
            for (at, job) in waiting.iter().take(CANDIDATES).enumerate() {
                let Some(on) = fewest(&self.nodes, job.workers, gpus_of_worker(job)) else {
                    continue;
                };
                rows.push(&self.row(now, job, &on, [at, waiting.len()]), true);
                rooms.push((at, on));
            }
            if rooms.is_empty() {
                break;
            }
            let mut wait = [0.0; FEATURES.len()];
            wait[10] = fragments(&self.nodes);
            wait[12] = self.free_part();
            wait[14] = rough_log2(waiting.len() as u64) / 8.0;
            // In an empty cluster there is nothing to wait for, and CPU may require more nodes than
            // GPUs do.
            let busy = self.nodes.iter().any(|(free, all)| free < all);
            rows.push(&wait, busy);
            let Some((at, on)) = self.chooser.choose(&rows).and_then(|row| rooms.get(row)) else {
                break;
            };
            let job = waiting.remove(*at);
            self.bounds
                .insert(job.id, if busy { on.len() as u32 } else { u32::MAX });
            for (at, gpus) in on {
                self.nodes[*at].0 -= gpus;
            }
            order.push(job.id);
        }
        order.extend(waiting.into_iter().map(|job| job.id));
        order
    }

    fn spread(&self, _now: Ns, job: &RankedJob) -> u32 {
        self.bounds.get(&job.id).copied().unwrap_or(0)
    }
}
