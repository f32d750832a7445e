// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs with arrivals and runs on a cluster, in virtual time.
//!
//! A job does its work only while all its workers have their GPUs. Each start, resume and move
//! holds the GPUs for a while before work continues. A job that lost its node would begin anew; no
//! node is lost here.
//!
//! # Mutual costs of jobs
//!
//! A job keeps its GPUs busy for a part of its time, its *duty*. The rest is its host's. On a GPU:
//!
//! * Plain sharing, as equals: busy time is stretched by the others' duty. A step of 1 takes
//!   `1 - d + d (1 + E)`, with the sum E of the others' duties. All jobs together never exceed
//!   the GPU.
//! * weft on the node: the job that holds the GPU keeps its speed except for [`NodeCosts::held`].
//!   In the second seat a step of 1 takes `1 - d + d / (1 - H)`, with the holding job's duty H. The
//!   guest gets the part [`NodeCosts::gaps`] of the resulting speed.
//!
//! A gang is as fast as its slowest worker. Links are shared by the same two formulas: flows of one
//! priority are equals, and those of a higher one go first. On several nodes a step of 1 takes
//! `1 + traffic`, with the traffic stretched by its most loaded link.
//!
//! A service runs for its time in any case. Its result is the 99th percentile of its requests'
//! latencies, as a multiple of alone: the largest that held for more than a hundredth of its time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use weft_cluster::placement::{PlacementRule, Placer};
use weft_cluster::policies::ClusterPolicy;
use weft_cluster::{
    Cluster, ClusterDecision, ClusterEvent, ClusterJob, ClusterLinks, ClusterNode, Flow, FlowRoute, JobId, JobMeasure,
    NodeId, Ns, TenantId, WHOLE_GPU_MILLI, WorkerPlace,
};

/// Job with its arrival and its run time on all its GPUs.
#[derive(Debug, Clone, Copy)]
pub struct TrialJob {
    /// The job as submitted.
    pub job: ClusterJob,
    /// Arrival, ns.
    pub came: Ns,
    /// Work on all its GPUs alone on one node, ns; for a service, the time for which it is there.
    pub work: Ns,
    /// Properties of its program. The lab sets its speed.
    pub program: JobMeasure,
}

/// Mutual costs of jobs on one GPU, in addition to the formulas: figures of the node lab.
#[derive(Debug, Clone, Copy)]
pub struct NodeCosts {
    /// Under weft: latency of the job that holds the GPU while the gaps are filled, mean and p99,
    /// relative to alone.
    pub held: [f64; 2],
    /// Filled part of the remaining time.
    pub gaps: f64,
    /// As equals: increase of a service's p99 by a neighbour that keeps the GPU busy.
    pub equals_p99: f64,
}

impl NodeCosts {
    /// Time-sliced devices, the worse ones (docs/benchmarks.md): at random, 40 % load, 1.009x and
    /// 1.007x; 0.69 of the batch work that the device's time allows; without weft 1.262x at p99.
    pub const TIME_SLICED: NodeCosts = NodeCosts {
        held: [1.009, 1.007],
        gaps: 0.69,
        equals_p99: 0.262,
    };
    /// MPS: 1.006x and 1.006x; 0.81; MPS without weft 1.673x.
    pub const MPS: NodeCosts = NodeCosts {
        held: [1.006, 1.006],
        gaps: 0.81,
        equals_p99: 0.673,
    };
}

/// Settings other than the policy.
#[derive(Debug, Clone)]
pub struct WorldRules {
    /// The cluster.
    pub nodes: Vec<ClusterNode>,
    /// The placement.
    pub placement: PlacementRule,
    /// Time for which a start holds GPUs without work, ns.
    pub begin: Ns,
    /// The same for a resume: its memory moves in again.
    pub resume: Ns,
    /// The same for a move.
    pub carry: Ns,
    /// Mutual costs of jobs on one GPU.
    pub costs: NodeCosts,
    /// Links between nodes. None: links have room for all.
    pub links: Option<ClusterLinks>,
}

