// SPDX-License-Identifier: MIT OR Apache-2.0
//! Links between nodes: a tree of two levels. Nodes are attached to leaf switches. Each leaf has
//! equal uplinks, one to each spine. A gang's traffic takes the links of its nodes. If the gang is
//! on more than one leaf, its traffic takes one uplink of each, all to one spine: its path.

use crate::job::{JobId, JobMeasure};
use crate::node::{NodeId, WorkerPlace};

/// Tree of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterLinks {
    /// Nodes of a leaf switch, by their numbers: the first leaf has 0 to `nodes_of_leaf - 1`.
    pub nodes_of_leaf: u32,
    /// Uplinks of a leaf, each as fast as a node's link.
    pub paths: u32,
    /// Number of priorities of the switches, at least 1.
    pub levels: u8,
}

impl ClusterLinks {
    /// The leaf of a node.
    pub fn leaf(&self, node: NodeId) -> u32 {
        node.0 / self.nodes_of_leaf.max(1)
    }
}

/// Route of a gang's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowRoute {
    /// The spine.
    pub path: u32,
    /// Its priority on every link, 0 the highest.
    pub level: u8,
}

/// A running gang that sends from node to node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// The job that sends it.
    pub job: JobId,
    /// Its GPUs, thousandths.
    pub gpu_milli: u64,
    /// Measures of the job.
    pub measure: JobMeasure,
    /// Its nodes, each once.
    pub nodes: Vec<NodeId>,
    /// Their leaves, each once.
    pub leaves: Vec<u32>,
}

impl Flow {
    /// Flow of a gang on these places; none if it is on one node or sends nothing.
    pub fn of(
        job: JobId,
        gpu_milli: u64,
        measure: JobMeasure,
        places: &[WorkerPlace],
        links: &ClusterLinks,
    ) -> Option<Flow> {
        let mut nodes: Vec<NodeId> = places.iter().map(|place| place.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() < 2 || measure.traffic_milli == 0 {
            return None;
        }
        let mut leaves: Vec<u32> = nodes.iter().map(|node| links.leaf(*node)).collect();
        leaves.dedup();
        Some(Flow {
            job,
            gpu_milli,
            measure,
            nodes,
            leaves,
        })
    }

    /// Part of its time in which it keeps its links busy while no other flow does, millionths.
    pub fn load_ppm(&self) -> u64 {
        let traffic = u64::from(self.measure.traffic_milli);
        traffic * 1_000_000 / (1_000 + traffic)
    }
}
