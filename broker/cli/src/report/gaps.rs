// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gaps of the foreground jobs in a broker's trace (`weft broker --trace`), and the jobs that ran
//! in them.
//!
//! A gap is the time between a wait at which a foreground job saw all its work end, and its next
//! launch. The broker knows when jobs launch, not when the device runs the kernels: times of
//! launches are estimates. A launch is charged before its time is known. So a job's charges are
//! scaled to the GPU time in its recording while other jobs ran, which all other views show.
//!
//! ```text
//! filled = min(gap, estimated times of background launches in it)
//! held   = part of the gap in which a background launch waited at the gate - filled
//! rest   = no background job had anything to launch
//! ```
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Largest number of lines read from a trace: they must fit into memory.
const MOST_LINES: usize = 4_000 * 1_000;

/// Number of invalid lines beyond which a file does not count as weft's: a killed broker leaves
/// one.
const MOST_DAMAGED: usize = 1;

/// A line of the trace.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct TraceLine {
    /// ns of `CLOCK_MONOTONIC`.
    pub(super) t: u64,
    pub(super) client: u64,
    pub(super) pid: u32,
    pub(super) event: String,
    #[serde(default)]
    pub(super) kernel: Option<String>,
    #[serde(default)]
    pub(super) ns: Option<i64>,
    #[serde(default)]
    pub(super) what: Option<String>,
    /// Field of the event `memory`.
    #[serde(default)]
    pub(super) resident: Option<u64>,
}

impl TraceLine {
    /// Whether it is a launch of something.
    fn is_work(&self) -> bool {
        matches!(self.event.as_str(), "launch" | "graph" | "transfer")
    }

    /// Its predicted time, ns.
    fn charge(&self) -> u64 {
        self.ns.unwrap_or(0).max(0) as u64
    }
}

/// A broker's trace.
#[derive(Debug, Default)]
pub(super) struct BrokerTrace {
    /// Lines ordered by time.
    pub(super) lines: Vec<TraceLine>,
    /// Whether lines were left out, by the broker or here.
    pub(super) is_cut: bool,
}

impl BrokerTrace {
    /// Reads a file.
    pub(super) fn load(path: &Path) -> Result<BrokerTrace> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        BrokerTrace::read(BufReader::new(file), MOST_LINES).with_context(|| path.display().to_string())
    }

    fn read(from: impl BufRead, most: usize) -> Result<BrokerTrace> {
        let mut trace = BrokerTrace::default();
        let mut damaged = 0;
        for line in from.split(b'\n') {
            let line = line?;
            if line.is_empty() {
                continue;
            }
            if trace.lines.len() >= most {
                trace.is_cut = true;
                break;
            }
            match serde_json::from_slice::<TraceLine>(&line) {
                Ok(line) => {
                    trace.is_cut |= line.event == "dropped";
                    trace.lines.push(line);
                }
                Err(_) => damaged += 1,
            }
            if damaged > MOST_DAMAGED {
                bail!("not a broker's trace, or damaged (weft broker --trace FILE writes one)");
            }
        }
        if trace.lines.is_empty() {
            bail!("not a broker's trace, or empty (weft broker --trace FILE writes one)");
        }
        trace.lines.sort_by_key(|line| line.t);
        Ok(trace)
    }

    /// Kernel names by client and hash.
    pub(super) fn kernels(&self) -> BTreeMap<(u64, &str), &str> {
        let named = self.lines.iter().filter(|line| line.event == "name");
        named
            .filter_map(|line| Some(((line.client, line.kernel.as_deref()?), line.what.as_deref()?)))
            .collect()
    }

    /// Name of each client, from its command.
    pub(super) fn names(&self) -> BTreeMap<u64, String> {
        let came = self.lines.iter().filter(|line| line.event == "attached");
        came.map(|line| (line.client, line.what.clone().unwrap_or_default()))
            .collect()
    }
}

/// One job's part in the gaps of another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GapFiller {
    /// Number of its launches in gaps.
    pub(super) launches: u64,
    /// Their estimated time, ns.
    pub(super) ns: u64,
    /// Number of its launches while the foreground job had work.
    pub(super) launches_within: u64,
    /// Their estimated time, ns.
    pub(super) ns_within: u64,
}