/// Figures of one policy.
#[derive(Debug, Clone, Serialize)]
pub struct PolicyFigure {
    /// The jobs and the cluster.
    pub trial: String,
    /// The policy.
    pub policy: String,
    /// From submission to end, seconds. Services do not count.
    pub mean_s: f64,
    /// The same if each job had its GPUs at once, alone: no policy gets below it. Mean.
    pub alone_s: f64,
    /// From submission to end, 95th percentile.
    pub p95_s: f64,
    /// From submission to the first start, seconds, mean.
    pub wait_s: f64,
    /// Until the last job ended, seconds.
    pub makespan_s: f64,
    /// Work done, as a part of all GPU time until the last end.
    pub utilisation: f64,
    /// Work done, as a part of the GPU time that jobs held: neighbours, links and pauses take the
    /// rest.
    pub held: f64,
    /// The worst service's p99, relative to that without other jobs; 1 if there is none.
    pub service_p99: f64,
    /// Jain's index of tenants' mean slow-down: 1 if all are equal.
    pub tenants: f64,
    /// Jain's index of the GPU time that tenants had while each had jobs and some job waited.
    pub gpu_time: f64,
    /// Pauses for each job.
    pub pauses: f64,
    /// 99th percentile of the core's time at an event, us of this machine.
    pub decision_p99_us: f64,
}

/// Results of a run so far, for a trainer that learns from it in progress.
#[derive(Debug, Default)]
pub struct WorldTally {
    /// Virtual time, ms.
    pub now_ms: AtomicU64,
    /// Jobs in the system times their time there, ms. Services do not count.
    pub jobs_ms: AtomicU64,
    /// GPU time that jobs held without working, ms.
    pub lost_ms: AtomicU64,
}

/// Full speed.
const ALONE_PPM: u64 = 1_000_000;
/// Highest load of higher priorities that slows a lower one: none is starved for ever.
const MOST_ABOVE: f64 = 0.95;

#[derive(Debug, Clone)]
struct TrialRun {
    trial: TrialJob,
    /// Remaining work at `settled`, ns.
    left: Ns,
    settled: Ns,
    /// Start of its work, if it has its GPUs.
    works_from: Option<Ns>,
    speed_ppm: u64,
    /// Its expected end.
    ends: Ns,
    places: Vec<WorkerPlace>,
    second: bool,
    route: FlowRoute,
    started: Option<Ns>,
    ended: Option<Ns>,
    /// GPU-ns that it held.
    held: u128,
    /// For a service: its p99 values, relative to no other jobs, thousandths, with their durations.
    p99: BTreeMap<u32, Ns>,
    p99_now: u32,
    measured: JobMeasure,
}

impl TrialRun {
    fn new(trial: &TrialJob) -> TrialRun {
        TrialRun {
            trial: *trial,
            left: trial.work,
            settled: 0,
            works_from: None,
            speed_ppm: ALONE_PPM,
            ends: 0,
            places: Vec::new(),
            second: false,
            route: FlowRoute { path: 0, level: 0 },
            started: None,
            ended: None,
            held: 0,
            p99: BTreeMap::new(),
            p99_now: 1_000,
            measured: JobMeasure::default(),
        }
    }

    /// Remaining work at this time.
    fn left_at(&self, now: Ns) -> Ns {
        let from = self.works_from.map_or(now, |from| from.max(self.settled));
        let worked = u128::from(now.saturating_sub(from)) * u128::from(self.speed_ppm) / u128::from(ALONE_PPM);
        self.left - (worked as Ns).min(self.left)
    }

    fn settle(&mut self, now: Ns) {
        self.left = self.left_at(now);
        let passed = now - self.settled.min(now);
        if !self.places.is_empty() {
            self.held += if self.second {
                0
            } else {
                u128::from(passed) * self.milli()
            };
            if self.trial.program.serves {
                *self.p99.entry(self.p99_now).or_insert(0) += passed;
            }
        }
        self.settled = now;
    }

    fn done_ppm(&self, now: Ns) -> u32 {
        let left = u128::from(self.left_at(now)) * 1_000_000;
        1_000_000 - (left / u128::from(self.trial.work.max(1))) as u32
    }

    fn milli(&self) -> u128 {
        u128::from(self.trial.job.workers) * u128::from(self.trial.job.each.total_milli())
    }

