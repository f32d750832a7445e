//! The table of several nodes, and its line of JSON (docs/json.md explains the keys).
#![forbid(unsafe_code)]

use serde::Serialize;
use weft_daemon::status::SCHEMA;

use super::super::columns::{self, TextColumn};
use super::super::{text, users};
use super::board::{ClusterBoard, GpuRow, NodeRow};

/// Largest number of users named in a cell.
const USERS_SHOWN: usize = 3;

/// Digits of a GPU's UUID in a cell: enough to distinguish the GPUs of a node.
const GPU_DIGITS: usize = 8;

/// Width of a cell with a percentage, characters.
const PART_WIDTH: usize = 5;

/// A row: a GPU of a node, or a node without one.
type NodeAndGpu<'a> = (&'a NodeRow, Option<&'a GpuRow>);

fn rows(board: &ClusterBoard) -> Vec<NodeAndGpu<'_>> {
    let mut rows: Vec<NodeAndGpu<'_>> = Vec::new();
    for node in board.nodes() {
        match node.gpus.is_empty() {
            true => rows.push((node, None)),
            false => rows.extend(node.gpus.iter().map(|gpu| (node, Some(gpu)))),
        }
    }
    rows
}

fn gpu_cell((node, gpu): &NodeAndGpu<'_>) -> String {
    match (gpu, &node.report) {
        (Some(gpu), _) if gpu.gpu.is_empty() => "not named".to_string(),
        (Some(gpu), _) => {
            let digits = gpu.gpu.strip_prefix("GPU-").unwrap_or(&gpu.gpu);
            digits.chars().take(GPU_DIGITS).collect()
        }
        (None, Ok(_)) => "no job".to_string(),
        (None, Err(_)) => "no answer".to_string(),
    }
}

fn part(value: Option<f64>) -> String {
    value.map_or("-".to_string(), |part| format!("{:.0} %", part * 100.0))
}

fn named(gpu: &GpuRow) -> String {
    let names = gpu.users.iter().take(USERS_SHOWN).map(|uid| users::name_of(*uid));
    let names = names.collect::<Vec<_>>().join(",");
    match gpu.users.len().saturating_sub(USERS_SHOWN) {
        0 => names,
        more => format!("{names} +{more}"),
    }
}

/// A line about all nodes.
pub fn headline(board: &ClusterBoard) -> String {
    let nodes = board.nodes();
    let answering = nodes.iter().filter(|node| node.report.is_ok()).count();
    let gpus = nodes.iter().flat_map(|node| &node.gpus);
    let users: std::collections::BTreeSet<u32> = gpus.clone().flat_map(|gpu| gpu.users.iter().copied()).collect();
    let jobs: u64 = gpus.clone().map(|gpu| gpu.jobs).sum();
    format!(
        "{answering} of {} answer, {} in use, {} of {}",
        text::count(nodes.len() as u64, "node", "nodes"),
        text::count(gpus.count() as u64, "GPU", "GPUs"),
        text::count(jobs, "job", "jobs"),
        text::count(users.len() as u64, "user", "users"),
    )
}

/// Lines below the rows: silent nodes with reasons, waiting jobs, warnings.
fn remarks(board: &ClusterBoard) -> Vec<String> {
    let mut lines = Vec::new();
    for node in board.nodes() {
        match &node.report {
            Err(why) => lines.push(format!("! {} ({}): {why}", node.name, node.address)),
            Ok(report) => {
                if report.waiting > 0 {
                    let jobs = text::count(report.waiting, "job waits", "jobs wait");
                    lines.push(format!("{}: {jobs} for memory", node.name));
                }
                if report.warnings > 0 {
                    let places = text::count(report.warnings, "warning", "warnings");
                    lines.push(format!("! {}: {places} (run weft status there)", node.name));
                }
                if report.jobs_left_out > 0 {
                    let jobs = text::count(report.jobs_left_out, "more job", "more jobs");
                    lines.push(format!("{}: {jobs}, without figures of their own", node.name));
                }
            }
        }
    }
    lines
}

/// The lines of the table, with its head.
pub fn table(board: &ClusterBoard, width: usize) -> Vec<String> {
    let rows = rows(board);
    let of_gpu = |cell: fn(&GpuRow) -> String| move |(_, gpu): &NodeAndGpu<'_>| gpu.map_or("-".to_string(), cell);
    let all = vec![
        TextColumn::words("node", 0, 12).with(&rows, |(node, _)| node.name.clone()),
        TextColumn::words("GPU", 0, 8).with(&rows, gpu_cell),
        TextColumn::figures("jobs", 0).with(&rows, of_gpu(|gpu| gpu.jobs.to_string())),
        TextColumn::figures("fg", 4).with(&rows, of_gpu(|gpu| gpu.foreground.to_string())),
        TextColumn::figures("bg", 4).with(&rows, of_gpu(|gpu| gpu.background.to_string())),
        TextColumn::figures("late", 1)
            .steady(PART_WIDTH)
            .with(&rows, of_gpu(|gpu| gpu.late.map_or("-".to_string(), text::percent))),
        TextColumn::figures("share", 1)
            .steady(PART_WIDTH)
            .with(&rows, of_gpu(|gpu| part(gpu.share))),
        TextColumn::figures("of bg", 3)
            .steady(PART_WIDTH)
            .with(&rows, of_gpu(|gpu| part(gpu.background_share))),
        TextColumn::figures("memory", 5).with(&rows, of_gpu(|gpu| text::size(gpu.memory))),
        TextColumn::words("users", 2, 8).with(&rows, of_gpu(named)),
    ];
    columns::lines(&columns::fit(all, width))
}

