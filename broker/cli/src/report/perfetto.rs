// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace for the Perfetto UI, in Chrome's JSON format: roles as slices and figures as curves; with
//! a broker's trace also each launch.
//!
//! Times are microseconds since the first job's start.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value, json};
use weft_api::recording::{JobInterval, JobRecording};

use super::gaps::{BrokerTrace, TraceLine};
use super::selection::{JobReport, ReportJob, Run};

/// Largest number of events written from a broker's trace: the UI is slow with more.
const MOST_EVENTS: usize = 1_000 * 1_000;

/// Process of a broker's trace in the file, above those of runs.
const TRACE_PROCESS: usize = 1_000;

/// Writes the trace.
pub(super) fn write(to: &mut dyn Write, report: &JobReport, trace: Option<&BrokerTrace>) -> std::io::Result<()> {
    let begin_ms = report.runs.iter().map(|run| run.begin_ms).min().unwrap_or(0);
    let mut events = EventWriter { to, is_first: true };
    events
        .to
        .write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    for (number, run) in report.runs.iter().enumerate() {
        write_run(&mut events, number + 1, run, begin_ms)?;
    }
    if let Some(trace) = trace {
        write_trace(&mut events, trace, offset_us(report, trace, begin_ms))?;
    }
    events.to.write_all(b"\n]}\n")
}

struct EventWriter<'a> {
    to: &'a mut dyn Write,
    is_first: bool,
}

