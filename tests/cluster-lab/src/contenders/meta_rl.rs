// SPDX-License-Identifier: MIT OR Apache-2.0
//! Meta-RL placement of all-reduce workers: a network chooses the node of the next workers of a
//! gang.
//!
//! | paper | here |
//! |---|---|
//! | state: free resources of servers, where workers of other jobs are | a row for each node: [`FEATURES`] |
//! | action: the server of the next worker | the row that is taken; its node is filled before the next is chosen |
//! | performance model of all-reduce jobs | the lab: duty, traffic, loads of links |
//! | reward: the model's prediction of completion | jobs in the system times the time they are, with the sign turned |
//! | actor-critic trained by PPO | `scripts/learn`, masked PPO; only the actor is shipped |
//! | meta: fast adaptation to a changed load | trained over many loads, traffics and leaf sizes at once; no weights change later |
//! | exploration where the model is uncertain | an entropy bonus: the lab is the model, and is certain |
//!
//! Only the abstract was available. So the paper's network, features, clusters and baselines are
//! not known here. The paper does not order jobs: any policy may order them.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_cluster::placement::{GangPlacement, GangSurroundings};
use weft_cluster::{ClusterNode, WHOLE_GPU_MILLI, WorkerAsk};

use super::learnt::{BrokenNetwork, ChoiceRows, RowChooser, RowNetwork, flag, part, rough_log2};

/// Loads of links: the parts of the time in which flows would send on idle links, millionths.
#[derive(Debug, Default)]
struct LinkLoads {
    /// Per node, by its number.
    nodes_ppm: BTreeMap<u32, u64>,
    /// Per leaf, for the average of its uplinks.
    leaves_ppm: BTreeMap<u32, u64>,
}

impl LinkLoads {
    /// Loads by these flows.
    fn new(around: &GangSurroundings) -> LinkLoads {
        let mut loads = LinkLoads::default();
        let paths = around.links.map_or(1, |links| u64::from(links.paths.max(1)));
        for flow in &around.flows {
            for node in &flow.nodes {
                *loads.nodes_ppm.entry(node.0).or_default() += flow.load_ppm();
            }
            for leaf in flow.leaves.iter().filter(|_| flow.leaves.len() > 1) {
                *loads.leaves_ppm.entry(*leaf).or_default() += flow.load_ppm() / paths;
            }
        }
        loads
    }
}

/// Features of a node's row.
pub const FEATURES: [&str; 15] = [
    "room of the node, of what is left of the gang",
    "all that is left fits on the node",
    "room of the node that would be left over, of its room",
    "taken part of the node's GPUs",
    "load of the node's link",
    "load of its leaf's uplinks",
    "room of the leaf, of what is left of the gang",
    "all that is left fits on the leaf",
    "free part of the leaf's GPUs",
    "the gang is on this leaf already",
    "placed part of the gang",
    "traffic",
    "traffic, where the gang is elsewhere already",
    "logarithm of the gang's workers",
    "free part of all GPUs",
];

/// The network of this package's folder.
const SHIPPED: &str = include_str!("../../networks/meta-rl.txt");

/// Placement by a network, or by a trainer of one.
#[derive(Debug, Clone)]
pub struct LearntPlacement(Arc<dyn RowChooser>);

/// Total room of a leaf.
#[derive(Debug, Clone, Copy, Default)]
struct LeafRoom {
    room: u64,
    free_milli: u64,
    milli: u64,
    holds: bool,
}

impl LearntPlacement {
    /// The shipped network.
    pub fn shipped() -> Result<LearntPlacement, BrokenNetwork> {
        LearntPlacement::from_text(SHIPPED)
    }

    /// From a network's file.
    pub fn from_text(text: &str) -> Result<LearntPlacement, BrokenNetwork> {
        let network = RowNetwork::for_rows(text, FEATURES.len(), "a node")?;
        Ok(LearntPlacement::new(Arc::new(network)))
    }

    /// Creates a placement with this chooser.
    pub fn new(chooser: Arc<dyn RowChooser>) -> LearntPlacement {
        LearntPlacement(chooser)
    }
}

impl GangPlacement for LearntPlacement {
    fn name(&self) -> &'static str {
        "meta-rl"
    }

    fn node(
        &self,
        nodes: &[ClusterNode],
        around: &GangSurroundings,
        ask: &WorkerAsk,
        workers: u32,
        left: u32,
        taken: &[usize],
    ) -> Option<usize> {
        let rows = rows(nodes, around, ask, [workers, left], taken);
        let found = rows.allowed.contains(&true).then(|| self.0.choose(&rows))?;
        found.filter(|at| rows.allowed.get(*at) == Some(&true))
    }
}

/// A row for each node.
fn rows(
    nodes: &[ClusterNode],
    around: &GangSurroundings,
    ask: &WorkerAsk,
    [workers, left]: [u32; 2],
    taken: &[usize],
) -> ChoiceRows {
    let loads = LinkLoads::new(around);
    let number = |node: &ClusterNode| around.links.map_or(0, |links| links.leaf(node.id));
    let mut leaves: BTreeMap<u32, LeafRoom> = BTreeMap::new();
    let (mut free, mut all) = (0, 0);
    let milli = |node: &ClusterNode| node.gpus.len() as u64 * u64::from(WHOLE_GPU_MILLI);
    let room = |node: &ClusterNode| {
        if node.fits(ask) {
            u64::from(node.room(ask).max(1))
        } else {
            0
        }
    };
    for (at, node) in nodes.iter().enumerate() {
        let leaf = leaves.entry(number(node)).or_default();
        leaf.room += room(node);
        leaf.free_milli += node.free_milli();
        leaf.milli += milli(node);
        leaf.holds |= taken.contains(&at);
        free += node.free_milli();
        all += milli(node);
    }
    let left = u64::from(left);
    let load = |ppm: Option<&u64>| (ppm.copied().unwrap_or(0) as f32 / 1e6).min(4.0);
    let traffic = around.traffic_milli.min(4_000) as f32 / 1e3;
    let mut rows = ChoiceRows::new(FEATURES.len());
    for node in nodes {
        let number = number(node);
        let leaf = leaves.get(&number).copied().unwrap_or_default();
        let room = room(node);
        let over = room - room.min(left);
        let features: [f32; FEATURES.len()] = [
            part(room, left),
            flag(room >= left),
            if room > 0 { part(over, room) } else { 0.0 },
            1.0 - part(node.free_milli(), milli(node)),
            load(loads.nodes_ppm.get(&node.id.0)),
            load(loads.leaves_ppm.get(&number)),
            part(leaf.room, left),
            flag(leaf.room >= left),
            part(leaf.free_milli, leaf.milli),
            flag(leaf.holds),
            1.0 - part(left, u64::from(workers)),
            traffic,
            traffic * flag(!taken.is_empty() && !leaf.holds),
            rough_log2(u64::from(workers)) / 8.0,
            part(free, all),
        ];
        rows.push(&features, room > 0);
    }
    rows
}
