// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader of the JSON output of Slurm's commands `squeue --json` and `sinfo --json`.
//!
//! Slurm 22.05 writes plain numbers and one word of state; later releases write `{"set": true,
//! "number": 5}` and a list. 24.11 lists nodes by partition and groups identical nodes. All these
//! forms are read. JSON keeps text chosen by users, a job's name and comment, from looking like
//! another field.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Mark before a job's former nice value in its comment.
const TAG: &str = "weft:nice=";

/// A job that waits or runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueuedJob {
    pub id: u64,
    /// Its name for `scontrol`: the waiting tasks of an array are one job.
    pub called: String,
    pub uid: u32,
    pub partitions: Vec<String>,
    pub state: SlurmState,
    /// Reason why it waits.
    pub reason: String,
    /// Priority; 0 is a held job.
    pub priority: u32,
    pub nice: i64,
    pub comment: String,
    /// Seconds since 1970.
    pub submitted: u64,
    /// Start of the run, seconds since 1970.
    pub started: u64,
    pub limit_min: Option<u64>,
    pub nodes: u32,
    /// GPUs and shards on each node.
    pub gpus: u32,
    pub shards: u32,
    /// Its nodes, each with the resources that it has there.
    pub placed: Vec<(String, String)>,
    /// Whether Slurm may requeue it: a batch job that allows this.
    pub requeue: bool,
}

/// State of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SlurmState {
    /// It waits and could start.
    #[default]
    Waits,
    /// It waits for something other than resources: a time, another job, an administrator.
    Barred,
    Runs,
    /// It has ended or is ending.
    Gone,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlurmNode {
    pub name: String,
    pub partitions: Vec<String>,
    pub gpus: u32,
    /// Shards on all its GPUs together.
    pub shards: u32,
    /// Whether jobs may run there.
    pub up: bool,
    /// Whether new jobs may start there.
    pub takes: bool,
}

impl QueuedJob {
    /// Its nice value before weft changed it, and its comment without weft's mark.
    pub fn before(&self) -> Option<(i64, String)> {
        let words: Vec<&str> = self.comment.split(' ').collect();
        let nice = words.iter().find_map(|word| word.strip_prefix(TAG)?.parse().ok())?;
        let others: Vec<&str> = words.into_iter().filter(|word| !word.starts_with(TAG)).collect();
        Some((nice, others.join(" ")))
    }

    /// Its comment with weft's mark, if it has none yet.
    pub fn marked(&self) -> Option<String> {
        if self.before().is_some() {
            return None;
        }
        let gap = if self.comment.is_empty() { "" } else { " " };
        Some(format!("{}{gap}{TAG}{}", self.comment, self.nice))
    }
}

/// Reasons of waiting jobs that no order can help.
const BARRED: [&str; 10] = [
    "BeginTime",
    "Dependency",
    "DependencyNeverSatisfied",
    "JobHeldAdmin",
    "JobHeldUser",
    "JobHoldMaxRequeue",
    "JobArrayTaskLimit",
    "InvalidAccount",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
];

/// The jobs of `squeue --json`.
pub fn jobs(text: &str) -> Result<Vec<QueuedJob>> {
    let answer = answer(text, "squeue")?;
    rows(&answer, "squeue", "jobs")?.iter().map(job).collect()
}

/// The nodes of `sinfo --json`.
pub fn nodes(text: &str) -> Result<Vec<SlurmNode>> {
    let answer = answer(text, "sinfo")?;
    if answer["sinfo"].is_array() {
        return Ok(nodes_by_partition(&rows(&answer, "sinfo", "sinfo")?));
    }
    Ok(rows(&answer, "sinfo", "nodes")?.iter().map(node).collect())
}

/// Whether Slurm starts jobs by number and ignores priorities. `settings`: `scontrol show config`.
pub fn by_number(settings: &str) -> bool {
    let is = |name: &str, value: &str| {
        let mut lines = settings.lines().filter_map(|line| line.split_once('='));
        lines.any(|(key, told)| key.trim() == name && told.trim() == value)
    };
    is("SchedulerType", "sched/builtin") && is("PriorityType", "priority/basic")
}

