//! Links between nodes: a tree of two levels. Nodes hang on leaf switches, and each leaf has equal
//! uplinks to as many spines. A gang's traffic takes the links of its nodes. Where it is on more
//! than one leaf it takes one uplink of each, all to one spine: its path.

use crate::job::{JobId, JobMeasure};
use crate::node::{NodeId, WorkerPlace};

/// The tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterLinks {
    /// Nodes of a leaf switch, by their numbers: 0 to this less one are on the first.
    pub nodes_of_leaf: u32,
    /// Uplinks of a leaf, each as fast as a node's link.
    pub paths: u32,
    /// Priorities that the switches know, at least 1.
    pub levels: u8,
}

impl ClusterLinks {
    /// The leaf of a node.
    pub fn leaf(&self, node: NodeId) -> u32 {
        node.0 / self.nodes_of_leaf.max(1)
    }
}

/// How a gang's traffic goes.
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
    /// Whose traffic it is.
    pub job: JobId,
    /// Its GPUs, thousandths.
    pub gpu_milli: u64,
    /// What was measured of it.
    pub measure: JobMeasure,
    /// Its nodes, each once.
    pub nodes: Vec<NodeId>,
    /// Their leaves, each once.
    pub leaves: Vec<u32>,
}

impl Flow {
    /// The flow of a gang on these places; none where it is on one node or sends nothing.
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

    /// Of its time, in which it keeps its links busy while nothing else does, millionths.
    pub fn load_ppm(&self) -> u64 {
        let traffic = u64::from(self.measure.traffic_milli);
        traffic * 1_000_000 / (1_000 + traffic)
    }
}
