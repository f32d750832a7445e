// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs for the policies, on clusters of 64 GPUs unless stated. The results are not compared with
//! published figures: they show how policies compare on these mixes.
//!
//! * `openb`: pods of the public trace that asked for GPUs, ran, and ended within a day, in the
//!   order of the trace. Longer ones are services: ten of the pods would be half of all GPU time. A
//!   pod's number determines its tenant among five, as the trace names none. 8 nodes of 8 GPUs.
//!   Pods on parts of one GPU are equals, and keep their part busy.
//! * `gangs`: made from a seed. Gangs of 1 to 16 workers with a GPU each, and runs from two minutes
//!   to eight hours. The logarithms of runs and the times of arrival are drawn evenly. 16 nodes of
//!   4 GPUs. The gangs keep their GPUs busy.
//! * `shared`: such gangs, busy for 0.2 to 0.9 of the time, 0.52 on average (as in Philly's
//!   cluster, Jeon et al., ATC 2019), and 16 services of one GPU for the whole time, busy for 0.1
//!   to 0.5 of it. All jobs ask for whole GPUs.
//! * `share70`, `share110`, `share130`: the same at loads of 0.7, 1.1 and 1.3.
//! * `links`: Crux's setting on a small scale. 96 GPUs in nodes of 4, four leaves with two uplinks
//!   each. Gangs of up to 32, whose traffic takes 0.1 to 1 of a step.
//! * `spread`: SCHED2's setting. `gangs` whose step takes up to 3 times as long on several nodes,
//!   on links with room for all; workers are packed on nodes that are in use.
//! * `large`: 10,000 GPUs that are full: the load is [`FULL_LOAD`].
//!
//! The time between arrivals is stretched evenly, so that the jobs' requests are [`LOAD`] of the
//! cluster's GPU time until the last of them comes.

use std::ops::RangeInclusive;

use anyhow::{Context, Result};

use weft_cluster::placement::PlacementRule;
use weft_cluster::policies::FifoOrder;
use weft_cluster::{
    ClusterJob, ClusterLinks, ClusterNode, JobId, JobMeasure, NodeId, Ns, TenantId, WHOLE_GPU_MILLI, WorkerAsk,
};
use weft_random::Random;

use crate::contenders;
use crate::contenders::sched2::Sched2Order;
use crate::openb::{OpenbTrace, TracePod};
use crate::world::{self, NodeCosts, PolicyFigure, TrialJob, WorldRules};

/// Requests of the jobs, as a part of the cluster's GPU time until the last arrival.
const LOAD: f64 = 0.9;
/// The same for the part `large`: a fifth more than the cluster has, so that jobs wait.
const FULL_LOAD: f64 = 1.2;
/// GPUs of a cluster.
const GPUS: u32 = 64;
/// Tenants.
const TENANTS: u32 = 5;
/// Run time in seconds beyond which a pod is a service.
const LONGEST_S: f64 = 86_400.0;
/// Time of a start: that of Pollux's simulator.
const BEGIN_NS: Ns = 30_000_000_000;
/// Bytes of a job on each of its GPUs, which move in again at a resume: its process stayed.
const MOVED_BYTES: f64 = 40e9;
/// Rate of such a move, bytes/s: less than PCIe 3.0 has.
const MOVED_BYTES_PER_S: f64 = 10e9;
/// Rates of other ways to move, bytes/s: the driver's checkpoint with driver 580 and 595 (as others
/// saw), copies over PCIe 4.0 and 5.0.
pub const OTHER_BYTES_PER_S: [(&str, f64); 4] = [
    ("1.1 GB/s", 1.1e9),
    ("4 GB/s", 4e9),
    ("20 GB/s", 20e9),
    ("50 GB/s", 50e9),
];
/// Time of a move: a checkpoint to another node at 25 Gbit/s, and in again.
const CARRY_NS: Ns = 20_000_000_000;
/// The shortest run of a gang.
const SHORTEST_GANG_NS: Ns = 120_000_000_000;

/// Jobs, and their cluster.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Name in tables.
    pub name: &'static str,
    /// Jobs by arrival.
    pub jobs: Vec<TrialJob>,
    /// The cluster.
    pub rules: WorldRules,
}

fn rules(gpus: u32, gpus_of_a_node: u32, placement: PlacementRule) -> WorldRules {
    let node = |id| ClusterNode::new(NodeId(id), 128_000, 1_048_576, gpus_of_a_node as usize);
    WorldRules {
        nodes: (0..gpus / gpus_of_a_node).map(node).collect(),
        placement,
        begin: BEGIN_NS,
        resume: resume_ns(MOVED_BYTES_PER_S),
        carry: CARRY_NS,
        costs: NodeCosts::TIME_SLICED,
        links: None,
    }
}