/// Output of a command, unless it is an error.
fn answer(text: &str, command: &str) -> Result<Value> {
    let answer: Value =
        serde_json::from_str(text).with_context(|| format!("{command} --json: its output is not JSON"))?;
    // squeue exits with 0 even if slurmctld does not answer.
    if let Some(error) = answer["errors"].as_array().and_then(|errors| errors.first()) {
        let said = [&error["description"], &error["error"]].map(|part| part.as_str().unwrap_or_default().trim());
        bail!("{command} --json: {}", said.join(": ").trim_matches([':', ' ']));
    }
    Ok(answer)
}

fn rows(answer: &Value, command: &str, field: &str) -> Result<Vec<Value>> {
    match &answer[field] {
        Value::Array(rows) => Ok(rows.clone()),
        _ => bail!("{command} --json: its output has no {field}"),
    }
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::Object(parts) => {
            let says = |name: &str, unless: bool| parts.get(name).and_then(Value::as_bool).unwrap_or(unless);
            let told = says("set", true) && !says("infinite", false);
            parts.get("number").filter(|_| told).and_then(Value::as_i64)
        }
        _ => None,
    }
}

fn count<T: TryFrom<i64> + Default>(value: &Value) -> T {
    number(value)
        .and_then(|number| T::try_from(number).ok())
        .unwrap_or_default()
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

/// A state and its flags: one word, or a list.
fn states(value: &Value) -> Vec<String> {
    match value {
        Value::Array(words) => words.iter().map(|each| word(each).to_uppercase()).collect(),
        other => vec![word(other).to_uppercase()],
    }
}

fn job(row: &Value) -> Result<QueuedJob> {
    let id: u64 = count(&row["job_id"]);
    if id == 0 {
        bail!("squeue --json: a job without a number");
    }
    let reason = word(&row["state_reason"]);
    let words = states(&row["job_state"]);
    let is = |state: &str| words.iter().any(|word| word == state);
    let priority = count(&row["priority"]);
    let state = if is("COMPLETING") {
        SlurmState::Gone
    } else if is("PENDING") && (priority == 0 || BARRED.contains(&reason.as_str())) {
        SlurmState::Barred
    } else if is("PENDING") {
        SlurmState::Waits
    } else if is("RUNNING") || is("SUSPENDED") || is("CONFIGURING") || is("STOPPED") {
        SlurmState::Runs
    } else {
        SlurmState::Gone
    };
    let nodes = count::<u32>(&row["node_count"]).max(1);
    let tasks = count::<u32>(&row["tasks"]).max(1);
    let placed = placed(row);
    let asked = |kind: &str| match placed.first() {
        Some((_, has)) => gres(has, kind),
        None => asked(row, kind, nodes, tasks),
    };
    Ok(QueuedJob {
        id,
        called: called(row, id),
        uid: count(&row["user_id"]),
        partitions: word(&row["partition"]).split(',').map(str::to_string).collect(),
        state,
        reason,
        priority,
        nice: nice(&row["nice"]),
        comment: word(&row["admin_comment"]),
        submitted: count(&row["submit_time"]),
        started: count(&row["start_time"]),
        limit_min: number(&row["time_limit"]).and_then(|minutes| u64::try_from(minutes).ok()),
        nodes,
        gpus: asked("gpu"),
        shards: asked("shard"),
        placed,
        requeue: row["requeue"].as_bool().unwrap_or(false) && row["batch_flag"].as_bool().unwrap_or(false),
    })
}

/// A nice value. 22.05 writes a negative one as an unsigned 32-bit number, and omits 0.
fn nice(value: &Value) -> i64 {
    let told = number(value).unwrap_or(0);
    if (1 << 31..1 << 32).contains(&told) {
        told - (1 << 32)
    } else {
        told
    }
}

/// Name of a job; the waiting tasks of an array have one name.
fn called(row: &Value, id: u64) -> String {
    let (array, tasks) = (count::<u64>(&row["array_job_id"]), word(&row["array_task_string"]));
    let tasks = tasks.split('%').next().unwrap_or_default();
    // squeue truncates a long list; then the array's own number is used.
    if array > 0 && !tasks.is_empty() && !tasks.contains("...") {
        format!("{array}_[{tasks}]")
    } else {
        id.to_string()
    }
}

fn asked(row: &Value, kind: &str, nodes: u32, tasks: u32) -> u32 {
    let said = |field: &str| gres(row[field].as_str().unwrap_or_default(), kind);
    let per_node = said("tres_per_node");
    let in_all = said("tres_per_job").max(said("tres_per_task").saturating_mul(tasks));
    per_node.max(in_all.div_ceil(nodes))
}

/// Nodes of a job, each with the job's resources there.
fn placed(row: &Value) -> Vec<(String, String)> {
    let resources = &row["job_resources"];
    let listed: Vec<&Value> = match (&resources["allocated_nodes"], &resources["nodes"]["allocation"]) {
        (Value::Array(nodes), _) | (_, Value::Array(nodes)) => nodes.iter().collect(),
        (Value::Object(nodes), _) => nodes.values().collect(),
        _ => Vec::new(),
    };
    let has = row["gres_detail"].as_array().cloned().unwrap_or_default();
    let named = listed.iter().map(|node| {
        let name = node.get("nodename").or_else(|| node.get("name"));
        name.map(word).unwrap_or_default()
    });
    let has = has.iter().map(word).chain(std::iter::repeat(String::new()));
    named.zip(has).filter(|(name, _)| !name.is_empty()).collect()
}

fn node(row: &Value) -> SlurmNode {
    let mut words = states(&row["state"]);
    words.extend(states(&row["state_flags"]));
    let partitions = row["partitions"].as_array().cloned().unwrap_or_default();
    SlurmNode {
        name: word(&row["name"]),
        partitions: partitions.iter().map(word).collect(),
        ..node_that_is(&words, &word(&row["gres"]))
    }
}

/// A node without a name, in these states and with these generic resources.
fn node_that_is(words: &[String], has: &str) -> SlurmNode {
    let is = |state: &str| words.iter().any(|word| word == state);
    let up = !["DOWN", "UNKNOWN", "ERROR", "FUTURE"].into_iter().any(is);
    SlurmNode {
        gpus: gres(has, "gpu"),
        shards: gres(has, "shard"),
        up,
        takes: up && !is("DRAIN") && !is("NOT_RESPONDING"),
        ..SlurmNode::default()
    }
}

/// Nodes from rows that each list the identical nodes of a partition.
fn nodes_by_partition(rows: &[Value]) -> Vec<SlurmNode> {
    let mut found: BTreeMap<String, SlurmNode> = BTreeMap::new();
    for row in rows {
        let partition = word(&row["partition"]["name"]);
        let alike = node_that_is(&states(&row["node"]["state"]), &word(&row["gres"]["total"]));
        for name in row["nodes"]["nodes"].as_array().into_iter().flatten().map(word) {
            let node = found
                .entry(name.clone())
                .or_insert_with(|| SlurmNode { name, ..alike.clone() });
            if !node.partitions.contains(&partition) {
                node.partitions.push(partition.clone());
            }
        }
    }
    found.into_values().collect()
}

/// Parts of a list of generic resources; commas inside brackets do not separate.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ',' && depth == 0
    })
}

