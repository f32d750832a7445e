// SPDX-License-Identifier: MIT OR Apache-2.0
//! Order in which jobs start under each policy, in virtual time, for comparison with a real
//! engine's. `scripts/cluster slurm --order` builds and starts it.
//!
//! Jobs come as JSON on stdin, the orders go as JSON to stdout. A job that began is not paused, as
//! under an engine that takes no GPUs away. Nodes come at their own time: jobs may wait for them,
//! and then start in the policy's order.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use weft_cluster::placement::{PlacementRule, Placer};
use weft_cluster::policies::{self, ClusterPolicy};
use weft_cluster::{
    Cluster, ClusterDecision, ClusterEvent, ClusterJob, ClusterNode, JobId, NodeId, Ns, TenantId, WHOLE_GPU_MILLI,
    WorkerAsk,
};

const SECOND_NS: f64 = 1e9;
const MINUTE_NS: Ns = 60_000_000_000;

#[derive(Debug, Deserialize)]
struct OrderQuestion {
    policies: Vec<String>,
    nodes: u32,
    /// GPUs of each node.
    gpus: usize,
    /// When the nodes come.
    open_s: f64,
    jobs: Vec<OrderJob>,
}

#[derive(Debug, Deserialize)]
struct OrderJob {
    id: u64,
    tenant: u32,
    gpus: u32,
    came_s: f64,
    run_s: f64,
    limit_min: u64,
}

fn ns(seconds: f64) -> Ns {
    (seconds * SECOND_NS) as Ns
}

/// The jobs' numbers, the first to start first.
fn starts(policy: Box<dyn ClusterPolicy>, question: &OrderQuestion) -> Result<Vec<u64>> {
    let name = policy.name();
    // Arrivals at one time are known together, as to an engine that looks at its queue.
    let mut core = Cluster::for_engine(policy, Placer::new(PlacementRule::Packing));
    core.set_pausing(false);
    let jobs: BTreeMap<JobId, &OrderJob> = question.jobs.iter().map(|job| (JobId(job.id), job)).collect();
    ensure!(jobs.len() == question.jobs.len(), "two jobs of one number");
    let mut events: Vec<(Ns, u64, ClusterEvent)> = question.jobs.iter().map(arrival).collect();
    for node in 0..question.nodes {
        let node = ClusterNode::new(NodeId(node), u32::MAX, u32::MAX, question.gpus);
        events.push((ns(question.open_s), u64::MAX, ClusterEvent::NodeUp(node)));
    }
    events.sort_by_key(|(at, number, _)| (*at, *number));
    let mut events = events.into_iter().peekable();
    let mut ends: BTreeSet<(Ns, JobId)> = BTreeSet::new();
    let (mut now, mut order, mut out) = (0, Vec::new(), Vec::new());
    loop {
        let next = events.peek().map(|(at, ..)| *at);
        let end = ends.first().copied();
        let look = core.look_every().filter(|_| core.waiting() > 0 && !ends.is_empty());
        let look = look.map(|every| now + every - now % every);
        let Some(at) = [next, end.map(|(at, _)| at), look].into_iter().flatten().min() else {
            break;
        };
        now = at;
        while let Some((_, job)) = ends.first().copied().filter(|(end, _)| *end == now) {
            ends.pop_first();
            core.handle(now, ClusterEvent::Ended(job), &mut out);
        }
        while let Some((.., event)) = events.next_if(|(at, ..)| *at == now) {
            core.handle(now, event, &mut out);
        }
        core.advise(now, &mut out);
        for decision in out.drain(..) {
            match decision {
                ClusterDecision::Start(job, places) => {
                    let run = jobs.get(&job).with_context(|| format!("{job:?} is unknown"))?.run_s;
                    ends.insert((now + ns(run).max(1), job));
                    order.push(job.0);
                    core.handle(now, ClusterEvent::Began(job, places, now), &mut Vec::new());
                }
                ClusterDecision::Priority(..) => {}
                other => anyhow::bail!("{name}: {other:?}, where none is paused or lost"),
            }
        }
    }
    ensure!(
        order.len() == jobs.len(),
        "{name}: {} of {} jobs started",
        order.len(),
        jobs.len()
    );
    Ok(order)
}

fn arrival(job: &OrderJob) -> (Ns, u64, ClusterEvent) {
    let each = WorkerAsk {
        cpu_milli: 0,
        memory_mib: 0,
        gpus: job.gpus,
        gpu_milli: WHOLE_GPU_MILLI,
    };
    let submitted = ClusterJob {
        id: JobId(job.id),
        tenant: TenantId(job.tenant),
        workers: 1,
        each,
        expected: Some(job.limit_min * MINUTE_NS),
    };
    (ns(job.came_s), job.id, ClusterEvent::Submitted(submitted))
}

fn main() -> ExitCode {
    let answer = || -> Result<String> {
        let question: OrderQuestion = serde_json::from_reader(std::io::stdin()).context("stdin")?;
        let mut orders = BTreeMap::new();
        for name in &question.policies {
            let policy = policies::named(name).with_context(|| format!("{name}: no such policy"))?;
            orders.insert(name, starts(policy, &question)?);
        }
        Ok(serde_json::to_string(&orders)?)
    };
    match answer() {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("weft-cluster-order: {error:#}");
            ExitCode::from(2)
        }
    }
}
