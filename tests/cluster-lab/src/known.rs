// SPDX-License-Identifier: MIT OR Apache-2.0
//! A known figure: how much of a cluster's GPUs six placements allocate, on the public trace openb.
//!
//! Published with FGD (USENIX ATC 2023) in the results of its simulator, a fork of the Kubernetes
//! scheduler. Its rules, as far as they matter here:
//!
//! * The trace's pods in random order, then pods drawn from them, until they ask for 1.3 times the
//!   GPUs of the cluster. None ends. A pod that does not fit is dropped.
//! * Pods ask for CPU, memory and GPUs; models of GPUs play no part in this variant of the trace.
//! * Among nodes with equal points the first of a random order takes the pod, one order for each
//!   seed.
//! * The figure is the mean over ten seeds of the allocated part of all GPUs while arrivals round
//!   to 130 % of them.
//!
//! Another generator draws the chance, so the seeds are other samples of the same distribution.

use serde::Serialize;

use weft_cluster::placement::{PlacementRule, Placer, TypicalAsk, typical_asks};
use weft_cluster::policies::FifoOrder;
use weft_cluster::{Cluster, ClusterDecision, ClusterEvent, ClusterJob, JobId, TenantId};
use weft_random::Random;

use crate::openb::{OpenbTrace, TracePod};

/// Total requests of arrivals, as a multiple of the cluster's GPUs.
const LOAD: f64 = 1.3;
/// The first seed.
const FIRST_SEED: u64 = 42;
/// Largest relative difference of a figure from the published one.
const TOLERANCE: f64 = 0.01;

/// Published parts of the cluster's GPUs, per cent.
const PUBLISHED: [(&str, f64); 6] = [
    ("random", 87.5),
    ("dot-product", 90.9),
    ("clustering", 91.9),
    ("packing", 92.0),
    ("best-fit", 93.1),
    ("fgd", 95.4),
];

/// A placement's figure.
#[derive(Debug, Clone, Serialize)]
pub struct PlacementFigure {
    /// The placement.
    pub placement: String,
    /// Part of all GPUs, per cent, by seed.
    pub seeds: Vec<f64>,
    /// Their mean.
    pub allocated: f64,
    /// As published.
    pub published: f64,
    /// Within the tolerance.
    pub met: bool,
}

fn rule(name: &str, seed: u64, typical: &[TypicalAsk]) -> PlacementRule {
    match name {
        "random" => PlacementRule::Random(seed),
        "dot-product" => PlacementRule::DotProduct,
        "clustering" => PlacementRule::Clustering,
        "packing" => PlacementRule::Packing,
        "best-fit" => PlacementRule::BestFit,
        _ => PlacementRule::Fgd(typical.to_vec()),
    }
}

/// The pods of a seed in their order.
fn arrivals(trace: &OpenbTrace, draws: &mut Random) -> Vec<TracePod> {
    let mut pods = trace.pods.clone();
    draws.shuffle(&mut pods);
    let wanted = LOAD * trace.gpu_milli() as f64;
    let mut asked: u64 = pods.iter().map(|pod| pod.ask.total_milli()).sum();
    while asked as f64 > wanted && !pods.is_empty() {
        let gone = pods.remove(draws.index(pods.len()));
        asked -= gone.ask.total_milli();
    }
    loop {
        let pod = trace.pods[draws.index(trace.pods.len())];
        if (asked + u64::from(pod.ask.gpu_milli)) as f64 > wanted {
            return pods;
        }
        asked += pod.ask.total_milli();
        pods.push(pod);
    }
}

/// Part of the GPUs that are allocated while arrivals round to 130 % of them, per cent.
fn allocated(trace: &OpenbTrace, name: &str, seed: u64, typical: &[TypicalAsk]) -> f64 {
    let mut draws = Random::from_product(seed);
    let pods = arrivals(trace, &mut draws);
    let mut nodes = trace.nodes.clone();
    draws.shuffle(&mut nodes);
    let mut core = Cluster::new(Box::new(FifoOrder::passing()), Placer::new(rule(name, seed, typical)));
    let mut out = Vec::new();
    for node in nodes {
        core.handle(0, ClusterEvent::NodeUp(node), &mut out);
    }
    let total = trace.gpu_milli() as f64;
    let (mut asked, mut used) = (0, 0);
    let mut at_load = Vec::new();
    for (number, pod) in pods.iter().enumerate() {
        let job = ClusterJob {
            id: JobId(number as u64),
            tenant: TenantId(0),
            workers: 1,
            each: pod.ask,
            expected: None,
        };
        out.clear();
        core.handle(number as u64, ClusterEvent::Submitted(job), &mut out);
        asked += pod.ask.total_milli();
        if out
            .iter()
            .any(|decision| matches!(decision, ClusterDecision::Start(..)))
        {
            used += pod.ask.total_milli();
        } else {
            core.handle(number as u64, ClusterEvent::Ended(job.id), &mut out);
        }
        let arrived = (asked as f64 / total * 100.0).round();
        if (arrived - 100.0 * LOAD).abs() <= 1.0 {
            at_load.push((arrived, used as f64 / total * 100.0));
        }
    }
    // If no arrival rounds to the load, those within one per cent of it count, as published.
    if at_load.iter().any(|(arrived, _)| *arrived == 100.0 * LOAD) {
        at_load.retain(|(arrived, _)| *arrived == 100.0 * LOAD);
    }
    at_load.iter().map(|(_, used)| used).sum::<f64>() / at_load.len().max(1) as f64
}