/// The gaps of one foreground job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JobGaps {
    /// The foreground job: client, process and command.
    pub(super) client: u64,
    pub(super) pid: u32,
    pub(super) command: String,
    /// Number of gaps with another job there, and their length, ns.
    pub(super) count: u64,
    pub(super) length_ns: u64,
    /// Parts of the length, ns.
    pub(super) filled_ns: u64,
    pub(super) held_ns: u64,
    /// Background jobs by client, with their commands.
    pub(super) fillers: BTreeMap<u64, (String, GapFiller)>,
}

/// A gap that has not ended yet.
#[derive(Debug, Clone, Copy, Default)]
struct UnendedGap {
    since: u64,
    filled: u64,
    held: u64,
}

/// State of a client while the trace is read.
#[derive(Debug, Default)]
struct TraceClient {
    foreground: bool,
    background: bool,
    /// Whether a launch waits at the gate.
    waits: bool,
    gap: Option<UnendedGap>,
}

/// Factor for the charges of each client's launches. `had`: GPU time in its recording while other
/// jobs ran, ns.
fn scales(trace: &BrokerTrace, had: impl Fn(u64, u32) -> Option<u64>) -> BTreeMap<u64, f64> {
    let mut charged: BTreeMap<(u64, u32), u64> = BTreeMap::new();
    // If lines were left out, the sums do not cover the same launches.
    for line in trace.lines.iter().filter(|line| !trace.is_cut && line.is_work()) {
        let sum = charged.entry((line.client, line.pid)).or_default();
        *sum = sum.saturating_add(line.charge());
    }
    let scaled = charged.into_iter().filter_map(|((client, pid), charged)| {
        let had = had(client, pid).filter(|had| *had > 0 && charged > 0)?;
        Some((client, had as f64 / charged as f64))
    });
    scaled.collect()
}