    /// Part of the time for which it keeps each GPU busy without others, 0 to 1.
    fn duty(&self) -> f64 {
        let part = f64::from(self.trial.job.each.gpu_milli.min(WHOLE_GPU_MILLI)) / f64::from(WHOLE_GPU_MILLI);
        f64::from(self.trial.program.duty_milli) / 1e3 * part
    }

    /// 99th percentile of its requests: the largest that held for more than a hundredth of the
    /// time.
    fn request_p99(&self) -> f64 {
        let whole: Ns = self.p99.values().sum();
        let mut above = 0;
        for (milli, time) in self.p99.iter().rev() {
            above += time;
            if above * 100 > whole {
                return f64::from(*milli) / 1e3;
            }
        }
        1.0
    }
}

/// Speed of a flow or job that is busy for a part of its time. `equals` and `before`: busy parts of
/// its equals and of those with precedence.
fn beside(busy: f64, equals: f64, before: f64) -> f64 {
    let left = 1.0 - before.min(MOST_ABOVE);
    let speed = 1.0 / (1.0 - busy + busy * (1.0 + equals) / left);
    // Equals never have more than the resource.
    if busy + equals > left {
        speed.min(left / (busy + equals))
    } else {
        speed
    }
}

/// Per link: the priority of each flow on it, with the part of the time in which it would send on
/// an idle link.
type SentBy = BTreeMap<(u32, u32, bool), Vec<(u8, f64)>>;

/// Places of jobs, and their mutual costs.
#[derive(Debug)]
struct TrialFloor<'a> {
    rules: &'a WorldRules,
    runs: BTreeMap<JobId, TrialRun>,
    on: BTreeMap<(NodeId, u16), Vec<JobId>>,
    ends: BTreeSet<(Ns, JobId)>,
    /// Gangs that send, by their flow.
    flows: BTreeMap<JobId, Flow>,
    /// Whether second seats are the node broker's: the job that holds the GPU then goes first.
    background: bool,
}