/// A page of plain text, no line wider than `width`.
pub fn page(board: &ClusterBoard, width: usize) -> String {
    let mut lines = text::fold(&headline(board), width, "  ");
    lines.extend(table(board, width));
    lines.extend(remarks(board).iter().flat_map(|line| text::fold(line, width, "  ")));
    lines.join("\n")
}

/// One look as JSON.
#[derive(Debug, Serialize)]
pub struct ClusterLine<'a> {
    /// Version of these keys.
    schema: u32,
    nodes: Vec<NodeLine<'a>>,
}

#[derive(Debug, Serialize)]
struct NodeLine<'a> {
    node: &'a str,
    address: &'a str,
    /// Reason why it does not answer; `None` if it answers.
    silent: Option<&'a str>,
    interval_s: Option<f64>,
    version: Option<&'a str>,
    policy: Option<&'a str>,
    uptime_s: Option<f64>,
    waits_for_memory: Option<u64>,
    warnings: Option<u64>,
    jobs_left_out: Option<u64>,
    gpus: Vec<GpuLine<'a>>,
    jobs: Vec<JobLine<'a>>,
}

#[derive(Debug, Serialize)]
struct GpuLine<'a> {
    gpu: &'a str,
    jobs: u64,
    foreground: u64,
    background: u64,
    uids: Vec<u32>,
    late: Option<f64>,
    share: Option<f64>,
    background_share: Option<f64>,
    memory_held: u64,
}

#[derive(Debug, Serialize)]
struct JobLine<'a> {
    client: u64,
    pid: u64,
    gpu: &'a str,
    name: &'a str,
    cluster_job: &'a str,
    uid: Option<u32>,
    priority: Option<u8>,
    mode: &'a str,
    run_s: f64,
    gpu_s: Option<f64>,
    late_s: f64,
    slowdown_measured: Option<f64>,
    memory: u64,
}

/// The line of a look.
pub fn line(board: &ClusterBoard) -> ClusterLine<'_> {
    let nodes = board.nodes().iter().map(|node| {
        let report = node.report.as_ref().ok();
        let gpus = node.gpus.iter().map(|row| GpuLine {
            gpu: &row.gpu,
            jobs: row.jobs,
            foreground: row.foreground,
            background: row.background,
            uids: row.users.iter().copied().collect(),
            late: row.late,
            share: row.share,
            background_share: row.background_share,
            memory_held: row.memory,
        });
        let jobs = report.iter().flat_map(|report| &report.jobs).map(|job| JobLine {
            client: job.owner.client,
            pid: job.owner.pid,
            gpu: &job.owner.gpu,
            name: &job.name,
            cluster_job: &job.cluster_job,
            uid: job.uid,
            priority: job.priority,
            mode: &job.role,
            run_s: job.run_s,
            gpu_s: job.gpu_s,
            late_s: job.late_s,
            slowdown_measured: job.slowdown,
            memory: job.memory,
        });
        NodeLine {
            node: &node.name,
            address: &node.address,
            silent: node.report.as_ref().err().map(String::as_str),
            interval_s: node.interval_s,
            version: report.map(|report| report.version.as_str()),
            policy: report.map(|report| report.policy.as_str()),
            uptime_s: report.map(|report| report.uptime_s),
            waits_for_memory: report.map(|report| report.waiting),
            warnings: report.map(|report| report.warnings),
            jobs_left_out: report.map(|report| report.jobs_left_out),
            gpus: gpus.collect(),
            jobs: jobs.collect(),
        }
    });
    ClusterLine {
        schema: SCHEMA,
        nodes: nodes.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::board;
    use super::*;

    #[test]
    fn a_page_fits_and_says_who_is_silent() {
        let board = board();
        for width in [20, 40, 60, 80, 100, 200] {
            let page = page(&board, width);
            for line in page.lines() {
                assert!(text::width(line) <= width, "{width}: {line}");
            }
            let has = |words: &[&str]| words.iter().all(|word| page.contains(word));
            assert!(
                width < 40 || has(&["gpu1", "0011", "no job", "no answer", "2 %"]),
                "{width}: {page}"
            );
            assert!(width < 60 || has(&["80 %", "30 %", "1001"]), "{width}: {page}");
            assert!(
                width < 80
                    || has(&[
                        "2 of 3 nodes answer, 1 GPU in use, 2 jobs of 2 users",
                        "! gpu2 (gpu2:9431): no answer within 2s",
                        "gpu1: 2 jobs wait for memory",
                        "gpu1: 3 more jobs",
                        "2.00 GiB",
                    ]),
                "{width}: {page}"
            );
        }
    }

    #[test]
    fn a_line_of_json_has_all_of_it() {
        let board = board();
        let line = serde_json::to_value(line(&board)).expect("JSON");
        assert_eq!(line["schema"], SCHEMA);
        let [node, silent, idle] = &line["nodes"].as_array().expect("nodes")[..] else {
            panic!("{line}")
        };
        assert_eq!(
            (&node["node"], &node["silent"]),
            (&"gpu1".into(), &serde_json::Value::Null)
        );
        assert_eq!(
            (&node["gpus"][0]["jobs"], &node["gpus"][0]["uids"][1]),
            (&2.into(), &1002.into())
        );
        assert_eq!(
            (&node["jobs"][1]["cluster_job"], &node["jobs"][1]["mode"]),
            (&"7_2".into(), &"background".into())
        );
        assert_eq!(
            (&silent["silent"], &silent["version"]),
            (&"no answer within 2s".into(), &serde_json::Value::Null)
        );
        assert_eq!(idle["gpus"], serde_json::json!([]));
    }
}
