// SPDX-License-Identifier: MIT OR Apache-2.0
//! Placements: which node and GPU a worker gets. One short file each.
//!
//! Most give each node a score, and the node with the highest score gets the worker. Of equal nodes
//! it is the one that came first. [`random`](PlacementRule::Random) draws one of those on which the
//! worker fits. [`near`](PlacementRule::Near) looks at the whole gang, and so does a placement of
//! another crate ([`GangPlacement`]). Workers of a gang after the first stay on the previous
//! worker's node while it has room: a gang is on few nodes under every rule.
//!
//! A score depends only on the node's state and on the worker's request. So [`Placer`] keeps it
//! until the node changes: for most workers only one of a thousand nodes needs a new score.

mod best_fit;
mod clustering;
mod dot_product;
mod fgd;
mod most_free;
mod near;
mod packing;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use weft_random::Random;

use crate::job::WorkerAsk;
use crate::links::{ClusterLinks, Flow};
use crate::node::{ClusterNode, NodeId, WorkerPlace};

pub use fgd::{TypicalAsk, typical_asks};

/// CPU of the largest node, to which scores are scaled, thousandths: the published simulator's
/// value.
const SCALE_CPU_MILLI: f64 = 128_000.0;
/// GPUs of the largest node, thousandths.
const SCALE_GPU_MILLI: f64 = 8_000.0;

/// Surroundings of a gang that is to be placed.
#[derive(Debug, Clone, Default)]
pub struct GangSurroundings {
    /// Time of a step's traffic, relative to the step on one node, thousandths.
    pub traffic_milli: u32,
    /// How nodes are linked, if that is known.
    pub links: Option<ClusterLinks>,
    /// Flows of the other running jobs.
    pub flows: Vec<Flow>,
}

/// Placement of gangs that another crate brings.
pub trait GangPlacement: Debug + Send + Sync {
    /// Name in options and tables.
    fn name(&self) -> &'static str;

    /// Index of the node for the gang's next workers. `left` of its `workers` have no node yet;
    /// `taken` has the indexes of the others' nodes. If the answer is none, or a node on which the
    /// worker does not fit, the gang waits.
    fn node(
        &self,
        nodes: &[ClusterNode],
        around: &GangSurroundings,
        ask: &WorkerAsk,
        workers: u32,
        left: u32,
        taken: &[usize],
    ) -> Option<usize>;
}

/// Rule by which a node is chosen.
#[derive(Debug, Clone)]
pub enum PlacementRule {
    /// Any node on which it fits, and any GPU of the node. The value is the seed of the draws.
    Random(u64),
    /// The least dot product of free and requested resources.
    DotProduct,
    /// On nodes with workers of the same kind.
    Clustering,
    /// On GPUs that are in use, then on nodes that are in use.
    Packing,
    /// On the node that has the least left.
    BestFit,
    /// On the node whose fragments grow least, for typical requests.
    Fgd(Vec<TypicalAsk>),
    /// On the node that has the most free: gangs on few nodes.
    MostFree,
    /// On few leaves and few nodes.
    Near,
    /// By a placement of another crate.
    Gang(Arc<dyn GangPlacement>),
}

impl PlacementRule {
    /// Name in options and tables.
    pub fn name(&self) -> &'static str {
        match self {
            PlacementRule::Random(_) => "random",
            PlacementRule::DotProduct => "dot-product",
            PlacementRule::Clustering => "clustering",
            PlacementRule::Packing => "packing",
            PlacementRule::BestFit => "best-fit",
            PlacementRule::Fgd(_) => "fgd",
            PlacementRule::MostFree => "most-free",
            PlacementRule::Near => "near",
            PlacementRule::Gang(placement) => placement.name(),
        }
    }

    /// The score of a node on which the worker fits.
    fn score(&self, node: &ClusterNode, ask: &WorkerAsk) -> i64 {
        match self {
            PlacementRule::Random(_) | PlacementRule::Near | PlacementRule::Gang(_) => 0,
            PlacementRule::DotProduct => dot_product::score(node, ask),
            PlacementRule::Clustering => clustering::score(node, ask),
            PlacementRule::Packing => packing::score(node, ask),
            PlacementRule::BestFit => best_fit::score(node, ask),
            PlacementRule::Fgd(typical) => fgd::score(node, ask, typical).0,
            PlacementRule::MostFree => most_free::score(node, ask),
        }
    }
}

/// Score that is valid for one version of its node. None: the worker does not fit.
#[derive(Debug, Clone, Copy)]
struct KnownScore {
    version: u64,
    score: Option<i64>,
}

/// Places workers by one rule.
#[derive(Debug, Clone)]
pub struct Placer {
    rule: PlacementRule,
    draws: Random,
    known: BTreeMap<WorkerAsk, Vec<KnownScore>>,
    around: GangSurroundings,
    /// Whether gangs must be on as few nodes as possible, whatever the rule.
    few: bool,
}

impl Placer {
    /// Creates a placer with this rule.
    pub fn new(rule: PlacementRule) -> Placer {
        let seed = if let PlacementRule::Random(seed) = rule {
            seed
        } else {
            0
        };
        Placer {
            rule,
            draws: Random::from_product(seed),
            known: BTreeMap::new(),
            around: GangSurroundings::default(),
            few: false,
        }
    }

