//! State from successive looks at several nodes: rows of GPUs, with shares and lateness in an
//! interval.
//!
//! Pure. The time is each broker's own (`weft_broker_uptime_seconds`): two looks may get the same
//! status, because a broker keeps it for a second.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use super::looker::NodeAnswer;
use super::series::{NodeJob, NodeReport, SeriesOwner};

/// A node at the latest look.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRow {
    /// Its name for people.
    pub name: String,
    /// Address of its metrics.
    pub address: String,
    /// Its report, or the reason for its silence.
    pub report: NodeAnswer,
    /// Length of the rates' interval, seconds; `None` for means since the jobs attached.
    pub interval_s: Option<f64>,
    /// Its GPUs that jobs use.
    pub gpus: Vec<GpuRow>,
    /// The previous report, with the jobs' figures.
    before: Option<NodeReport>,
}

/// A GPU of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuRow {
    /// UUID; empty if its jobs have not reported one yet.
    pub gpu: String,
    /// Number of jobs on it.
    pub jobs: u64,
    /// Number of foreground jobs and of jobs with role `alone`.
    pub foreground: u64,
    /// Number of background jobs.
    pub background: u64,
    /// Their users.
    pub users: BTreeSet<u32>,
    /// Largest lateness of a foreground job because of others, as a part of its time.
    pub late: Option<f64>,
    /// Part of the time that the GPU works for its jobs, estimated.
    pub share: Option<f64>,
    /// Part of the time that it works for background jobs, estimated.
    pub background_share: Option<f64>,
    /// Memory that its jobs hold, bytes.
    pub memory: u64,
}

/// State that looks add up to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterBoard {
    nodes: Vec<NodeRow>,
}

/// Report of a node that was not asked yet.
const NOT_ASKED: &str = "not asked yet";

impl ClusterBoard {
    /// A board of these nodes: names and addresses.
    pub fn new(names: Vec<(String, String)>) -> ClusterBoard {
        let nodes = names.into_iter().map(|(name, address)| NodeRow {
            name,
            address,
            report: Err(NOT_ASKED.to_string()),
            interval_s: None,
            gpus: Vec::new(),
            before: None,
        });
        ClusterBoard { nodes: nodes.collect() }
    }

    /// The nodes, in their order.
    pub fn nodes(&self) -> &[NodeRow] {
        &self.nodes
    }

    /// Takes the nodes' answers of a look.
    pub fn update(&mut self, answers: Vec<NodeAnswer>) {
        for (node, answer) in self.nodes.iter_mut().zip(answers) {
            node.update(answer);
        }
    }
}

impl NodeRow {
    fn update(&mut self, answer: NodeAnswer) {
        let latest = std::mem::replace(&mut self.report, answer);
        let Ok(now) = &self.report else {
            // A node that answers again later starts over.
            (self.before, self.interval_s, self.gpus) = (None, None, Vec::new());
            return;
        };
        match latest {
            // The same status again: the interval stays.
            Ok(latest) if latest.uptime_s == now.uptime_s => {}
            Ok(latest) if latest.uptime_s < now.uptime_s => {
                self.interval_s = Some(now.uptime_s - latest.uptime_s);
                self.before = Some(latest);
            }
            // Another broker, or no report before.
            Ok(_) | Err(_) => (self.before, self.interval_s) = (None, None),
        }
        self.gpus = rows(now, self.before.as_ref(), self.interval_s);
    }
}

/// A job's parts of the time: of GPU work, and of lateness.
fn parts(job: &NodeJob, before: Option<&NodeJob>, interval_s: Option<f64>) -> (Option<f64>, f64) {
    let (seconds, gpu_before, late_before) = match (interval_s, before) {
        (Some(interval), Some(before)) => (interval, before.gpu_s.unwrap_or(0.0), before.late_s),
        // The job attached in the interval, or there was no look before.
        (Some(interval), None) => (interval.max(job.run_s), 0.0, 0.0),
        (None, _) => (job.run_s, 0.0, 0.0),
    };
    let part = |seconds_of: f64| match seconds > 0.0 {
        true => (seconds_of / seconds).clamp(0.0, 1.0),
        false => 0.0,
    };
    let gpu = job.gpu_s.map(|gpu_s| part(gpu_s - gpu_before));
    (gpu, part(job.late_s - late_before))
}