/// The gaps of all foreground jobs of a trace. `had`: recorded GPU time of a client and process
/// while other jobs ran, ns.
pub(super) fn of(trace: &BrokerTrace, had: impl Fn(u64, u32) -> Option<u64>) -> Vec<JobGaps> {
    let scales = scales(trace, had);
    let names = trace.names();
    let name = |client: u64| names.get(&client).cloned().unwrap_or_default();
    let mut clients: BTreeMap<u64, TraceClient> = BTreeMap::new();
    let mut all: BTreeMap<u64, JobGaps> = BTreeMap::new();
    let mut before = trace.lines.first().map_or(0, |line| line.t);
    for line in &trace.lines {
        // Time while a launch waits counts as held.
        let passed = line.t.saturating_sub(before);
        before = line.t;
        if clients.values().any(|client| client.background && client.waits) {
            for gap in clients.values_mut().filter_map(|client| client.gap.as_mut()) {
                gap.held += passed;
            }
        }
        let is_background = clients.get(&line.client).is_some_and(|client| client.background);
        let client = clients.entry(line.client).or_default();
        match line.event.as_str() {
            "mode" => {
                let mode = line.what.as_deref();
                client.foreground = mode == Some("foreground");
                client.background = mode == Some("background");
                client.gap = None;
                client.waits &= client.background;
            }
            "gone" => {
                clients.remove(&line.client);
            }
            "wait" => client.waits = true,
            "idle" if client.foreground => {
                client.gap = Some(UnendedGap {
                    since: line.t,
                    ..UnendedGap::default()
                });
            }
            "launch" | "graph" | "transfer" if client.foreground => {
                if let Some(gap) = client.gap.take() {
                    let has_company = clients.values().any(|client| client.background);
                    let length = line.t.saturating_sub(gap.since);
                    if has_company && length > 0 {
                        let gaps = all.entry(line.client).or_default();
                        let filled = gap.filled.min(length);
                        gaps.count += 1;
                        gaps.length_ns += length;
                        gaps.filled_ns += filled;
                        gaps.held_ns += gap.held.min(length).saturating_sub(filled);
                    }
                }
                let gaps = all.entry(line.client).or_default();
                (gaps.client, gaps.pid) = (line.client, line.pid);
            }
            "launch" | "graph" | "transfer" if is_background => {
                client.waits = false;
                let scale = scales.get(&line.client).copied().unwrap_or(1.0);
                let ns = (line.charge() as f64 * scale) as u64;
                for (of, foreground) in clients.iter_mut().filter(|(_, client)| client.foreground) {
                    let gaps = all.entry(*of).or_default();
                    let (_, filler) = gaps
                        .fillers
                        .entry(line.client)
                        .or_insert_with(|| (name(line.client), GapFiller::default()));
                    match &mut foreground.gap {
                        Some(gap) => {
                            gap.filled = gap.filled.saturating_add(ns);
                            filler.launches += 1;
                            filler.ns = filler.ns.saturating_add(ns);
                        }
                        None => {
                            filler.launches_within += 1;
                            filler.ns_within = filler.ns_within.saturating_add(ns);
                        }
                    }
                }
            }
            _ => {}
        }
    }
    let mut all: Vec<JobGaps> = all.into_values().filter(|gaps| gaps.count > 0).collect();
    for gaps in &mut all {
        gaps.command = name(gaps.client);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BrokerTrace> {
        BrokerTrace::read(text.as_bytes(), 100)
    }

    const TRACE: &str = r#"
{"t":0,"client":1,"pid":10,"event":"attached","what":"serve"}
{"t":0,"client":2,"pid":20,"event":"attached","what":"train"}
{"t":1,"client":1,"pid":10,"event":"mode","what":"foreground"}
{"t":1,"client":2,"pid":20,"event":"mode","what":"background"}
{"t":100,"client":1,"pid":10,"event":"launch","kernel":"a","ns":50}
{"t":150,"client":2,"pid":20,"event":"launch","kernel":"b","ns":7}
{"t":200,"client":1,"pid":10,"event":"idle"}
{"t":210,"client":2,"pid":20,"event":"launch","kernel":"b","ns":30}
{"t":250,"client":2,"pid":20,"event":"wait","kernel":"b","ns":30}
{"t":300,"client":1,"pid":10,"event":"launch","kernel":"a","ns":50}
{"t":400,"client":1,"pid":10,"event":"idle"}
{"t":440,"client":2,"pid":20,"event":"launch","kernel":"b","ns":500}
{"t":500,"client":1,"pid":10,"event":"launch","kernel":"a","ns":50}
{"t":600,"client":2,"pid":20,"event":"gone","what":"goodbye"}
{"t":610,"client":1,"pid":10,"event":"idle"}
{"t":700,"client":1,"pid":10,"event":"launch","kernel":"a","ns":50}
"#;

    #[test]
    fn gaps_are_filled_held_or_empty() {
        let gaps = of(&read(TRACE).expect("a trace"), |_, _| None);
        assert_eq!(gaps.len(), 1);
        let gap = &gaps[0];
        assert_eq!((gap.client, gap.pid, gap.command.as_str()), (1, 10, "serve"));
        assert_eq!((gap.count, gap.length_ns), (2, 200), "not the one without company");
        // 30 of the first gap and all of the second; it was held for 50 and 40.
        assert_eq!((gap.filled_ns, gap.held_ns), (130, 20));
        let (name, filler) = &gap.fillers[&2];
        assert_eq!(name, "train");
        assert_eq!((filler.launches, filler.ns), (2, 530));
        assert_eq!((filler.launches_within, filler.ns_within), (1, 7));
    }

    #[test]
    fn gaps_are_filled_by_what_a_job_had_whatever_it_was_charged() {
        // Its launches were charged 537; the recording has a tenth of that, or the same.
        let had = |part: u64| move |client, pid| ((client, pid) == (2, 20)).then_some(537 / part);
        let trace = read(TRACE).expect("a trace");
        let of_it = |part| of(&trace, had(part)).remove(0);
        assert_eq!(of_it(1), of(&trace, |_, _| None).remove(0));
        let tenth = of_it(10);
        assert_eq!((tenth.fillers[&2].1.ns, tenth.filled_ns), (51, 2 + 49));
        let cut = BrokerTrace {
            is_cut: true,
            ..read(TRACE).expect("a trace")
        };
        assert_eq!(of(&cut, had(10)).remove(0).filled_ns, 130);
    }

    #[test]
    fn what_is_no_trace_is_said_in_one_line() {
        for bad in ["", "\n\n", "{}\n{}\n", "<html>\nno\n", r#"{"t":1}"#] {
            let error = read(bad).map(drop).expect_err("bad").to_string();
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let half = &TRACE[..TRACE.len() - 20];
        assert_eq!(read(half).expect("a killed broker's").lines.len(), 15);
        let cut = BrokerTrace::read(TRACE.as_bytes(), 5).expect("read");
        assert!(cut.is_cut && cut.lines.len() == 5);
        assert!(BrokerTrace::load(Path::new("/nowhere/trace")).is_err());
    }
}