impl TrialFloor<'_> {
    fn leave(&mut self, now: Ns, job: JobId, changed: &mut BTreeSet<JobId>) {
        let Some(run) = self.runs.get_mut(&job) else { return };
        run.settle(now);
        self.ends.remove(&(run.ends, job));
        for place in std::mem::take(&mut run.places) {
            for gpu in place.gpus {
                if let Some(there) = self.on.get_mut(&(place.node, gpu)) {
                    there.retain(|other| *other != job);
                    changed.extend(there.iter().copied());
                }
            }
        }
        (run.works_from, run.second) = (None, false);
        if self.flows.remove(&job).is_some() {
            changed.extend(self.flows.keys().copied());
        }
    }

    fn enter(&mut self, now: Ns, job: JobId, places: &[WorkerPlace], cost: Ns, changed: &mut BTreeSet<JobId>) {
        let Some(run) = self.runs.get_mut(&job) else { return };
        run.settle(now);
        run.places = places.to_vec();
        run.works_from = Some(now + cost);
        run.started.get_or_insert(now);
        for place in places {
            for gpu in &place.gpus {
                self.on.entry((place.node, *gpu)).or_default().push(job);
            }
        }
        let links = self.rules.links.unwrap_or(ClusterLinks {
            nodes_of_leaf: u32::MAX,
            paths: 1,
            levels: 1,
        });
        if let Some(flow) = Flow::of(job, run.milli() as u64, run.trial.program, places, &links) {
            self.flows.insert(job, flow);
            changed.extend(self.flows.keys().copied());
        }
        self.neighbours(job, changed);
    }

    fn neighbours(&self, job: JobId, changed: &mut BTreeSet<JobId>) {
        changed.insert(job);
        let Some(run) = self.runs.get(&job) else { return };
        for place in &run.places {
            for gpu in &place.gpus {
                changed.extend(self.on.get(&(place.node, *gpu)).into_iter().flatten());
            }
        }
    }

    /// Its speed, and its p99 if it is a service, both relative to those without other jobs.
    fn speed(&self, job: JobId, sent: &SentBy) -> (f64, f64) {
        let Some(run) = self.runs.get(&job) else {
            return (1.0, 1.0);
        };
        let costs = &self.rules.costs;
        let (mut slowest, mut p99) = (1.0f64, 1.0f64);
        for place in &run.places {
            for gpu in &place.gpus {
                let there = self.on.get(&(place.node, *gpu)).into_iter().flatten();
                let others = there
                    .filter(|other| **other != job)
                    .filter_map(|other| self.runs.get(other));
                let (mut equals, mut before, mut after) = (0.0, 0.0, false);
                for other in others {
                    match (self.background, run.second, other.second) {
                        (true, true, false) => before += other.duty(),
                        (true, false, true) => after = true,
                        _ => equals += other.duty(),
                    }
                }
                let mut speed = beside(run.duty(), equals, before);
                if before > 0.0 {
                    speed *= costs.gaps;
                }
                let mut late = 1.0 + costs.equals_p99 * equals;
                if after {
                    speed /= costs.held[0];
                    late *= costs.held[1];
                }
                (slowest, p99) = (slowest.min(speed), p99.max(late));
            }
        }
        if let Some(flow) = self.flows.get(&job) {
            let busy = flow.load_ppm() as f64 / 1e6;
            let mut worst = 1.0f64;
            for link in links_of(flow, run.route.path) {
                let (mut equals, mut before) = (-busy, 0.0);
                for (level, load) in sent.get(&link).into_iter().flatten() {
                    match level.cmp(&run.route.level) {
                        std::cmp::Ordering::Less => before += load,
                        std::cmp::Ordering::Equal => equals += load,
                        std::cmp::Ordering::Greater => {}
                    }
                }
                worst = worst.min(beside(busy, equals.max(0.0), before));
            }
            // `worst` is for a step on several nodes; the measure is the step on one node.
            slowest *= worst * 1_000.0 / (1_000.0 + f64::from(run.trial.program.traffic_milli));
        }
        (slowest, p99)
    }

    /// Updates the tally from one event to the next.
    fn tally(&self, from: Ns, to: Ns, tally: &WorldTally) {
        let ms = (to - from) / 1_000_000;
        let (mut jobs, mut lost) = (0, 0);
        for run in self.runs.values() {
            if run.trial.came > from || run.ended.is_some() || run.trial.program.serves {
                continue;
            }
            jobs += 1;
            if !run.places.is_empty() {
                lost += run.milli() as u64 * (ALONE_PPM - run.speed_ppm.min(ALONE_PPM));
            }
        }
        tally.now_ms.store(to / 1_000_000, Ordering::Relaxed);
        tally.jobs_ms.fetch_add(jobs * ms, Ordering::Relaxed);
        tally
            .lost_ms
            .fetch_add(lost / 1_000 * ms / 1_000_000, Ordering::Relaxed);
    }

    /// Sets the speed of jobs whose surroundings changed.
    fn go_on(&mut self, now: Ns, changed: &BTreeSet<JobId>) {
        let mut sent: SentBy = BTreeMap::new();
        if self.rules.links.is_some() && changed.iter().any(|job| self.flows.contains_key(job)) {
            for (job, flow) in &self.flows {
                let Some(run) = self.runs.get(job) else { continue };
                for link in links_of(flow, run.route.path) {
                    let load = flow.load_ppm() as f64 / 1e6;
                    sent.entry(link).or_default().push((run.route.level, load));
                }
            }
        }
        for job in changed {
            let (speed, p99) = self.speed(*job, &sent);
            let Some(run) = self.runs.get_mut(job).filter(|run| !run.places.is_empty()) else {
                continue;
            };
            run.settle(now);
            self.ends.remove(&(run.ends, *job));
            // A service stays for its time.
            run.speed_ppm = if run.trial.program.serves {
                ALONE_PPM
            } else {
                ((speed * ALONE_PPM as f64) as u64).clamp(1, ALONE_PPM)
            };
            run.p99_now = (p99 * 1e3).round() as u32;
            let from = run.works_from.unwrap_or(now).max(now);
            let takes = (u128::from(run.left) * u128::from(ALONE_PPM)).div_ceil(u128::from(run.speed_ppm));
            run.ends = from + takes as Ns;
            self.ends.insert((run.ends, *job));
        }
    }
}