/// Number of resources of a kind: `gres:gpu:2`, `gpu:sim:2(IDX:0-1)`, `gres/gpu=2`, `shard:40`.
pub fn gres(text: &str, kind: &str) -> u32 {
    let each = parts(text).map(|part| {
        let plain = part.split('(').next().unwrap_or_default().replace(['=', '/'], ":");
        let words: Vec<&str> = plain.split(':').filter(|word| *word != "gres").collect();
        match words.as_slice() {
            [name] if *name == kind => 1,
            [name, .., last] if *name == kind => last.parse().unwrap_or(1),
            _ => 0,
        }
    });
    each.fold(0, u32::saturating_add)
}

/// Numbers of GPUs, from `(IDX:0-1,3)`; since 23.11 shards are listed by GPU, `(20/80,0/80)`.
pub fn indexes(text: &str) -> Vec<u16> {
    let mut found = Vec::new();
    for part in parts(text) {
        let Some((_, list)) = part.split_once("(IDX:") else {
            let by_gpu = part.split_once('(').map_or("", |(_, list)| list.trim_end_matches(')'));
            let used = (0..).zip(by_gpu.split(',')).filter(|(_, of_it)| {
                let used = of_it.split_once('/').and_then(|(used, _)| used.parse::<u32>().ok());
                used.is_some_and(|used| used > 0)
            });
            found.extend(used.map(|(gpu, _)| gpu));
            continue;
        };
        for range in list.trim_end_matches(')').split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            if let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) {
                found.extend((first..=last).take(64));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: &str = include_str!("recorded/squeue.json");
    const NODES: &str = include_str!("recorded/sinfo.json");
    const LATER_QUEUE: &str = include_str!("recorded/squeue-24.11.json");
    const LATER_NODES: &str = include_str!("recorded/sinfo-24.11.json");
    const DOWN: &str = include_str!("recorded/squeue-down.json");

    fn of(id: u64) -> QueuedJob {
        jobs(QUEUE).unwrap().into_iter().find(|job| job.id == id).unwrap()
    }

    #[test]
    fn a_queue_of_slurm_22_05() {
        assert_eq!(jobs(QUEUE).unwrap().len(), 11);
        let waits = of(1);
        assert_eq!(
            (waits.state, waits.nice, waits.priority),
            (SlurmState::Waits, 10, 4_294_901_749)
        );
        assert_eq!((waits.limit_min, waits.gpus, waits.shards), (Some(5), 1, 0));
        assert_eq!((waits.partitions, waits.uid), (vec!["all".to_string()], 61_001));
        let runs = of(2);
        assert_eq!((runs.state, runs.nice, runs.gpus), (SlurmState::Runs, 0, 2));
        assert_eq!(runs.placed, [("n2".to_string(), "gpu:sim:2(IDX:0-1)".to_string())]);
        assert!(runs.requeue && runs.started > runs.submitted);
        assert_eq!((of(3).gpus, of(3).shards), (0, 40));
        assert_eq!((of(4).nodes, of(4).gpus), (2, 1));
        assert_eq!((of(5).gpus, of(5).nice), (2, 30));
        // Two tasks of a GPU each; a nice value below zero.
        assert_eq!((of(6).gpus, of(6).nice), (2, -40));
        assert_eq!((of(7).called.as_str(), of(1).called.as_str()), ("7_[1-5]", "1"));
        // One is held, one begins later.
        assert_eq!((of(8).state, of(9).state), (SlurmState::Barred, SlurmState::Barred));
        assert_eq!((of(10).state, of(10).gpus), (SlurmState::Runs, 0));
        assert!(!of(11).requeue);
    }

    #[test]
    fn what_a_nice_value_was_stands_in_the_comment() {
        assert_eq!(of(5).before(), Some((0, String::new())));
        assert_eq!((of(5).marked(), of(1).before()), (None, None));
        assert_eq!(of(1).marked().as_deref(), Some("weft:nice=10"));
        let own = QueuedJob {
            comment: "of the auditor".to_string(),
            nice: -3,
            ..QueuedJob::default()
        };
        let marked = QueuedJob {
            comment: own.marked().unwrap(),
            ..own.clone()
        };
        assert_eq!(marked.comment, "of the auditor weft:nice=-3");
        assert_eq!(marked.before(), Some((-3, own.comment)));
    }

    #[test]
    fn nodes_of_slurm_22_05() {
        let nodes = nodes(NODES).unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!(
            nodes[0],
            SlurmNode {
                name: "n1".to_string(),
                partitions: vec!["all".to_string()],
                gpus: 2,
                shards: 160,
                up: true,
                takes: true,
            }
        );
    }

    #[test]
    fn numbers_and_states_of_later_releases() {
        let text = r#"{"errors": [], "jobs": [{"job_id": 7, "job_state": ["PENDING", "REQUEUED"],
            "priority": {"set": true, "infinite": false, "number": 12}, "nice": -4,
            "time_limit": {"set": false, "infinite": true, "number": 0}, "tres_per_node": "gres/gpu:h100:4"}]}"#;
        let [job] = jobs(text).unwrap().try_into().unwrap();
        assert_eq!((job.state, job.priority, job.nice), (SlurmState::Waits, 12, -4));
        assert_eq!((job.limit_min, job.gpus), (None, 4));
        let drained = r#"{"nodes": [{"name": "x", "state": ["MIXED", "DRAIN"], "gres": "gpu:2"}]}"#;
        assert!(nodes(drained).unwrap().iter().all(|node| node.up && !node.takes));
    }

    #[test]
    fn a_queue_and_nodes_of_slurm_24_11() {
        let jobs = jobs(LATER_QUEUE).unwrap();
        let of = |id: u64| jobs.iter().find(|job| job.id == id).unwrap();
        let shares = of(1);
        assert_eq!((shares.state, shares.shards, shares.gpus), (SlurmState::Runs, 20, 0));
        assert_eq!(shares.placed, [("n1".to_string(), "shard:20(20/80,0/80)".to_string())]);
        assert_eq!((shares.limit_min, shares.uid, shares.requeue), (None, 61_001, true));
        assert_eq!((of(2).gpus, of(2).nice, indexes(&of(2).placed[0].1)), (1, 5, vec![1]));
        assert_eq!((of(3).state, of(3).shards), (SlurmState::Barred, 20));
        assert_eq!((of(4).called.as_str(), of(5).called.as_str()), ("4_[2-3]", "5"));
        let nodes = nodes(LATER_NODES).unwrap();
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["n1", "n2"]);
        for node in nodes {
            assert_eq!((node.partitions.as_slice(), node.gpus), (&["all".to_string()][..], 2));
            assert!((node.shards, node.up, node.takes) == (160, true, true));
        }
    }

    #[test]
    fn a_node_of_two_partitions_is_one() {
        let row = |partition: &str, state: &str| {
            format!(
                r#"{{"node": {{"state": ["{state}"]}}, "nodes": {{"nodes": ["a", "b"]}}, "gres": {{"total": "gpu:4"}},
                "partition": {{"name": "{partition}"}}}}"#
            )
        };
        let nodes = nodes(&format!(
            r#"{{"sinfo": [{}, {}]}}"#,
            row("fast", "DRAIN"),
            row("batch", "DRAIN")
        ))
        .unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!(
            (nodes[1].name.as_str(), &nodes[1].partitions[..]),
            ("b", &["fast".to_string(), "batch".to_string()][..])
        );
        assert!(nodes.iter().all(|node| node.up && !node.takes && node.gpus == 4));
    }

    #[test]
    fn what_is_no_answer_is_an_error_of_one_line() {
        for wrong in [
            DOWN,
            "",
            "slurm_load_jobs error",
            "{}",
            r#"{"jobs": [{}]}"#,
            r#"{"jobs": 3}"#,
        ] {
            let said = format!("{:#}", jobs(wrong).unwrap_err());
            assert!(said.starts_with("squeue --json: ") && !said.contains('\n'), "{said}");
        }
    }

    #[test]
    fn a_slurm_that_goes_by_number_is_known() {
        let settings = |scheduler: &str, priority: &str| {
            format!("PriorityType            = priority/{priority}\nSchedulerType           = sched/{scheduler}\n")
        };
        assert!(by_number(&settings("builtin", "basic")));
        assert!(!by_number(&settings("backfill", "basic")) && !by_number(&settings("builtin", "multifactor")));
        assert!(!by_number(""));
    }

    #[test]
    fn generic_resources_are_counted() {
        for (text, gpus, shards) in [
            ("gpu:sim:2,shard:sim:160", 2, 160),
            ("gpu:sim:2(IDX:0-1),shard:sim:0(IDX:N/A)", 2, 0),
            ("gres:gpu", 1, 0),
            ("gres:gpu:h100", 1, 0),
            ("gres/gpu=3", 3, 0),
            ("gpu:a100:2(S:0-1),gpu:h100:1(S:0)", 3, 0),
            ("(null)", 0, 0),
            ("", 0, 0),
        ] {
            assert_eq!((gres(text, "gpu"), gres(text, "shard")), (gpus, shards), "{text}");
        }
        assert_eq!(indexes("gpu:sim:3(IDX:0-1,3)"), [0, 1, 3]);
        assert_eq!(indexes("shard:40(IDX:1)"), [1]);
        assert_eq!(indexes("shard:20(0/80,20/80)"), [1]);
        assert_eq!(indexes("gpu:a100:1(IDX:2),shard:30(10/80,0/80,20/80)"), [0, 2]);
        assert!(indexes("gpu:1(IDX:N/A)").is_empty() && indexes("").is_empty());
    }
}