impl EventWriter<'_> {
    fn put(&mut self, event: &Value) -> std::io::Result<()> {
        if !std::mem::replace(&mut self.is_first, false) {
            self.to.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *self.to, event).map_err(std::io::Error::from)
    }

    fn name(&mut self, what: &str, process: usize, thread: u64, name: &str) -> std::io::Result<()> {
        self.put(&json!({"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}))
    }
}

fn write_run(events: &mut EventWriter<'_>, process: usize, run: &Run, begin_ms: u64) -> std::io::Result<()> {
    let device = if run.device.is_empty() { "a GPU" } else { &run.device };
    events.name("process_name", process, 0, &format!("weft: jobs on {device}"))?;
    for (thread, job) in (1..).zip(&run.jobs) {
        let name = format!("{} (process {})", job.name, job.of.job.pid);
        events.name("thread_name", process, thread, &name)?;
        if let Some(recording) = &job.of.recording {
            write_job(events, (process, thread), job, recording, begin_ms)?;
        }
    }
    Ok(())
}

fn write_job(
    events: &mut EventWriter<'_>,
    (process, thread): (usize, u64),
    job: &ReportJob,
    recording: &JobRecording,
    begin_ms: u64,
) -> std::io::Result<()> {
    let begin_us = (recording.begin_ms.saturating_sub(begin_ms) * 1_000) as f64;
    let mut slice: Option<(&str, f64, JobInterval)> = None;
    let mut time_us = begin_us;
    let mut slices = Vec::new();
    for interval in &recording.intervals {
        let role = interval.role();
        match &mut slice {
            Some((same, _, sum)) if *same == role => sum.add(interval),
            _ => slices.extend(slice.replace((role, time_us, *interval))),
        }
        write_curves(events, process, &job.name, time_us, interval)?;
        time_us += interval.length_ns as f64 / 1e3;
    }
    slices.extend(slice);
    // A curve keeps its last value until another one follows.
    write_curves(events, process, &job.name, time_us, &JobInterval::default())?;
    for (role, at, sum) in slices {
        events.put(&json!({
            "ph": "X", "pid": process, "tid": thread, "ts": at, "dur": sum.length_ns as f64 / 1e3,
            "name": role, "cat": "role",
            "args": {
                "gpu_ns": sum.gpu_ns, "launches": sum.launches, "lost_ns": sum.lost_ns, "waits": sum.waits,
                "cost_ns": sum.cost_ns, "gate_ns": sum.gate_ns, "moved_bytes": sum.moved_bytes, "forced": sum.forced,
            },
        }))?;
    }
    for warned in &recording.warned {
        events.put(&json!({
            "ph": "i", "s": "t", "pid": process, "tid": thread, "ts": begin_us + warned.first_ns as f64 / 1e3,
            "name": format!("! {}", warned.warning.text), "cat": "warning",
        }))?;
    }
    Ok(())
}

fn write_curves(
    events: &mut EventWriter<'_>,
    process: usize,
    name: &str,
    at: f64,
    interval: &JobInterval,
) -> std::io::Result<()> {
    let seconds = interval.length_ns.max(1) as f64 / 1e9;
    let curves = [
        ("GPU share, %", 100.0 * interval.share()),
        ("lateness, %", 100.0 * interval.lateness().unwrap_or(0.0)),
        ("cost, ms/s", interval.cost_ns as f64 / 1e6 / seconds),
        ("held at the gate, ms/s", interval.gate_ns as f64 / 1e6 / seconds),
        (
            "memory moved, MiB/s",
            interval.moved_bytes as f64 / f64::from(1 << 20) / seconds,
        ),
        ("launches/s", interval.launches as f64 / seconds),
    ];
    for (what, value) in curves {
        events.put(&json!({
            "ph": "C", "pid": process, "ts": at, "name": format!("{name}: {what}"), "args": {"value": value},
        }))?;
    }
    Ok(())
}

/// Time of the trace's clock at the start of the file, us, from a job that is in both. Without such
/// a job trace and file start at the same time.
fn offset_us(report: &JobReport, trace: &BrokerTrace, begin_ms: u64) -> f64 {
    let jobs = report.runs.iter().flat_map(|run| &run.jobs);
    let mut of_both = jobs.filter_map(|job| {
        let recording = job.of.recording.as_ref()?;
        let came = |line: &&TraceLine| (line.client, line.pid) == (job.of.job.client, job.of.job.pid);
        trace.lines.iter().find(came)?;
        let since_begin = recording.begin_ms.saturating_sub(begin_ms) as f64 * 1e3;
        Some(recording.begin_ns as f64 / 1e3 - since_begin)
    });
    let first = trace.lines.first().map_or(0.0, |line| line.t as f64 / 1e3);
    of_both.next_back().unwrap_or(first)
}

fn write_trace(events: &mut EventWriter<'_>, trace: &BrokerTrace, offset_us: f64) -> std::io::Result<()> {
    events.name(
        "process_name",
        TRACE_PROCESS,
        0,
        "weft: what jobs launched (times predicted)",
    )?;
    let names = trace.names();
    let kernels = trace.kernels();
    let mut waiting: BTreeMap<u64, f64> = BTreeMap::new();
    let mut named: BTreeMap<u64, ()> = BTreeMap::new();
    for line in trace.lines.iter().take(MOST_EVENTS) {
        // Three rows per job: launches, waits, decisions.
        let row = |kind: u64| line.client * 4 + kind;
        if line.client > 0 && named.insert(line.client, ()).is_none() {
            let command = names.get(&line.client).map_or("", String::as_str);
            for (kind, what) in [(0, "launches"), (1, "waits at the gate"), (2, "decisions")] {
                let name = format!("{command} (process {}): {what}", line.pid);
                events.name("thread_name", TRACE_PROCESS, row(kind), name.trim_start())?;
            }
        }
        let at = line.t as f64 / 1e3 - offset_us;
        match line.event.as_str() {
            "launch" | "graph" | "transfer" => {
                if let Some(since) = waiting.remove(&line.client) {
                    events.put(&json!({
                        "ph": "X", "pid": TRACE_PROCESS, "tid": row(1), "ts": since, "dur": at - since,
                        "name": "wait", "args": {"kernel": kernel_of(line, &kernels)},
                    }))?;
                }
                events.put(&json!({
                    "ph": "X", "pid": TRACE_PROCESS, "tid": row(0), "ts": at,
                    "dur": line.ns.unwrap_or(0).max(0) as f64 / 1e3,
                    "name": kernel_of(line, &kernels).unwrap_or(&line.event),
                    "args": {"predicted_ns": line.ns, "event": line.event, "kernel": line.kernel},
                }))?;
            }
            "name" => {}
            "wait" => {
                waiting.entry(line.client).or_insert(at);
            }
            "memory" => events.put(&json!({
                "ph": "C", "pid": TRACE_PROCESS, "ts": at,
                "name": format!("process {}: managed memory on the device, MiB", line.pid),
                "args": {"value": line.resident.unwrap_or(0) as f64 / f64::from(1 << 20)},
            }))?,
            event => {
                let name = [Some(event), line.what.as_deref()];
                let name: Vec<&str> = name.into_iter().flatten().collect();
                events.put(&json!({
                    "ph": "i", "s": "t", "pid": TRACE_PROCESS, "tid": row(2), "ts": at,
                    "name": name.join(" "), "args": {"ns": line.ns},
                }))?;
            }
        }
    }
    Ok(())
}

/// Name of a line's kernel, else its hash. A transfer has none.
fn kernel_of<'a>(line: &'a TraceLine, names: &BTreeMap<(u64, &str), &'a str>) -> Option<&'a str> {
    let hash = line.kernel.as_deref().filter(|_| line.event != "transfer")?;
    Some(names.get(&(line.client, hash)).copied().unwrap_or(hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::page::tests::report;

    fn written(trace: Option<&BrokerTrace>) -> Vec<Value> {
        let mut file = Vec::new();
        write(&mut file, &report(), trace).expect("written");
        let file: Value = serde_json::from_slice(&file).expect("JSON");
        file["traceEvents"].as_array().expect("a list").clone()
    }

    #[test]
    fn roles_are_slices_and_figures_are_curves() {
        let events = written(None);
        let slices: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        let names: Vec<&str> = slices.iter().filter_map(|slice| slice["name"].as_str()).collect();
        assert_eq!(names, ["alone", "foreground", "background"]);
        assert_eq!((&slices[1]["ts"], &slices[1]["dur"]), (&json!(1e6), &json!(2e6)));
        assert_eq!(slices[2]["ts"], json!(1e6), "it came a second later");
        assert_eq!(slices[1]["args"]["lost_ns"], json!(12_000_000));
        let share = events
            .iter()
            .filter(|event| event["name"] == "python serve.py: GPU share, %");
        let share: Vec<&Value> = share.map(|event| &event["args"]["value"]).collect();
        assert_eq!(share, [&json!(0.0), &json!(20.0), &json!(30.0), &json!(0.0)]);
        assert!(events.iter().any(|event| event["cat"] == "warning"));
    }

    #[test]
    fn launches_of_a_trace_stand_at_the_jobs_times() {
        let line = |t: u64, event: &str| TraceLine {
            t,
            client: 1,
            pid: 10,
            event: event.to_string(),
            kernel: Some("k".to_string()),
            ns: Some(3_000),
            what: None,
            resident: None,
        };
        // The job of the report started at 5 s on this clock.
        let trace = BrokerTrace {
            lines: vec![
                line(6_000_000_000, "wait"),
                line(6_500_000_000, "launch"),
                line(6_600_000_000, "grant"),
                line(6_700_000_000, "launch"),
                TraceLine {
                    what: Some("fill".to_string()),
                    ..line(6_800_000_000, "name")
                },
                TraceLine {
                    kernel: Some("other".to_string()),
                    ..line(6_900_000_000, "launch")
                },
            ],
            is_cut: false,
        };
        let events = written(Some(&trace));
        let of_it: Vec<&Value> = events
            .iter()
            .filter(|event| event["pid"] == json!(TRACE_PROCESS) && event["ph"] != "M")
            .collect();
        assert_eq!((&of_it[0]["ts"], &of_it[0]["dur"]), (&json!(1e6), &json!(5e5)));
        assert_eq!((&of_it[1]["name"], &of_it[1]["dur"]), (&json!("fill"), &json!(3.0)));
        let kernels: Vec<&Value> = of_it.iter().map(|event| &event["args"]["kernel"]).collect();
        assert_eq!((kernels[1], kernels[3]), (&json!("k"), &json!("k")));
        assert_eq!((&of_it[4]["name"], of_it.len()), (&json!("other"), 5));
        assert_eq!((&of_it[2]["ph"], &of_it[2]["ts"]), (&json!("i"), &json!(1.6e6)));
    }
}