/// Links of a flow: those of its nodes, and an uplink of each leaf if it leaves one.
fn links_of(flow: &Flow, path: u32) -> impl Iterator<Item = (u32, u32, bool)> + '_ {
    let leaves = flow.leaves.len() > 1;
    let up = flow.leaves.iter().filter(move |_| leaves);
    let nodes = flow.nodes.iter().map(|node| (node.0, 0, false));
    nodes.chain(up.map(move |leaf| (*leaf, path, true)))
}

/// GPU time that tenants received while each of them had jobs and some job waited.
#[derive(Debug, Default)]
struct Contended {
    /// Per tenant: jobs in the system, present thousandths of GPUs, and thousandths of GPU-ns
    /// received.
    tenants: BTreeMap<TenantId, (u64, u128, u128)>,
}

impl Contended {
    fn pass(&mut self, time: Ns) {
        if self.tenants.values().all(|(live, ..)| *live > 0) {
            for (_, now, received) in self.tenants.values_mut() {
                *received += *now * u128::from(time);
            }
        }
    }

    fn of(&mut self, run: &TrialRun) -> &mut (u64, u128, u128) {
        self.tenants.entry(run.trial.job.tenant).or_default()
    }

    fn index(&self) -> f64 {
        jain(self.tenants.values().map(|(.., received)| *received as f64 / 1e12))
    }
}

/// Jain's index: 1 if all are equal, one over their number if one has all.
fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum, squares) = values.fold((0.0, 0.0, 0.0), |(count, sum, squares), value| {
        (count + 1.0, sum + value, squares + value * value)
    });
    if squares == 0.0 {
        1.0
    } else {
        sum * sum / (count * squares)
    }
}

/// Runs the jobs under a policy until all have ended.
pub fn run(trial: &str, jobs: &[TrialJob], policy: Box<dyn ClusterPolicy>, rules: &WorldRules) -> Result<PolicyFigure> {
    run_watched(trial, jobs, policy, rules, None)
}