/// Figures of every placement with this number of seeds.
pub fn run(trace: &OpenbTrace, seeds: u64, threads: usize) -> Vec<PlacementFigure> {
    let typical = typical_asks(trace.pods.iter().map(|pod| pod.ask));
    let cases: Vec<(&str, u64)> = PUBLISHED
        .iter()
        .flat_map(|(name, _)| (0..seeds).map(move |seed| (*name, FIRST_SEED + seed)))
        .collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let found = std::sync::Mutex::new(vec![0.0; cases.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(at) =
                    Some(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)).filter(|at| *at < cases.len())
                {
                    let (name, seed) = cases[at];
                    let figure = allocated(trace, name, seed, &typical);
                    found.lock().unwrap_or_else(|broken| broken.into_inner())[at] = figure;
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_else(|broken| broken.into_inner());
    let figure = |((name, published), seeds): (&(&str, f64), &[f64])| {
        let mean = seeds.iter().sum::<f64>() / seeds.len().max(1) as f64;
        PlacementFigure {
            placement: (*name).to_string(),
            seeds: seeds.to_vec(),
            allocated: mean,
            published: *published,
            met: (mean - published).abs() <= TOLERANCE * published,
        }
    };
    PUBLISHED
        .iter()
        .zip(found.chunks(seeds.max(1) as usize))
        .map(figure)
        .collect()
}

/// Table for people.
pub fn table(figures: &[PlacementFigure]) -> String {
    let mut text = String::from("GPUs allocated on openb at 130 % load, %, mean of the seeds\n");
    text += &format!(
        "{:<14}{:>10}{:>10}{:>8}  {:<16}\n",
        "placement", "allocated", "published", "apart", "seeds"
    );
    for figure in figures {
        let (least, most) = figure.seeds.iter().fold((f64::MAX, f64::MIN), |(least, most), seed| {
            (least.min(*seed), most.max(*seed))
        });
        text += &format!(
            "{:<14}{:>10.2}{:>10.1}{:>+7.2}%  {:.2} to {:.2}  {}\n",
            figure.placement,
            figure.allocated,
            figure.published,
            (figure.allocated / figure.published - 1.0) * 100.0,
            least,
            most,
            if figure.met { "met" } else { "MISSED" }
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_cluster::{ClusterNode, NodeId, WorkerAsk};

    fn pod(gpus: u32, gpu_milli: u32) -> TracePod {
        let ask = WorkerAsk {
            cpu_milli: 1_000,
            memory_mib: 1,
            gpus,
            gpu_milli,
        };
        TracePod {
            ask,
            came: 0.0,
            ran: 0.0,
        }
    }

    fn trace(pods: Vec<TracePod>) -> OpenbTrace {
        let nodes = (0..50)
            .map(|at| ClusterNode::new(NodeId(at), 96_000, 1_000, 2))
            .collect();
        OpenbTrace { nodes, pods }
    }

    #[test]
    fn pods_are_drawn_until_they_ask_for_the_load() {
        let count = |pods| arrivals(&trace(pods), &mut Random::from_product(1)).len();
        assert_eq!(count(vec![pod(1, 500); 80]), 260);
        // As published, the last pod counts with one GPU: 32 ask for 128, and 129 is within 130.
        assert_eq!(count(vec![pod(4, 1_000); 10]), 33);
    }

    #[test]
    fn what_nobody_can_place_is_not_allocated() {
        let typical = typical_asks([pod(1, 600).ask].into_iter());
        for (name, _) in PUBLISHED {
            // 0.6 of each GPU: 40 % can never be allocated.
            let figure = allocated(&trace(vec![pod(1, 600); 80]), name, 42, &typical);
            assert!((figure - 60.0).abs() < 1e-9, "{name}: {figure}");
        }
    }
}
