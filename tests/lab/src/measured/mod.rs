// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lab on measured traces: `scripts/lab measured`.
//!
//! The recordings of `profiles/recorded` have estimated kernel times, one sequence of kernels each
//! and a wait at the end of each request. Real services and trainings differ in all three. This
//! command plays traces that real GPUs wrote, and changes recordings that flatter.
//!
//! | kind | the service | beside it |
//! |---|---|---|
//! | `measured` | each measured service | each measured training of one GPU generation |
//! | `distributed` | the same | trainings whose kernels wait for peers |
//! | `crossed` | each measured service | two trainings of one GPU each, of any generation |
//! | `measured+recorded` | each measured service | a recorded training, two for each |
//! | `recorded+measured` | each recorded service | a measured training, two for each |
//! | `recorded+distributed` | each recorded service | a distributed training, two for each |
//! | `think` | recorded services with [`THINK_MS`] between requests | recorded trainings |
//! | `no-wait` | recorded services whose requests end without a wait | recorded trainings |
//! | `lag` | the same, waiting for the request before | recorded trainings |
//! | `differ` | recorded services whose requests differ in their first kernel | recorded trainings |
//! | `varied` | services recorded with requests of many sizes | recorded trainings |
//!
//! The first two kinds also run with requests at random and on hosts that are twice as fast.
//!
//! * `jobs`: the traces as jobs; `cases`: the cases of a kind.
//! * `table`: figures for people; `limits`: the aims.
//!
//! A measured service whose requests end without a wait keeps its own pace. The others get
//! [`pairs::THINK_NS`] between requests.
#![forbid(unsafe_code)]

mod cases;
mod jobs;
mod limits;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde::Serialize;
use weft_engine::Mode;

pub use cases::THINK_MS;

use crate::aims::Aim;
use crate::calibrated::{CalibratedDevice, CalibrationOptions, PlayedDevice};
use crate::compare::Tuning;
use crate::pairs::{self, CasePlan, CaseRow, HeldBackCases};
use crate::report;
use crate::rule::Rule;
use cases::Cases;
use jobs::LabJobs;

/// Rules if none is requested: weft, the simple ones and the device's own.
const RULES: [Rule; 5] = [Rule::WEFT, Rule::Tally, Rule::One, Rule::MpsPriority, Rule::Default];

/// Kinds, in the order of tables.
pub const KINDS: [&str; 11] = [
    "measured",
    "distributed",
    "crossed",
    "measured+recorded",
    "recorded+measured",
    "recorded+distributed",
    "think",
    "no-wait",
    "lag",
    "differ",
    "varied",
];

/// Services that share a device with trainings in virtual time: measured traces, and recordings
/// that are changed because they flatter.
///
///   scripts/lab measured
///   scripts/lab measured --quick --device mps
///   scripts/lab measured --kind measured --rule weft --worst 10 --json target/lab/measured.json
///   scripts/lab measured --check
#[derive(Debug, Parser)]
#[command(name = "scripts/lab measured", verbatim_doc_comment)]
struct MeasuredOptions {
    /// Folder of measured traces (.trace, also in its folder `weft`). Without it: WEFT_TRACES, then
    /// ../shared/data/traces
    #[arg(long, value_name = "FOLDER")]
    traces: Option<PathBuf>,
    /// Folder of weft's recordings
    #[arg(long, value_name = "FOLDER", default_value = "profiles/recorded/simulated-A100")]
    recorded: PathBuf,
    /// Folder of recorded services whose requests have many sizes
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "profiles/recorded/simulated-A100-varied"
    )]
    varied: PathBuf,
    /// Only these kinds of cases
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(KINDS))]
    kind: Vec<String>,
    /// Only mps, mps-shared (an A100's SMs), mps-shared-h100 or time-sliced. Default: mps,
    /// mps-shared and time-sliced
    #[arg(long)]
    device: Option<String>,
    /// With mps-shared: per cent that blocks take longer while others' blocks have the rest of the
    /// device, in place of 30
    #[arg(long, value_name = "PERCENT", requires = "device")]
    contention: Option<u32>,
    /// Only these rules. Default: weft, tally, one, mps-priority and default
    #[arg(long)]
    rule: Vec<Rule>,
    /// Only jobs of these names
    #[arg(long)]
    job: Vec<String>,
    /// Requests for a figure: fewer if they take more than 60 s of virtual time, but 24 at least
    #[arg(long, default_value_t = 1_000)]
    requests: u64,
    /// 60 requests a figure, the first seed
    #[arg(long)]
    quick: bool,
    /// Seeds: every case runs with each
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    seeds: Vec<u64>,
    /// Threads to run on; 0 means all cores
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print weft's worst cases of each group
    #[arg(long, default_value_t = 3)]
    worst: usize,
    /// Also print why gap time was not filled
    #[arg(long)]
    why: bool,
    /// Try another `risk` of policy weft
    #[arg(long)]
    risk: Option<f64>,
    /// Exit 1 if an aim is missed, 2 if none could be judged
    #[arg(long)]
    check: bool,
    /// All results, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    calibration: CalibrationOptions,
}