/// [`run`] that keeps a tally.
pub fn run_watched(
    trial: &str,
    jobs: &[TrialJob],
    policy: Box<dyn ClusterPolicy>,
    rules: &WorldRules,
    tally: Option<&WorldTally>,
) -> Result<PolicyFigure> {
    let name = policy.name().to_string();
    let background = policy.sharing().is_some_and(|rule| rule.level.is_some());
    let mut core = Cluster::new(policy, Placer::new(rules.placement.clone()));
    let mut out = Vec::new();
    for node in &rules.nodes {
        core.handle(0, ClusterEvent::NodeUp(node.clone()), &mut out);
    }
    if let Some(links) = rules.links {
        core.handle(0, ClusterEvent::Links(links), &mut out);
    }
    let mut arrivals: Vec<&TrialJob> = jobs.iter().collect();
    arrivals.sort_by_key(|trial| (trial.came, trial.job.id));
    let mut arrivals = arrivals.into_iter().peekable();
    let mut floor = TrialFloor {
        rules,
        runs: jobs.iter().map(|trial| (trial.job.id, TrialRun::new(trial))).collect(),
        on: BTreeMap::new(),
        ends: BTreeSet::new(),
        flows: BTreeMap::new(),
        background,
    };
    let (mut now, mut pauses) = (0, 0);
    let mut contended = Contended::default();
    for run in floor.runs.values() {
        contended.of(run);
    }
    let mut took_us: Vec<f64> = Vec::new();
    loop {
        let arrival = arrivals.peek().map(|trial| trial.came);
        let end = floor.ends.first().copied();
        // If no job waits and none is in a second seat, a look changes no job's GPUs.
        let look = core.look_every().filter(|_| core.waiting() > 0 || core.guests() > 0);
        let look = look.map(|every: Ns| now + every - now % every);
        let Some(next) = [arrival, end.map(|(at, _)| at), look].into_iter().flatten().min() else {
            break;
        };
        ensure!(
            arrival.is_some() || end.is_some() || core.waiting() == 0,
            "{name}: {} jobs wait and none runs",
            core.waiting()
        );
        if core.waiting() > 0 {
            contended.pass(next - now);
        }
        if let Some(tally) = tally {
            floor.tally(now, next, tally);
        }
        now = next;
        let mut changed = BTreeSet::new();
        let event = if let Some((_, job)) = end.filter(|(at, _)| *at == now) {
            floor.leave(now, job, &mut changed);
            let run = floor.runs.get_mut(&job).filter(|run| run.ended.is_none());
            let run = run.ok_or_else(|| anyhow::anyhow!("{name}: {job:?} ends twice"))?;
            (run.left, run.ended) = (0, Some(now));
            let milli = run.milli();
            let tenant = contended.of(run);
            (tenant.0, tenant.1) = (tenant.0 - 1, tenant.1 - milli);
            ClusterEvent::Ended(job)
        } else if arrival == Some(now) {
            let trial = arrivals.next().context("an arrival that was just seen")?;
            contended.tenants.entry(trial.job.tenant).or_default().0 += 1;
            // Its traffic and whether it serves are known; its duty shows when it runs.
            let known = JobMeasure {
                traffic_milli: trial.program.traffic_milli,
                serves: trial.program.serves,
                ..JobMeasure::default()
            };
            if known != JobMeasure::default() {
                core.handle(now, ClusterEvent::Measured(trial.job.id, known), &mut out);
            }
            ClusterEvent::Submitted(trial.job)
        } else {
            // Brokers report progress and measures now and then.
            for (_, job) in floor.ends.clone() {
                let Some(run) = floor.runs.get_mut(&job) else { continue };
                core.handle(now, ClusterEvent::Progress(job, run.done_ppm(now)), &mut out);
                let measure = JobMeasure {
                    speed_milli: (run.speed_ppm / 1_000) as u32,
                    ..run.trial.program
                };
                if run.works_from.is_some_and(|from| from < now) && run.measured != measure {
                    run.measured = measure;
                    core.handle(now, ClusterEvent::Measured(job, measure), &mut out);
                }
            }
            ClusterEvent::Look
        };
        out.clear();
        let began = Instant::now();
        core.handle(now, event, &mut out);
        took_us.push(began.elapsed().as_secs_f64() * 1e6);
        for decision in &out {
            let (job, begins) = match decision {
                ClusterDecision::Start(job, places) => (job, Some((places, rules.begin))),
                ClusterDecision::Resume(job, places) => (job, Some((places, rules.resume))),
                ClusterDecision::Move(job, places) => (job, Some((places, rules.carry))),
                ClusterDecision::Pause(job) | ClusterDecision::Requeue(job) => (job, None),
                ClusterDecision::Priority(job, _) => {
                    changed.insert(*job);
                    continue;
                }
                ClusterDecision::Route(job, route) => {
                    if let Some(run) = floor.runs.get_mut(job) {
                        run.route = *route;
                    }
                    changed.extend(floor.flows.keys().copied());
                    continue;
                }
                ClusterDecision::Refuse(job) => anyhow::bail!("{name}: {job:?} was refused"),
            };
            let run = floor
                .runs
                .get(job)
                .with_context(|| format!("{name}: {job:?} is unknown"))?;
            let milli = run.milli();
            if let Some((places, cost)) = begins {
                contended.of(run).1 += milli;
                floor.enter(now, *job, places, cost, &mut changed);
            } else {
                pauses += 1;
                contended.of(run).1 -= milli;
                floor.leave(now, *job, &mut changed);
            }
        }
        for job in changed.clone() {
            if let Some(run) = floor.runs.get_mut(&job) {
                run.settle(now);
                run.second = core.second_seat(job);
            }
            floor.neighbours(job, &mut changed);
        }
        floor.go_on(now, &changed);
    }
    let figure = figure([trial, &name], floor.runs.values(), rules, pauses, took_us)?;
    Ok(PolicyFigure {
        gpu_time: contended.index(),
        ..figure
    })
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(0.0)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    sum / f64::from(count.max(1))
}

