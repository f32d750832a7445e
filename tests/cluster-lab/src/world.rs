//! Jobs with arrivals and runs on a cluster, in virtual time.
//!
//! A job does its work only while all its workers have their GPUs. Each start, resume and move
//! holds the GPUs for [`WorldRules::begin`] before work goes on. A job that lost its node would
//! begin anew; no node is lost here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use weft_cluster::placement::{PlacementRule, Placer};
use weft_cluster::policies::ClusterPolicy;
use weft_cluster::{Cluster, ClusterDecision, ClusterEvent, ClusterJob, ClusterNode, JobId, Ns, TenantId};

/// A job, when it comes, and how long it runs on all its GPUs.
#[derive(Debug, Clone, Copy)]
pub struct TrialJob {
    /// What is submitted.
    pub job: ClusterJob,
    /// When, ns.
    pub came: Ns,
    /// Work on all its GPUs, ns.
    pub work: Ns,
}

/// What holds beside the policy.
#[derive(Debug, Clone)]
pub struct WorldRules {
    /// The cluster.
    pub nodes: Vec<ClusterNode>,
    /// The placement.
    pub placement: PlacementRule,
    /// How long a start, resume or move holds GPUs without work, ns.
    pub begin: Ns,
}

/// What came of it under one policy.
#[derive(Debug, Clone, Serialize)]
pub struct PolicyFigure {
    /// The jobs and the cluster.
    pub trial: String,
    /// The policy.
    pub policy: String,
    /// From submission to end, seconds.
    pub mean_s: f64,
    /// The same, at the 95th of a hundred.
    pub p95_s: f64,
    /// From submission to the first start, seconds, mean.
    pub wait_s: f64,
    /// Until the last job ended, seconds.
    pub makespan_s: f64,
    /// GPU time in which jobs worked, of all there was until the last end.
    pub utilisation: f64,
    /// Jain's index of tenants' mean slow-down: 1 where it is equal.
    pub tenants: f64,
    /// Jain's index of the GPU time that tenants had while each had jobs and somebody waited.
    pub gpu_time: f64,
    /// Pauses for each job.
    pub pauses: f64,
    /// Of the time in the core at an event, the 99th of a hundred, us of this machine.
    pub decision_p99_us: f64,
}

#[derive(Debug, Clone, Copy)]
struct TrialRun {
    trial: TrialJob,
    left: Ns,
    /// From when it works, if it has its GPUs.
    works_from: Option<Ns>,
    started: Option<Ns>,
    ended: Option<Ns>,
}

impl TrialRun {
    /// What is left at this time.
    fn left_at(&self, now: Ns) -> Ns {
        let worked = self.works_from.map_or(0, |from| now.saturating_sub(from));
        self.left - worked.min(self.left)
    }

    fn done_ppm(&self, now: Ns) -> u32 {
        let left = u128::from(self.left_at(now)) * 1_000_000;
        1_000_000 - (left / u128::from(self.trial.work.max(1))) as u32
    }

    fn milli(&self) -> u128 {
        u128::from(self.trial.job.workers) * u128::from(self.trial.job.each.total_milli())
    }
}

