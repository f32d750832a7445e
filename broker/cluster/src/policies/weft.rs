// SPDX-License-Identifier: MIT OR Apache-2.0
//! weft's own policy: attained service with history, gaps filled on the nodes, and packing that
//! does not slow services.
//!
//! Parts taken from others, and additions:
//!
//! * *Order.* Services come first, and are never paused. Then comes the Gittins index of attained
//!   service (as [`GittinsOrder`]), measured on the GPU. If progress in steps was seen, the rest is
//!   known, and the index is one over it. A job that runs on GPUs of its own keeps them against an
//!   equal one.
//! * *Gap filling.* A job that waits, or that must make room, takes the second seat of GPUs that
//!   others hold and leave idle for at least a fifth of the time. The node's broker gives it the
//!   gaps. The job that holds the GPU keeps its speed, so packing needs no trial and a service is a
//!   host like any other. A job that makes room stays where it is, in the second seat. Its memory
//!   is moved out only if the device lacks room, and no job is killed. A gang is as fast as its
//!   slowest worker. So one that sends nothing takes the least busy GPUs wherever they are. It
//!   moves to others that are less busy by a fifth of the time.
//! * *Few nodes.* A gang that sends much waits for few nodes, and waits longer the more it sends. A
//!   gang on many nodes moves if there is room on fewer.
//! * *Links.* Paths and priorities as in Crux.

use super::{ClusterPolicy, GittinsOrder, OrderKey, RankedJob, SECOND_NS, SharingRule, crux, gpu_time};
use crate::Ns;
use crate::job::{JobId, WHOLE_GPU_MILLI};
use crate::links::{ClusterLinks, Flow, FlowRoute};
use crate::node::ClusterNode;

/// A GPU that is busier than this has no gaps worth a process, thousandths.
const MOST_HOST_MILLI: u32 = 800;
/// Difference in load for which a move to larger gaps is worth it, thousandths.
const WORTH_A_MOVE_MILLI: u32 = 200;
/// Priority of a job that fills gaps: the last.
const BACKGROUND_LEVEL: u8 = 9;
/// Minutes that a gang waits for few nodes, for each thousandth by which several nodes slow it
/// down.
const PATIENCE_MIN: f64 = 0.02;

/// Order by Gittins, gap filling and few nodes.
#[derive(Debug, Clone)]
pub struct WeftOrder {
    gittins: GittinsOrder,
    /// Whether gaps are filled.
    pub fills: bool,
    gpus_of_node: u32,
}

impl WeftOrder {
    /// Creates the order, with or without gap filling.
    pub fn new(fills: bool) -> WeftOrder {
        WeftOrder {
            gittins: GittinsOrder::default(),
            fills,
            gpus_of_node: 1,
        }
    }
}

impl Default for WeftOrder {
    fn default() -> WeftOrder {
        WeftOrder::new(true)
    }
}

impl ClusterPolicy for WeftOrder {
    fn name(&self) -> &'static str {
        if self.fills { "weft" } else { "weft-exclusive" }
    }

    fn keyed(&self) -> bool {
        true
    }

    fn key(&mut self, _now: Ns, job: &RankedJob) -> OrderKey {
        if job.measure.serves {
            return OrderKey(0, 0);
        }
        let index = match job.left {
            Some(left) => GittinsOrder::index_of_rest(gpu_time(job, left)),
            None => self.gittins.index_or_quantum(job.service()),
        };
        // The largest index first. Among equal jobs, one with GPUs of its own comes first.
        let key = 1 + (u128::MAX - index) / 2;
        OrderKey(key, u128::from(!job.running || job.second))
    }

    fn shifted(&mut self) -> bool {
        self.gittins.shifted()
    }

    fn see(&mut self, nodes: &[ClusterNode]) {
        self.gpus_of_node = most_gpus(nodes);
    }

    fn preempts(&self) -> bool {
        true
    }

    fn look_every(&self) -> Option<Ns> {
        Some(60 * SECOND_NS)
    }

    fn spread(&self, now: Ns, job: &RankedJob) -> u32 {
        patient(now, job, PATIENCE_MIN, self.gpus_of_node)
    }

    fn moves(&self, _now: Ns, job: &RankedJob) -> bool {
        job.measure.traffic_milli > 0
    }

    fn sharing(&self) -> Option<SharingRule> {
        self.fills.then_some(SharingRule {
            most_host_milli: MOST_HOST_MILLI,
            most_load_milli: u32::MAX,
            level: Some(BACKGROUND_LEVEL),
        })
    }

    fn moves_seats(&self) -> Option<u32> {
        Some(WORTH_A_MOVE_MILLI)
    }

    fn routes(&mut self, flows: &[Flow], links: &ClusterLinks) -> Vec<(JobId, FlowRoute)> {
        crux::by_intensity(flows, links)
    }

    fn ended(&mut self, job: &RankedJob) {
        self.gittins.ended(job);
    }
}

/// GPUs of the largest node, at least 1.
pub fn most_gpus(nodes: &[ClusterNode]) -> u32 {
    let gpus = nodes.iter().map(|node| node.gpus.len() as u32);
    gpus.max().unwrap_or(1).max(1)
}

/// Bound on a gang's nodes. It is as few as possible until the gang has waited `minutes_each` for
/// each thousandth by which several nodes slow it down; then any number.
pub fn patient(now: Ns, job: &RankedJob, minutes_each: f64, gpus_of_node: u32) -> u32 {
    let waited_min = now.saturating_sub(job.arrived) as f64 / 6e10;
    if job.workers < 2 || waited_min >= minutes_each * f64::from(job.measure.traffic_milli) {
        return u32::MAX;
    }
    let gpus = (job.gpu_milli / u64::from(WHOLE_GPU_MILLI)) as u32;
    gpus.div_ceil(gpus_of_node).max(1)
}