fn figure<'a>(
    [trial, policy]: [&str; 2],
    runs: impl Iterator<Item = &'a TrialRun> + Clone,
    rules: &WorldRules,
    pauses: u64,
    mut took_us: Vec<f64>,
) -> Result<PolicyFigure> {
    let seconds = |ns: Ns| ns as f64 / 1e9;
    let never = runs
        .clone()
        .filter(|run| run.ended.is_none() || run.started.is_none())
        .count();
    ensure!(never == 0, "{policy}: {never} jobs never ended");
    let ended = |run: &TrialRun| run.ended.unwrap_or(0);
    let whole = |run: &TrialRun| seconds(ended(run) - run.trial.came);
    let batch = runs.clone().filter(|run| !run.trial.program.serves);
    let mut times: Vec<f64> = batch.clone().map(whole).collect();
    times.sort_by(f64::total_cmp);
    let makespan_s = runs.clone().map(|run| seconds(ended(run))).fold(0.0, f64::max);
    let gpus: f64 = rules.nodes.iter().map(|node| node.free_milli() as f64 / 1e3).sum();
    let work = |run: &TrialRun| {
        f64::from(run.trial.job.workers) * run.trial.job.each.total_milli() as f64 / 1e3 * seconds(run.trial.work)
    };
    let done = runs.clone().map(work).sum::<f64>();
    let mut slow: BTreeMap<TenantId, Vec<f64>> = BTreeMap::new();
    for run in batch.clone() {
        slow.entry(run.trial.job.tenant)
            .or_default()
            .push(whole(run) / seconds(run.trial.work.max(1)));
    }
    let slow: Vec<f64> = slow.into_values().map(|slow| mean(slow.into_iter())).collect();
    took_us.sort_by(f64::total_cmp);
    Ok(PolicyFigure {
        trial: trial.to_string(),
        policy: policy.to_string(),
        mean_s: mean(times.iter().copied()),
        alone_s: mean(batch.clone().map(|run| seconds(rules.begin + run.trial.work))),
        p95_s: quantile(&times, 0.95),
        wait_s: mean(batch.map(|run| seconds(run.started.unwrap_or(0) - run.trial.came))),
        makespan_s,
        utilisation: done / (gpus * makespan_s).max(1e-9),
        held: done / (runs.clone().map(|run| run.held as f64).sum::<f64>() / 1e12).max(1e-9),
        service_p99: runs.map(TrialRun::request_p99).fold(1.0, f64::max),
        tenants: jain(slow.into_iter()),
        gpu_time: 1.0,
        pauses: pauses as f64 / times.len().max(1) as f64,
        decision_p99_us: quantile(&took_us, 0.99),
    })
}

/// Mean of one policy's figures on several trials.
pub fn mean_figure(figures: &[PolicyFigure]) -> Option<PolicyFigure> {
    let first = figures.first()?;
    let of = |field: fn(&PolicyFigure) -> f64| mean(figures.iter().map(field));
    Some(PolicyFigure {
        trial: first.trial.clone(),
        policy: first.policy.clone(),
        mean_s: of(|figure| figure.mean_s),
        alone_s: of(|figure| figure.alone_s),
        p95_s: of(|figure| figure.p95_s),
        wait_s: of(|figure| figure.wait_s),
        makespan_s: of(|figure| figure.makespan_s),
        utilisation: of(|figure| figure.utilisation),
        held: of(|figure| figure.held),
        service_p99: figures.iter().map(|figure| figure.service_p99).fold(1.0, f64::max),
        tenants: of(|figure| figure.tenants),
        gpu_time: of(|figure| figure.gpu_time),
        pauses: of(|figure| figure.pauses),
        decision_p99_us: of(|figure| figure.decision_p99_us),
    })
}