/// Time of a resume at this rate, bytes/s.
fn resume_ns(rate: f64) -> Ns {
    (MOVED_BYTES / rate * 1e9) as Ns
}

/// [`gangs`] whose memory moves at this rate, bytes/s, under this name.
pub fn gangs_at((name, rate): (&'static str, f64), seed: u64, count: usize) -> Trial {
    let mut trial = Trial {
        name,
        ..gangs(seed, count)
    };
    trial.rules.resume = resume_ns(rate);
    trial
}

/// Jobs of (time of arrival, run, workers, worker's request); times in any unit, runs in ns.
fn stretched(gpus: u32, load: f64, rows: &[(f64, Ns, u32, WorkerAsk)]) -> Vec<TrialJob> {
    let milli = |workers: u32, ask: &WorkerAsk| f64::from(workers) * ask.total_milli() as f64;
    let gpu_ns = |row: &(f64, Ns, u32, WorkerAsk)| row.1 as f64 * milli(row.2, &row.3) / f64::from(WHOLE_GPU_MILLI);
    let asked: f64 = rows.iter().map(gpu_ns).sum();
    let first = rows.first().map_or(0.0, |row| row.0);
    let span = rows.last().map_or(0.0, |row| row.0 - first).max(1e-9);
    let stretch = asked / (load * f64::from(gpus)) / span;
    let trial = |(number, (came, work, workers, each)): (usize, &(f64, Ns, u32, WorkerAsk))| TrialJob {
        job: ClusterJob {
            id: JobId(number as u64),
            tenant: TenantId(number as u32 % TENANTS),
            workers: *workers,
            each: *each,
            expected: Some(*work),
        },
        came: ((came - first) * stretch) as Ns,
        work: *work,
        program: JobMeasure::default(),
    };
    rows.iter().enumerate().map(trial).collect()
}

/// `count` pods of the public trace.
pub fn openb(trace: &OpenbTrace, count: usize) -> Trial {
    let fits = |pod: &&TracePod| pod.ask.gpus > 0 && (1.0..LONGEST_S).contains(&pod.ran);
    let mut pods: Vec<&TracePod> = trace.pods.iter().filter(fits).collect();
    pods.sort_by(|a, b| a.came.total_cmp(&b.came));
    // From the middle: the trace begins with pods that were already running.
    let skipped = pods.len().saturating_sub(count) / 2;
    let row = |pod: &TracePod| (pod.came, (pod.ran * 1e9) as Ns, 1, pod.ask);
    let rows: Vec<_> = pods.into_iter().skip(skipped).take(count).map(row).collect();
    Trial {
        name: "openb",
        jobs: stretched(GPUS, LOAD, &rows),
        rules: rules(GPUS, 8, PlacementRule::BestFit),
    }
}

/// `count` gangs of a seed.
pub fn gangs(seed: u64, count: usize) -> Trial {
    Trial {
        name: "gangs",
        jobs: made([GPUS, GPUS], LOAD, &[1, 1, 1, 2, 4, 8, 16], seed, count),
        rules: rules(GPUS, 4, PlacementRule::MostFree),
    }
}

/// `count` gangs on ten thousand GPUs that are full, for the time of a decision.
pub fn large(count: usize) -> Trial {
    Trial {
        name: "large",
        jobs: made([10_000, 10_000], FULL_LOAD, &[1, 1, 1, 2, 4, 8, 16], 1, count),
        rules: rules(10_000, 4, PlacementRule::MostFree),
    }
}

/// Services on a quarter of the GPUs, and `count` gangs that do not keep theirs busy.
pub fn shared(seed: u64, count: usize, costs: NodeCosts) -> Trial {
    shared_at("shared", LOAD, seed, count, costs)
}

/// Names and loads of the variants of [`shared`], relative to the GPUs without services.
pub const SHARED_LOADS: [(&str, f64); 3] = [("share70", 0.7), ("share110", 1.1), ("share130", 1.3)];

/// [`shared`] at another load, under this name.
pub fn shared_at(name: &'static str, load: f64, seed: u64, count: usize, costs: NodeCosts) -> Trial {
    let services = GPUS / 4;
    let mut jobs = made([GPUS - services, GPUS], load, &[1, 1, 1, 2, 4, 8, 16], seed, count);
    let mut draws = Random::from_product(seed ^ 0x5eed);
    for trial in &mut jobs {
        trial.program.duty_milli = [200, 350, 500, 650, 900][draws.index(5)];
    }
    let last = jobs.iter().map(|trial| trial.came).max().unwrap_or(0);
    let service = |number: u32| {
        let id = JobId(u64::from(number) + 1_000_000);
        let mut trial = TrialJob {
            came: 0,
            work: last,
            ..jobs[0]
        };
        trial.job = ClusterJob {
            id,
            tenant: TenantId(number % TENANTS),
            workers: 1,
            expected: Some(last),
            ..trial.job
        };
        trial.program = JobMeasure {
            duty_milli: [100, 200, 300, 400, 500][draws.index(5)],
            serves: true,
            ..JobMeasure::default()
        };
        trial
    };
    let services: Vec<TrialJob> = (0..services).map(service).collect();
    jobs.extend(services);
    Trial {
        name,
        jobs,
        rules: WorldRules {
            costs,
            ..rules(GPUS, 4, PlacementRule::MostFree)
        },
    }
}

/// Gangs whose traffic meets on uplinks.
pub fn links(seed: u64, count: usize) -> Trial {
    links_at("links", LOAD, seed, count)
}

/// [`links`] at another load, under this name.
pub fn links_at(name: &'static str, load: f64, seed: u64, count: usize) -> Trial {
    let mut jobs = made([96, 96], load, &[1, 2, 4, 8, 8, 16, 32], seed, count);
    let mut draws = Random::from_product(seed ^ 0x114c);
    for trial in &mut jobs {
        trial.program.traffic_milli = 100 * (1 + draws.below(10) as u32);
    }
    let tree = ClusterLinks {
        nodes_of_leaf: 6,
        paths: 2,
        levels: 8,
    };
    Trial {
        name,
        jobs,
        rules: WorldRules {
            links: Some(tree),
            ..rules(96, 4, PlacementRule::MostFree)
        },
    }
}

/// Gangs that are much slower on several nodes.
pub fn spread(seed: u64, count: usize) -> Trial {
    spread_at("spread", LOAD, seed, count)
}

/// [`spread`] at another load, under this name.
pub fn spread_at(name: &'static str, load: f64, seed: u64, count: usize) -> Trial {
    let mut jobs = made([GPUS, GPUS], load, &[1, 1, 2, 2, 3, 4, 8], seed, count);
    let mut draws = Random::from_product(seed ^ 0x594d);
    for trial in &mut jobs {
        trial.program.traffic_milli = 500 * draws.below(5) as u32;
    }
    Trial {
        name,
        jobs,
        rules: rules(GPUS, 4, PlacementRule::Packing),
    }
}

/// Training worlds of learnt placements: `links`, with load, traffic and leaf size by the seed.
pub fn links_varied(seed: u64, count: usize) -> Trial {
    let mut draws = Random::from_product(seed ^ 0x1ea7);
    let load = 0.3 + 0.1 * draws.below(6) as f64;
    let mut trial = links_at("varied", load, seed, count);
    let traffic = 50 + 50 * draws.below(3) as u32;
    for job in &mut trial.jobs {
        job.program.traffic_milli = job.program.traffic_milli * traffic / 100;
    }
    trial.rules.links = Some(ClusterLinks {
        nodes_of_leaf: [4, 6, 8][draws.index(3)],
        paths: 2 + draws.below(2) as u32,
        levels: 8,
    });
    trial
}

/// Training worlds of SCHED2's network: `spread`, with the load by the seed.
pub fn spread_varied(seed: u64, count: usize) -> Trial {
    let load = 0.5 + 0.1 * Random::from_product(seed ^ 0x1ea7).below(6) as f64;
    spread_at("varied", load, seed, count)
}

/// Gangs of these sizes on `gpus` GPUs, with a load that fills `loaded` of them.
fn made([loaded, gpus]: [u32; 2], load: f64, sizes: &[u32; 7], seed: u64, count: usize) -> Vec<TrialJob> {
    let mut draws = Random::from_product(seed);
    let mut came: Vec<u64> = (0..count).map(|_| draws.word() >> 16).collect();
    came.sort_unstable();
    let each = WorkerAsk {
        cpu_milli: 4_000,
        memory_mib: 16_384,
        gpus: 1,
        gpu_milli: WHOLE_GPU_MILLI,
    };
    let mut row = |came: u64| {
        let run = (SHORTEST_GANG_NS << draws.index(8)) / 1_000 * (1_000 + draws.index(1_000) as Ns);
        let workers = sizes[draws.index(7)].min(gpus);
        (came as f64, run, workers, each)
    };
    let rows: Vec<_> = came.into_iter().map(&mut row).collect();
    stretched(loaded, load, &rows)
}

/// Figures of these policies on these trials, each the mean over the trials of one name.
pub fn run(trials: &[Trial], policies: &[&str]) -> Result<Vec<PolicyFigure>> {
    let mut figures = Vec::new();
    for same in trials.chunk_by(|a, b| a.name == b.name) {
        for policy in policies {
            let one = |trial: &Trial| {
                let policy = contenders::named(policy).context("a policy")?;
                world::run(trial.name, &trial.jobs, policy, &trial.rules)
            };
            let each = same.iter().map(one).collect::<Result<Vec<PolicyFigure>>>()?;
            figures.extend(world::mean_figure(&each));
        }
    }
    Ok(figures)
}

/// `links` at the loads for judging a learnt placement, on seeds outside its training. It was
/// trained at 0.3 to 0.8.
pub fn placing(count: usize, seeds: RangeInclusive<u64>) -> Vec<Trial> {
    let loads = [("place30", 0.3), ("place50", 0.5), ("place70", 0.7), ("place90", 0.9)];
    let of = |(name, load): (&'static str, f64)| seeds.clone().map(move |seed| links_at(name, load, seed, count));
    loads.into_iter().flat_map(of).collect()
}

/// Rules with which a learnt placement is compared.
pub fn placements() -> Vec<PlacementRule> {
    vec![
        PlacementRule::Random(1),
        PlacementRule::DotProduct,
        PlacementRule::Packing,
        PlacementRule::BestFit,
        PlacementRule::MostFree,
        PlacementRule::Near,
    ]
}

/// Figures of these placements on these trials, with jobs in the order of their arrival with
/// backfill.
pub fn place(trials: &[Trial], placements: &[PlacementRule]) -> Result<Vec<PolicyFigure>> {
    let mut figures = Vec::new();
    for same in trials.chunk_by(|a, b| a.name == b.name) {
        for placement in placements {
            let one = |trial: &Trial| {
                let rules = WorldRules {
                    placement: placement.clone(),
                    ..trial.rules.clone()
                };
                world::run(trial.name, &trial.jobs, Box::new(FifoOrder::passing()), &rules)
            };
            let each = same.iter().map(one).collect::<Result<Vec<PolicyFigure>>>()?;
            let mean = world::mean_figure(&each);
            figures.extend(mean.map(|figure| PolicyFigure {
                policy: placement.name().to_string(),
                ..figure
            }));
        }
    }
    Ok(figures)
}

/// Rounds of the search, its tries in each, and the best of these that start the next.
const TRAINING: [usize; 3] = [8, 16, 4];

/// Weights for SCHED2's stand-in, by cross-entropy on seeds of `spread` that no figure uses.
pub fn train() -> Result<()> {
    let trials: Vec<Trial> = (101..=103).map(|seed| spread(seed, 200)).collect();
    let mut draws = Random::from_product(7);
    // A sum of twelve is normal enough.
    let mut normal = || {
        (0..12)
            .map(|_| (draws.word() >> 11) as f64 / (1u64 << 53) as f64)
            .sum::<f64>()
            - 6.0
    };
    let (mut at, mut width) = (Sched2Order::WEIGHTS, [1.0, 1.0, 1.0, 0.02]);
    for round in 0..TRAINING[0] {
        let mut tried: Vec<(f64, [f64; 4])> = Vec::new();
        for _ in 0..TRAINING[1] {
            let weights: [f64; 4] = std::array::from_fn(|of| at[of] + width[of] * normal());
            let mut sum = 0.0;
            for trial in &trials {
                let policy = Box::new(Sched2Order::new(weights));
                sum += world::run(trial.name, &trial.jobs, policy, &trial.rules)?.mean_s;
            }
            tried.push((sum / trials.len() as f64, weights));
        }
        tried.sort_by(|a, b| a.0.total_cmp(&b.0));
        let best = &tried[..TRAINING[2]];
        for of in 0..4 {
            let mean = best.iter().map(|(_, weights)| weights[of]).sum::<f64>() / best.len() as f64;
            let spread = best
                .iter()
                .map(|(_, weights)| (weights[of] - mean).powi(2))
                .sum::<f64>()
                / best.len() as f64;
            (at[of], width[of]) = (mean, spread.sqrt().max(width[of] * 0.3));
        }
        println!("round {round}: best {:.0} s, weights {at:.3?}", best[0].0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gangs_ask_for_the_load_until_the_last_of_them_comes() {
        let trial = gangs(1, 200);
        assert!(
            shared(1, 40, NodeCosts::MPS)
                .jobs
                .iter()
                .filter(|job| job.program.serves)
                .count()
                == 16
        );
        let asked: f64 = trial
            .jobs
            .iter()
            .map(|job| job.work as f64 * f64::from(job.job.workers))
            .sum();
        let last = trial.jobs.last().unwrap().came as f64;
        assert!((asked / last / 64.0 - LOAD).abs() < 1e-6, "{}", asked / last / 64.0);
        assert!(trial.jobs.is_sorted_by_key(|job| job.came));
        let longest = trial.jobs.iter().map(|job| job.work).max().unwrap();
        assert!(
            (4 * 3_600_000_000_000..9 * 3_600_000_000_000).contains(&longest),
            "{longest}"
        );
        assert_ne!(gangs(2, 200).jobs[0].work, trial.jobs[0].work);
    }
}