/// What tenants received while each of them had jobs and somebody waited.
#[derive(Debug, Default)]
struct Contended {
    /// Per tenant: jobs in the system, thousandths of GPUs now, and of GPU-ns received.
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

/// Jain's index: 1 where all are equal, one over their number where one has all.
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
    let name = policy.name().to_string();
    let mut core = Cluster::new(policy, Placer::new(rules.placement.clone()));
    let mut out = Vec::new();
    for node in &rules.nodes {
        core.handle(0, ClusterEvent::NodeUp(node.clone()), &mut out);
    }
    let fresh = |trial: &TrialJob| TrialRun {
        trial: *trial,
        left: trial.work,
        works_from: None,
        started: None,
        ended: None,
    };
    let mut runs: BTreeMap<JobId, TrialRun> = jobs.iter().map(|trial| (trial.job.id, fresh(trial))).collect();
    let mut arrivals: Vec<&TrialJob> = jobs.iter().collect();
    arrivals.sort_by_key(|trial| (trial.came, trial.job.id));
    let mut arrivals = arrivals.into_iter().peekable();
    let (mut now, mut pauses) = (0, 0);
    let mut ends: BTreeSet<(Ns, JobId)> = BTreeSet::new();
    let mut contended = Contended::default();
    for run in runs.values() {
        contended.of(run);
    }
    let mut took_us: Vec<f64> = Vec::new();
    loop {
        let arrival = arrivals.peek().map(|trial| trial.came);
        let end = ends.first().copied();
        // Where nothing waits a look changes nobody's GPUs.
        let look = core.look_every().filter(|_| core.waiting() > 0);
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
        now = next;
        let event = if let Some((_, job)) = end.filter(|(at, _)| *at == now) {
            let run = runs.get_mut(&job).filter(|run| run.ended.is_none());
            let run = run.ok_or_else(|| anyhow::anyhow!("{name}: {job:?} ends twice"))?;
            (run.left, run.works_from, run.ended) = (0, None, Some(now));
            ends.pop_first();
            let milli = run.milli();
            let tenant = contended.of(run);
            (tenant.0, tenant.1) = (tenant.0 - 1, tenant.1 - milli);
            ClusterEvent::Ended(job)
        } else if arrival == Some(now) {
            let trial = arrivals.next().context("an arrival that was just seen")?;
            contended.tenants.entry(trial.job.tenant).or_default().0 += 1;
            ClusterEvent::Submitted(trial.job)
        } else {
            // Brokers tell of progress now and then.
            for run in ends.iter().filter_map(|(_, job)| runs.get(job)) {
                let progress = ClusterEvent::Progress(run.trial.job.id, run.done_ppm(now));
                core.handle(now, progress, &mut out);
            }
            ClusterEvent::Look
        };
        out.clear();
        let began = Instant::now();
        core.handle(now, event, &mut out);
        took_us.push(began.elapsed().as_secs_f64() * 1e6);
        for decision in &out {
            let (job, begins) = match decision {
                ClusterDecision::Start(job, _) | ClusterDecision::Resume(job, _) | ClusterDecision::Move(job, _) => {
                    (job, true)
                }
                ClusterDecision::Pause(job) | ClusterDecision::Requeue(job) => (job, false),
                ClusterDecision::Priority(..) => continue,
                ClusterDecision::Refuse(job) => anyhow::bail!("{name}: {job:?} was refused"),
            };
            let run = runs
                .get_mut(job)
                .with_context(|| format!("{name}: {job:?} is unknown"))?;
            let milli = run.milli();
            if begins {
                let from = now + rules.begin;
                run.works_from = Some(from);
                run.started.get_or_insert(now);
                ends.insert((from + run.left, *job));
                contended.of(run).1 += milli;
            } else {
                pauses += 1;
                ends.remove(&(run.works_from.unwrap_or(now) + run.left, *job));
                run.left = run.left_at(now);
                run.works_from = None;
                contended.of(run).1 -= milli;
            }
        }
    }
    let figure = figure([trial, &name], runs.values(), rules, pauses, took_us)?;
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
    let mut times: Vec<f64> = runs.clone().map(whole).collect();
    times.sort_by(f64::total_cmp);
    let makespan_s = runs.clone().map(|run| seconds(ended(run))).fold(0.0, f64::max);
    let gpus: f64 = rules.nodes.iter().map(|node| node.free_milli() as f64 / 1e3).sum();
    let work = |run: &TrialRun| {
        f64::from(run.trial.job.workers) * run.trial.job.each.total_milli() as f64 / 1e3 * seconds(run.trial.work)
    };
    let mut slow: BTreeMap<TenantId, Vec<f64>> = BTreeMap::new();
    for run in runs.clone() {
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
        p95_s: quantile(&times, 0.95),
        wait_s: mean(
            runs.clone()
                .map(|run| seconds(run.started.unwrap_or(0) - run.trial.came)),
        ),
        makespan_s,
        utilisation: runs.map(work).sum::<f64>() / (gpus * makespan_s).max(1e-9),
        tenants: jain(slow.into_iter()),
        gpu_time: 1.0,
        pauses: pauses as f64 / times.len().max(1) as f64,
        decision_p99_us: quantile(&took_us, 0.99),
    })
}

/// The mean of figures of one policy on several trials.
pub fn mean_figure(figures: &[PolicyFigure]) -> Option<PolicyFigure> {
    let first = figures.first()?;
    let of = |field: fn(&PolicyFigure) -> f64| mean(figures.iter().map(field));
    Some(PolicyFigure {
        trial: first.trial.clone(),
        policy: first.policy.clone(),
        mean_s: of(|figure| figure.mean_s),
        p95_s: of(|figure| figure.p95_s),
        wait_s: of(|figure| figure.wait_s),
        makespan_s: of(|figure| figure.makespan_s),
        utilisation: of(|figure| figure.utilisation),
        tenants: of(|figure| figure.tenants),
        gpu_time: of(|figure| figure.gpu_time),
        pauses: of(|figure| figure.pauses),
        decision_p99_us: of(|figure| figure.decision_p99_us),
    })
}

/// For people.
pub fn table(figures: &[PolicyFigure]) -> String {
    let mut text = format!(
        "{:<8}{:<20}{:>8}{:>9}{:>8}{:>11}{:>7}{:>9}{:>9}{:>8}{:>8}\n",
        "trial", "policy", "mean s", "p95 s", "wait s", "makespan s", "util", "tenants", "gpu time", "pauses", "p99 us"
    );
    for row in figures {
        text += &format!(
            "{:<8}{:<20}{:>8.0}{:>9.0}{:>8.0}",
            row.trial, row.policy, row.mean_s, row.p95_s, row.wait_s
        );
        text += &format!("{:>11.0}{:>7.3}{:>9.3}", row.makespan_s, row.utilisation, row.tenants);
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
        TrialJob { job, came, work }
    }

    fn one_gpu(begin: Ns) -> WorldRules {
        WorldRules {
            nodes: vec![ClusterNode::new(NodeId(0), 100, 100, 1)],
            placement: PlacementRule::MostFree,
            begin,
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
}
