//! Jobs for the policies, on clusters of 64 GPUs. Nothing published is compared with what comes of
//! them: what is learnt is how policies compare on these mixes.
//!
//! * `openb`: pods of the public trace that asked for GPUs, ran, and ended within a day, in the
//!   order of the trace. Longer ones are services: ten of the pods would be half of all GPU time.
//!   A pod's number says whose of five tenants it is, the trace names none. 8 nodes of 8 GPUs.
//! * `gangs`: made from a seed. Gangs of 1 to 16 workers with a GPU each, runs from two minutes to
//!   eight hours, as many short as long ones by their logarithm, times of arrival drawn evenly. 16
//!   nodes of 4 GPUs.
//!
//! The time between arrivals is stretched evenly, so that what the jobs ask for is [`LOAD`] of what
//! the cluster has until the last of them comes.

use anyhow::{Context, Result};

use weft_cluster::placement::PlacementRule;
use weft_cluster::policies;
use weft_cluster::{ClusterJob, ClusterNode, Draws, JobId, NodeId, Ns, TenantId, WHOLE_GPU_MILLI, WorkerAsk};

use crate::openb::{OpenbTrace, TracePod};
use crate::world::{self, PolicyFigure, TrialJob, WorldRules};

/// Of the cluster's GPU time until the last arrival.
const LOAD: f64 = 0.9;
/// GPUs of a cluster.
const GPUS: u32 = 64;
/// Tenants.
const TENANTS: u32 = 5;
/// A pod that ran for longer is a service, seconds.
const LONGEST_S: f64 = 86_400.0;
/// What a start, resume or move takes: that of Pollux's simulator.
const BEGIN_NS: Ns = 30_000_000_000;
/// The shortest run of a gang.
const SHORTEST_GANG_NS: Ns = 120_000_000_000;

/// Jobs, and the cluster that they come to.
#[derive(Debug, Clone)]
pub struct Trial {
    /// What it is called in tables.
    pub name: &'static str,
    /// By arrival.
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
    }
}

/// Jobs of (time of arrival, run, workers, what each takes); times in any unit, runs in ns.
fn stretched(gpus: u32, rows: &[(f64, Ns, u32, WorkerAsk)]) -> Vec<TrialJob> {
    let milli = |workers: u32, ask: &WorkerAsk| f64::from(workers) * ask.total_milli() as f64;
    let gpu_ns = |row: &(f64, Ns, u32, WorkerAsk)| row.1 as f64 * milli(row.2, &row.3) / f64::from(WHOLE_GPU_MILLI);
    let asked: f64 = rows.iter().map(gpu_ns).sum();
    let first = rows.first().map_or(0.0, |row| row.0);
    let span = rows.last().map_or(0.0, |row| row.0 - first).max(1e-9);
    let stretch = asked / (LOAD * f64::from(gpus)) / span;
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
    };
    rows.iter().enumerate().map(trial).collect()
}

/// So many pods of the public trace.
pub fn openb(trace: &OpenbTrace, count: usize) -> Trial {
    let fits = |pod: &&TracePod| pod.ask.gpus > 0 && (1.0..LONGEST_S).contains(&pod.ran);
    let mut pods: Vec<&TracePod> = trace.pods.iter().filter(fits).collect();
    pods.sort_by(|a, b| a.came.total_cmp(&b.came));
    // From the middle: the trace opens with what ran already when it began.
    let skipped = pods.len().saturating_sub(count) / 2;
    let row = |pod: &TracePod| (pod.came, (pod.ran * 1e9) as Ns, 1, pod.ask);
    let rows: Vec<_> = pods.into_iter().skip(skipped).take(count).map(row).collect();
    Trial {
        name: "openb",
        jobs: stretched(GPUS, &rows),
        rules: rules(GPUS, 8, PlacementRule::BestFit),
    }
}

/// So many gangs of a seed.
pub fn gangs(seed: u64, count: usize) -> Trial {
    made("gangs", GPUS, seed, count)
}

/// So many gangs on ten thousand GPUs: how long a decision takes.
pub fn large(count: usize) -> Trial {
    made("large", 10_000, 1, count)
}

fn made(name: &'static str, gpus: u32, seed: u64, count: usize) -> Trial {
    let mut draws = Draws::new(seed);
    let mut came: Vec<u64> = (0..count).map(|_| draws.word() >> 16).collect();
    came.sort_unstable();
    let each = WorkerAsk {
        cpu_milli: 4_000,
        memory_mib: 16_384,
        gpus: 1,
        gpu_milli: WHOLE_GPU_MILLI,
    };
    let mut row = |came: u64| {
        let run = (SHORTEST_GANG_NS << draws.below(8)) / 1_000 * (1_000 + draws.below(1_000) as Ns);
        let workers = [1, 1, 1, 2, 4, 8, 16][draws.below(7)];
        (came as f64, run, workers, each)
    };
    let rows: Vec<_> = came.into_iter().map(&mut row).collect();
    Trial {
        name,
        jobs: stretched(gpus, &rows),
        rules: rules(gpus, 4, PlacementRule::MostFree),
    }
}

/// These policies on these trials, a figure the mean over those of one name.
pub fn run(trials: &[Trial], policies: &[&str]) -> Result<Vec<PolicyFigure>> {
    let mut figures = Vec::new();
    for same in trials.chunk_by(|a, b| a.name == b.name) {
        for policy in policies {
            let one = |trial: &Trial| {
                let policy = policies::named(policy).context("a policy")?;
                world::run(trial.name, &trial.jobs, policy, &trial.rules)
            };
            let each = same.iter().map(one).collect::<Result<Vec<PolicyFigure>>>()?;
            figures.extend(world::mean_figure(&each));
        }
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gangs_ask_for_the_load_until_the_last_of_them_comes() {
        let trial = gangs(1, 200);
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