    /// Whether the rule looks at links, and so needs the surroundings of the next gang.
    pub(crate) fn looks_around(&self) -> bool {
        matches!(self.rule, PlacementRule::Gang(_) | PlacementRule::Near)
    }

    /// Takes the surroundings of the gang that is placed next.
    pub(crate) fn look_around(&mut self, around: GangSurroundings) {
        self.around = around;
    }

    /// Forgets scores, because nodes have other indexes from now on.
    pub(crate) fn forget_nodes(&mut self) {
        self.known.clear();
    }

    /// Takes places for a number of equal workers, on the named nodes if all fit there. Returns
    /// none and takes nothing if not all of them fit.
    pub(crate) fn gang(
        &mut self,
        nodes: &mut [ClusterNode],
        index: &BTreeMap<NodeId, usize>,
        ask: &WorkerAsk,
        workers: u32,
        before: &[WorkerPlace],
    ) -> Option<Vec<WorkerPlace>> {
        if before.len() == workers as usize {
            let mut at = before.iter().map(|place| index.get(&place.node).copied());
            let places = self.take_all(nodes, index, ask, workers, |_, _| at.next().flatten());
            if places.is_some() {
                return places;
            }
        }
        if self.looks_around() && nodes.iter().map(|node| u64::from(node.room(ask))).sum::<u64>() < u64::from(workers) {
            // A placement of another crate is not asked in vain.
            return None;
        }
        let mut last: Option<usize> = None;
        let mut left = workers;
        let mut taken: Vec<usize> = Vec::new();
        self.take_all(nodes, index, ask, workers, |placer, nodes| {
            last = last
                .filter(|at| nodes[*at].fits(ask))
                .or_else(|| placer.node(nodes, ask, workers, left, &taken));
            left -= 1;
            taken.extend(last.filter(|at| taken.last() != Some(at)));
            last
        })
    }

    /// [`gang`](Placer::gang), on as few nodes as possible.
    pub(crate) fn gang_on_few(
        &mut self,
        nodes: &mut [ClusterNode],
        index: &BTreeMap<NodeId, usize>,
        ask: &WorkerAsk,
        workers: u32,
    ) -> Option<Vec<WorkerPlace>> {
        self.few = true;
        let places = self.gang(nodes, index, ask, workers, &[]);
        self.few = false;
        places
    }

    fn take_all(
        &mut self,
        nodes: &mut [ClusterNode],
        index: &BTreeMap<NodeId, usize>,
        ask: &WorkerAsk,
        workers: u32,
        mut choose: impl FnMut(&mut Placer, &[ClusterNode]) -> Option<usize>,
    ) -> Option<Vec<WorkerPlace>> {
        let mut places = Vec::with_capacity(workers as usize);
        for _ in 0..workers {
            let fitting = choose(self, nodes).filter(|at| nodes.get(*at).is_some_and(|node| node.fits(ask)));
            let place = fitting.and_then(|at| {
                let shared = self.gpu(&nodes[at], ask);
                nodes[at].take(ask, shared)
            });
            let Some(place) = place else {
                for place in &places {
                    let WorkerPlace { node, .. } = place;
                    nodes[index[node]].give_back(ask, place);
                }
                return None;
            };
            places.push(place);
        }
        Some(places)
    }

    /// The node of the next of a gang's workers, of which `left` have none yet.
    fn node(
        &mut self,
        nodes: &[ClusterNode],
        ask: &WorkerAsk,
        workers: u32,
        left: u32,
        taken: &[usize],
    ) -> Option<usize> {
        match &self.rule {
            PlacementRule::Gang(placement) if !self.few => {
                return placement.node(nodes, &self.around, ask, workers, left, taken);
            }
            PlacementRule::Near => return near::node(nodes, self.around.links, ask, left, taken),
            _ if self.few => return near::node(nodes, self.around.links, ask, left, taken),
            _ => {}
        }
        if let PlacementRule::Random(_) = self.rule {
            let fitting: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at].fits(ask)).collect();
            return fitting.get(self.draws.index(fitting.len())).copied();
        }
        let unknown = KnownScore {
            version: u64::MAX,
            score: None,
        };
        let known = self.known.entry(*ask).or_default();
        known.resize(nodes.len(), unknown);
        let mut best: Option<(i64, usize)> = None;
        for (at, (node, known)) in nodes.iter().zip(known).enumerate() {
            if known.version != node.version() {
                known.version = node.version();
                known.score = node.fits(ask).then(|| self.rule.score(node, ask));
            }
            if let Some(score) = known.score.filter(|score| best.is_none_or(|(best, _)| *score > best)) {
                best = Some((score, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// The GPU of a node for a part of one.
    fn gpu(&mut self, node: &ClusterNode, ask: &WorkerAsk) -> Option<usize> {
        if !ask.shares() {
            return None;
        }
        match &self.rule {
            PlacementRule::Random(_) => {
                let fitting = |at: &usize| node.gpus[*at] >= ask.gpu_milli;
                let fitting: Vec<usize> = (0..node.gpus.len()).filter(fitting).collect();
                fitting.get(self.draws.index(fitting.len())).copied()
            }
            PlacementRule::Fgd(typical) => fgd::score(node, ask, typical).1,
            _ => node.tightest(ask),
        }
    }
}