/// Runs the command.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = MeasuredOptions::parse_from(std::iter::once("measured".to_string()).chain(arguments));
    match run(&options) {
        Ok(aims) if options.check && aims.iter().any(|aim| aim.is_judged() && !aim.met) => ExitCode::FAILURE,
        Ok(aims) if options.check && !aims.iter().any(Aim::is_judged) => ExitCode::from(2),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft-lab measured: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// All results, for programs.
#[derive(Debug, Serialize)]
struct MeasuredResults<'a> {
    command: String,
    requests: u64,
    seeds: &'a [u64],
    seconds: f64,
    aims: &'a [Aim],
    rows: &'a [CaseRow],
}

fn run(options: &MeasuredOptions) -> Result<Vec<Aim>> {
    let start = Instant::now();
    let jobs = LabJobs::load(options)?;
    let devices = options.calibration.devices()?;
    let rules: Vec<Rule> = match options.rule.as_slice() {
        [] => RULES.to_vec(),
        given => given.to_vec(),
    };
    let modes = match &options.device {
        Some(name) => vec![pairs::mode_named(name, options.contention)?],
        None => ["mps", "mps-shared", "time-sliced"]
            .iter()
            .map(|name| pairs::mode_named(name, None))
            .collect::<Result<Vec<Mode>>>()?,
    };
    let seeds = match options.quick {
        true => &options.seeds[..1],
        false => &options.seeds[..],
    };
    let requests = if options.quick {
        options.requests.min(60)
    } else {
        options.requests
    };
    let mut rows: Vec<CaseRow> = Vec::new();
    for calibrated in &devices {
        let played = PlayedDevice::new(
            calibrated,
            None,
            &calibrated.settings(Mode::TimeSlice),
            &calibrated.hosts(1.0),
        );
        println!("{played}");
        let plan = plan(options, calibrated.clone(), requests);
        let mut cases = Vec::new();
        for mode in &modes {
            for seed in seeds {
                let mut made = Cases {
                    jobs: &jobs,
                    mode: *mode,
                    seed: *seed,
                    requests,
                    rules: &rules,
                    out: Vec::new(),
                };
                made.measured();
                made.crossed();
                made.changed();
                cases.extend(made.out);
            }
        }
        cases.retain(|case| plan.wants(case.kind));
        if cases.is_empty() {
            bail!("no case of these kinds and jobs");
        }
        let played = pairs::run_with_progress(&cases, &plan, start);
        print!("{}", table::text(&played));
        print!("{}", table::worst(&played, options.worst));
        if options.why {
            print!("{}", report::causes::text(&played));
        }
        rows.extend(played);
    }
    let aims = limits::judge(&rows);
    print!("{}", report::text_of_aims(&aims));
    if let Some(path) = &options.json {
        let results = MeasuredResults {
            command: std::env::args().collect::<Vec<String>>().join(" "),
            requests,
            seeds,
            seconds: start.elapsed().as_secs_f64(),
            aims: &aims,
            rows: &rows,
        };
        let text = serde_json::to_string(&results)?;
        std::fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(aims)
}

fn plan(options: &MeasuredOptions, calibrated: CalibratedDevice, requests: u64) -> CasePlan {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    CasePlan {
        calibrated,
        device: None,
        seeds: options.seeds.clone(),
        every_seed: true,
        requests,
        threads: if options.threads == 0 { cores } else { options.threads },
        kinds: options.kind.clone(),
        models: Vec::new(),
        short: false,
        held_back: HeldBackCases::All,
        partners: usize::MAX,
        until: None,
        all_rules: false,
        frontier: false,
        host_times: vec![1.0],
        rules: Vec::new(),
        tuning: Tuning {
            risk: options.risk,
            ..Tuning::default()
        },
    }
}