/// Table for people.
pub fn table(figures: &[PolicyFigure]) -> String {
    let mut text = format!(
        "{:<9}{:<20}{:>8}{:>8}{:>9}{:>8}{:>11}{:>7}{:>7}{:>7}{:>9}{:>9}{:>8}{:>8}\n",
        "trial",
        "policy",
        "mean s",
        "alone s",
        "p95 s",
        "wait s",
        "makespan s",
        "util",
        "held",
        "p99 x",
        "tenants",
        "gpu time",
        "pauses",
        "p99 us"
    );
    for row in figures {
        text += &format!(
            "{:<9}{:<20}{:>8.0}{:>8.0}{:>9.0}{:>8.0}",
            row.trial, row.policy, row.mean_s, row.alone_s, row.p95_s, row.wait_s
        );
        text += &format!("{:>11.0}{:>7.3}{:>7.3}", row.makespan_s, row.utilisation, row.held);
        text += &format!("{:>7.3}{:>9.3}", row.service_p99, row.tenants);
        text += &format!("{:>9.3}{:>8.2}{:>8.0}\n", row.gpu_time, row.pauses, row.decision_p99_us);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_cluster::policies;
    use weft_cluster::{NodeId, WorkerAsk};

    const S: Ns = 1_000_000_000;

    fn trial(id: u64, came: Ns, work: Ns) -> TrialJob {
        let each = WorkerAsk {
            cpu_milli: 1,
            memory_mib: 1,
            gpus: 1,
            gpu_milli: 1_000,
        };
        let job = ClusterJob {
            id: JobId(id),
            tenant: TenantId(id as u32),
            workers: 1,
            each,
            expected: Some(work),
        };
        TrialJob {
            job,
            came,
            work,
            program: JobMeasure::default(),
        }
    }

    fn one_gpu(begin: Ns) -> WorldRules {
        WorldRules {
            nodes: vec![ClusterNode::new(NodeId(0), 100, 100, 1)],
            placement: PlacementRule::MostFree,
            begin,
            resume: begin,
            carry: begin,
            costs: NodeCosts::TIME_SLICED,
            links: None,
        }
    }

    #[test]
    fn two_jobs_on_one_gpu_under_fifo_and_the_shorter_first() {
        let jobs = [trial(1, 0, 1_000 * S), trial(2, 100 * S, 100 * S)];
        let fifo = run("two", &jobs, policies::named("fifo").unwrap(), &one_gpu(10 * S)).unwrap();
        // 1,010 s; 1,120 s less 100.
        assert_eq!((fifo.mean_s, fifo.makespan_s, fifo.pauses), (1_015.0, 1_120.0, 0.0));
        let shortest = run(
            "two",
            &jobs,
            policies::named("shortest-remaining").unwrap(),
            &one_gpu(10 * S),
        )
        .unwrap();
        // 110 s; then 910 s of work left, and a second beginning: 100 + 110 + 10 + 910.
        assert_eq!(
            (shortest.mean_s, shortest.makespan_s, shortest.pauses),
            (620.0, 1_130.0, 0.5)
        );
        assert!((shortest.utilisation - 1_100.0 / 1_130.0).abs() < 1e-12);
    }

    #[test]
    fn equals_stretch_each_other_and_who_holds_the_gpu_does_not() {
        assert_eq!(beside(1.0, 0.0, 0.0), 1.0);
        assert_eq!(beside(1.0, 1.0, 0.0), 0.5);
        assert_eq!(beside(0.5, 0.5, 0.0), 0.8);
        // Three jobs that are busy for 0.7 do not exceed the GPU.
        assert!(beside(0.7, 1.4, 0.0) * 2.1 <= 1.0 + 1e-9);
        assert!((beside(1.0, 0.0, 0.4) - 0.6).abs() < 1e-9);
        assert!(beside(0.5, 0.0, 1.0) > 0.0);
    }

    #[test]
    fn gaps_are_filled_beside_a_service_and_cost_it_what_the_node_lab_says() {
        let program = |duty_milli, serves| JobMeasure {
            duty_milli,
            serves,
            ..JobMeasure::default()
        };
        let mut jobs = [trial(1, 0, 10_000 * S), trial(2, 100 * S, 1_000 * S)];
        (jobs[0].program, jobs[1].program) = (program(400, true), program(1_000, false));
        let weft = run("gaps", &jobs, policies::named("weft").unwrap(), &one_gpu(0)).unwrap();
        // It comes at 100 s, when the service was never looked at. From the look at 120 s on its
        // speed is 0.6 x 0.69.
        let expected = 20.0 + 1_000.0 / (0.6 * 0.69);
        assert!((weft.mean_s - expected).abs() < 0.1, "{weft:?}");
        assert_eq!(weft.service_p99, 1.007);
        let alone = run("gaps", &jobs, policies::named("gittins").unwrap(), &one_gpu(0)).unwrap();
        assert_eq!((alone.mean_s, alone.service_p99), (10_900.0, 1.0));
    }
}