fn rows(now: &NodeReport, before: Option<&NodeReport>, interval_s: Option<f64>) -> Vec<GpuRow> {
    let earlier: BTreeMap<&SeriesOwner, &NodeJob> = before
        .iter()
        .flat_map(|report| &report.jobs)
        .map(|job| (&job.owner, job))
        .collect();
    let mut rows: BTreeMap<&str, GpuRow> = BTreeMap::new();
    for (gpu, jobs) in &now.gpus {
        let row = rows.entry(gpu).or_default();
        (row.gpu, row.jobs) = (gpu.clone(), *jobs);
    }
    let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
    for job in &now.jobs {
        let gpu = job.owner.gpu.as_str();
        let row = rows.entry(gpu).or_default();
        row.gpu = gpu.to_string();
        *counted.entry(gpu).or_default() += 1;
        row.users.extend(job.uid);
        row.memory = row.memory.saturating_add(job.memory);
        let (share, late) = parts(job, earlier.get(&job.owner).copied(), interval_s);
        let add = |sum: &mut Option<f64>| {
            if let Some(share) = share {
                *sum = Some((sum.unwrap_or(0.0) + share).min(1.0));
            }
        };
        add(&mut row.share);
        match job.role.as_str() {
            "foreground" | "alone" => {
                row.foreground += 1;
                // Since it attached: the slowdown relative to its own pace.
                let late = match interval_s {
                    Some(_) => Some(late),
                    None => job.slowdown.map(|slowdown| slowdown.max(0.0)),
                };
                row.late = match (row.late, late) {
                    (Some(one), Some(other)) => Some(one.max(other)),
                    (one, other) => one.or(other),
                };
            }
            "background" => {
                row.background += 1;
                add(&mut row.background_share);
            }
            _ => {}
        }
    }
    // The broker's own count includes the jobs without series.
    for (gpu, jobs) in counted {
        if let Some(row) = rows.get_mut(gpu) {
            row.jobs = row.jobs.max(jobs);
        }
    }
    rows.into_values().filter(|row| row.jobs > 0).collect()
}

#[cfg(test)]
pub mod tests {
    use super::super::series::{report, tests::text_of};
    use super::*;

    fn answer(uptime_s: f64, jobs: &[(u64, &str, f64, f64)]) -> NodeAnswer {
        report(&text_of(uptime_s, jobs))
    }

    /// A node with a pair of jobs after two looks, one that is silent, and one without jobs.
    pub fn board() -> ClusterBoard {
        let names = ["gpu1", "gpu2", "gpu3"].map(|name| (name.to_string(), format!("{name}:9431")));
        let mut board = ClusterBoard::new(names.into());
        let silent = || Err("no answer within 2s".to_string());
        let idle = || report("weft_broker_info{policy=\"weft\"} 1\n");
        let first = answer(100.0, &[(1, "foreground", 10.0, 1.0), (2, "background", 20.0, 0.0)]);
        board.update(vec![first, silent(), idle()]);
        let second = answer(102.0, &[(1, "foreground", 11.0, 1.04), (2, "background", 20.6, 0.0)]);
        board.update(vec![second, silent(), idle()]);
        board
    }

    #[test]
    fn shares_and_lateness_are_of_the_interval() {
        let board = board();
        let [node, silent, idle] = board.nodes() else {
            panic!("three")
        };
        let [gpu] = &node.gpus[..] else { panic!("{node:?}") };
        assert_eq!(node.interval_s, Some(2.0));
        let near = |value: Option<f64>, wanted: f64| value.is_some_and(|value| (value - wanted).abs() < 1e-9);
        assert!(
            near(gpu.share, 0.8) && near(gpu.background_share, 0.3) && near(gpu.late, 0.02),
            "{gpu:?}"
        );
        assert_eq!(
            (gpu.jobs, gpu.foreground, gpu.background, gpu.memory),
            (2, 1, 1, 2 << 30)
        );
        assert_eq!(gpu.users.iter().copied().collect::<Vec<_>>(), [1001, 1002]);
        assert!(silent.report.is_err() && silent.gpus.is_empty());
        assert!(idle.report.is_ok() && idle.gpus.is_empty());
    }

    #[test]
    fn one_look_has_means_since_the_jobs_attached() {
        let mut board = ClusterBoard::new(vec![("a".to_string(), "a:1".to_string())]);
        board.update(vec![answer(
            100.0,
            &[(1, "foreground", 5.0, 1.0), (2, "background", 2.0, 0.0)],
        )]);
        let gpu = &board.nodes()[0].gpus[0];
        // Each ran 10 s.
        assert_eq!(
            (gpu.share, gpu.background_share, gpu.late),
            (Some(0.7), Some(0.2), Some(0.005))
        );
        assert_eq!(board.nodes()[0].interval_s, None);
    }

    #[test]
    fn the_same_status_again_changes_nothing_and_another_broker_begins_anew() {
        let mut board = board();
        let before = board.nodes()[0].gpus.clone();
        let again = answer(102.0, &[(1, "foreground", 11.0, 1.04), (2, "background", 20.6, 0.0)]);
        board.update(vec![again]);
        assert_eq!(
            (board.nodes()[0].gpus.clone(), board.nodes()[0].interval_s),
            (before, Some(2.0))
        );
        board.update(vec![answer(1.0, &[(1, "alone", 0.5, 0.0)])]);
        let node = &board.nodes()[0];
        assert_eq!((node.interval_s, node.gpus[0].share), (None, Some(0.05)));
        // A counter that falls because of a faulty broker gives no negative share.
        board.update(vec![answer(2.0, &[(1, "alone", 0.1, 0.0)])]);
        assert_eq!(board.nodes()[0].gpus[0].share, Some(0.0));
        board.update(vec![Err("gone".to_string())]);
        assert!(board.nodes()[0].gpus.is_empty());
        board.update(vec![answer(3.0, &[(1, "alone", 0.5, 0.0)])]);
        assert_eq!(board.nodes()[0].interval_s, None);
    }
}
