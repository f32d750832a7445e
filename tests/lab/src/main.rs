// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft-lab`: runs a scenario, or the large set, and reports the results. `scripts/lab` builds and
//! starts it.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;
use weft_engine::Mode;
use weft_player::Hosts;

use weft_lab::US;
use weft_lab::aims::{self, Aim, AimVerdict};
use weft_lab::calibrated::{CalibratedDevice, CalibrationOptions, LabSetting, PlayedDevice};
use weft_lab::compare::Tuning;
use weft_lab::foresight::{self, GapForesight};
use weft_lab::pairs::{self, CasePlan, CaseRow, HeldBackCases};
use weft_lab::report;
use weft_lab::rule::Rule;
use weft_lab::scenario::Scenario;
use weft_lab::speed::{self, Speed};

/// Jobs on one GPU in virtual time, under every policy on the same seed.
///
/// Without --scenario: every recorded model as a service with every model as a batch job, and the
/// cases beyond pairs (see tests/lab/src/pairs.rs).
///
///   weft-lab --scenario tests/lab/scenarios/service-and-training.toml
///   weft-lab --quick --check
///   weft-lab --full --threads 8
///   weft-lab --json target/lab/lab.json
///   weft-lab --kind pair --device mps --model resnet50 --model lstm
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
struct LabOptions {
    /// Run this scenario instead of the set
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// A tenth of the requests, a few models: shows whether it works, not whether aims are met
    #[arg(long)]
    quick: bool,
    /// Every case with every seed: tables then have intervals
    #[arg(long)]
    every_seed: bool,
    /// Every service with every batch job, every case with every seed: hours
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Exit 1 if an aim is missed (the missed aims, with figures, come last), 2 if no aim can be
    /// judged from the cases that ran
    #[arg(long)]
    check: bool,
    /// All results, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Recordings to replay
    #[arg(long, value_name = "FOLDER", default_value = "profiles/recorded/simulated-A100")]
    traces: PathBuf,
    /// Threads to run on; 0 means all cores
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Seeds. Without --full each case has one of them
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// Requests for a figure
    #[arg(long)]
    requests: Option<u64>,
    /// Only this device: mps (turns kernel by kernel), mps-shared (an A100 whose SMs kernels share
    /// block by block), mps-shared-h100 (an H100's SMs, with the recordings' own kernel times) or
    /// time-sliced. Default: mps and time-sliced, the kind's own devices, or the scenario's own
    #[arg(long)]
    device: Option<String>,
    #[command(flatten)]
    calibration: CalibrationOptions,
    /// With mps-shared: per cent that blocks take longer while others' blocks have the rest of the
    /// device, in place of 30
    #[arg(long, value_name = "PERCENT", requires = "device")]
    contention: Option<u32>,
    /// Only these kinds of cases
    #[arg(long)]
    kind: Vec<String>,
    /// Only these models
    #[arg(long)]
    model: Vec<String>,
    /// Only cases with a model that is held back from tuning (resnet152, gpt2, vit_b_16,
    /// detection), only cases without, or all
    #[arg(long, value_enum, default_value = "all")]
    held_back: HeldBackCases,
    /// The most batch jobs for each service (of kind pair; 4, or all with --full or --model)
    #[arg(long)]
    partners: Option<usize>,
    /// Begin no case after this many minutes; the page then reports the number of cases that ran
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Every rule on every pair and at random arrivals, not only weft, fikit and the device's own
    #[arg(long)]
    all_rules: bool,
    /// The frontier of every pair: every rule on each, with its one parameter swept. `scripts/lab
    /// frontier` sets it
    #[arg(long)]
    frontier: bool,
    /// Hosts take these parts of the recorded host time: 0.5 is a host twice as fast. All cases run
    /// for each; aims are judged for the first
    #[arg(long, value_name = "PARTS", default_value = "1", value_delimiter = ',', value_parser = host_time)]
    host_time: Vec<f64>,
    /// Only these rules (weft, fikit, default, ...), for a quick trial; aims that compare rules are
    /// not judged then
    #[arg(long)]
    rule: Vec<Rule>,
    /// Try another `risk` of policy weft
    #[arg(long)]
    risk: Option<f64>,
    /// Try another minimum share
    #[arg(long)]
    minimum_share: Option<f64>,
    /// Part of the device's time that the batch jobs together have at least, as a part of one
    #[arg(long)]
    at_least: Option<f64>,
    /// Launches that a background job's host may leave behind at a closed gate: on is the 1024 that
    /// the interposer's queue holds, off or 0 is as with WEFT_QUEUE=off. Several (on,off): one
    /// block each, and a table of all
    #[arg(long, value_name = "LAUNCHES", value_delimiter = ',', value_parser = queue)]
    queue: Vec<usize>,
    /// Microseconds that background jobs spin at a closed gate before they sleep
    #[arg(long, value_name = "US")]
    gate_spin: Option<u64>,
    /// Leave a part of policy weft out, to measure its effect: the grace before a better moment, or
    /// the hints (a foreground job's calls that announce its next kernel). Or, for every rule, the
    /// time that it adds to a launch
    #[arg(long, value_parser = ["grace", "hints", "launch-costs"])]
    without: Vec<String>,
    /// Use of the time of gaps, by their length and policy
    #[arg(long)]
    gaps: bool,
    /// Why gap time was not filled: by cause, policy and length of gap
    #[arg(long)]
    why: bool,
}

/// A part of the recorded host time.
fn host_time(given: &str) -> Result<f64, String> {
    match given.parse::<f64>() {
        Ok(part) if part > 0.0 && part <= 100.0 => Ok(part),
        _ => Err("not a part of the recorded host time above 0 and at most 100, such as 0.5".into()),
    }
}

/// Length of a launch queue.
fn queue(given: &str) -> Result<usize, String> {
    match given {
        "on" => Ok(Hosts::default().queue),
        "off" => Ok(0),
        _ => given.parse().map_err(|_| "not on, off or a number of launches".into()),
    }
}

/// The JSON output.
#[derive(Debug, Serialize)]
struct LabResults<'a> {
    command: &'a str,
    commit: &'a str,
    seeds: &'a [u64],
    requests: u64,
    /// Cases that ran, and the number of all.
    cases: (usize, usize),
    seconds: f64,
    events: u64,
    /// Calibrations and times of the devices.
    devices: Vec<&'a PlayedDevice>,
    aims: Vec<SettingAim<'a>>,
    foresight: &'a [GapForesight],
    speed: &'a [Speed],
    /// Means over the cases of a device, kind, host and rule, with intervals if there are several
    /// seeds.
    summaries: Vec<&'a report::Summary>,
    rows: Vec<&'a CaseRow>,
}

/// An aim in one setting.
#[derive(Debug, Serialize)]
struct SettingAim<'a> {
    #[serde(flatten)]
    setting: &'a LabSetting,
    #[serde(flatten)]
    aim: &'a Aim,
}

/// All results for one device with one launch queue.
struct LabBlock {
    device: PlayedDevice,
    rows: Vec<CaseRow>,
    summaries: Vec<report::Summary>,
    aims: Vec<Aim>,
}

/// All results.
struct PlayedBlocks {
    blocks: Vec<LabBlock>,
    foresight: Vec<GapForesight>,
    speed: Vec<Speed>,
    seeds: Vec<u64>,
    requests: u64,
    /// Cases that ran, and the number of all.
    cases: (usize, usize),
    seconds: f64,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first == "admission") {
        return weft_lab::admission::main(arguments.skip(1));
    }
    if arguments.peek().is_some_and(|first| first == "memory") {
        return weft_lab::memory::command::main(arguments.skip(1));
    }
    if arguments.peek().is_some_and(|first| first == "measured") {
        return weft_lab::measured::main(arguments.skip(1));
    }
    if arguments.peek().is_some_and(|first| first == "together") {
        return weft_lab::together::main(arguments.skip(1));
    }
    let options = LabOptions::parse();
    match run(&options) {
        Ok(_) if !options.check => ExitCode::SUCCESS,
        Ok(AimVerdict::Met) => ExitCode::SUCCESS,
        Ok(AimVerdict::Missed) => ExitCode::FAILURE,
        Ok(AimVerdict::Nothing) => {
            eprintln!(
                "weft-lab: nothing was judged: no case of those asked for was run to its end that any aim speaks of"
            );
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("weft-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &LabOptions) -> Result<AimVerdict> {
    match &options.scenario {
        Some(path) => the_scenario(options, path),
        None => the_set(options),
    }
}

/// Each requested device with each requested launch queue.
fn settings(options: &LabOptions) -> Result<Vec<(CalibratedDevice, Option<usize>)>> {
    let queues = match options.queue.as_slice() {
        [] => vec![None],
        given => given.iter().copied().map(Some).collect(),
    };
    let devices = options.calibration.devices()?;
    let pairs = devices
        .into_iter()
        .flat_map(|device| queues.iter().map(move |queue| (device.clone(), *queue)));
    Ok(pairs.collect())
}

fn the_scenario(options: &LabOptions, path: &Path) -> Result<AimVerdict> {
    let start = Instant::now();
    let mode = mode(options)?;
    let mut blocks = Vec::new();
    let (mut seeds, mut requests, mut cases) = (Vec::new(), 0, 0);
    for (device, queue) in settings(options)? {
        let mut scenario = Scenario::load(path, &device)?;
        for bench in &mut scenario.benches {
            bench.device.mode = mode.unwrap_or(bench.device.mode);
            bench.tuning = tuning(options, queue);
        }
        let Some(bench) = scenario.benches.first() else {
            continue;
        };
        let played = PlayedDevice::new(&device, queue, &bench.device, &bench.hosts);
        println!("{played}");
        let rows = one_scenario(&scenario, &played.setting);
        print!("{}", report::text(&rows));
        blocks.push(LabBlock::of(played, rows, &[], &[]));
        cases += scenario.benches.len();
        requests = scenario.benches.first().map_or(0, |bench| bench.requests);
        seeds = scenario.benches.iter().map(|bench| bench.seed).collect();
    }
    let played = PlayedBlocks {
        blocks,
        foresight: Vec::new(),
        speed: Vec::new(),
        seeds,
        requests,
        cases: (cases, cases),
        seconds: start.elapsed().as_secs_f64(),
    };
    tell(options, &played)
}

fn one_scenario(scenario: &Scenario, setting: &LabSetting) -> Vec<CaseRow> {
    let mut rows = Vec::new();
    for bench in &scenario.benches {
        let known = bench.know_all(&scenario.jobs);
        let (service, batch) = pairs::names(&scenario.jobs);
        for rule in &scenario.rules {
            eprintln!("{}: seed {}, {rule}", scenario.name, bench.seed);
            rows.push(CaseRow {
                setting: setting.clone(),
                kind: "scenario",
                device: pairs::mode_name(bench.device.mode),
                service: service.clone(),
                batch: batch.clone(),
                closed: scenario.jobs[0].arrivals.is_closed(),
                host_time: 1.0,
                figures: bench.compare(&known, *rule),
            });
        }
    }
    rows
}

/// The way in which jobs share the device, if it is given.
fn mode(options: &LabOptions) -> Result<Option<Mode>> {
    let named = options.device.as_deref();
    named
        .map(|name| pairs::mode_named(name, options.contention))
        .transpose()
}

fn tuning(options: &LabOptions, queue: Option<usize>) -> Tuning {
    let without = |name: &str| options.without.iter().any(|part| part == name);
    Tuning {
        risk: options.risk,
        minimum_share: options.minimum_share,
        at_least: options.at_least,
        queue,
        gate_spin: options.gate_spin.map(|us| us.saturating_mul(US)),
        no_grace: without("grace"),
        no_launch_costs: without("launch-costs"),
        no_hints: without("hints"),
    }
}

/// The plan of one device and launch queue.
fn plan(options: &LabOptions, calibrated: CalibratedDevice, queue: Option<usize>) -> Result<CasePlan> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let requests = options.requests.unwrap_or(if options.quick { 100 } else { 1_000 });
    Ok(CasePlan {
        calibrated,
        device: mode(options)?,
        seeds: options.seeds.clone(),
        every_seed: options.full || options.every_seed,
        requests: requests.max(1),
        threads: if options.threads == 0 { cores } else { options.threads },
        kinds: match (options.quick, options.kind.is_empty()) {
            (_, true) if options.frontier => vec!["pair".into()],
            (true, true) => [
                "pair",
                "several",
                "equals",
                "unprofiled",
                "poisson",
                "shape",
                "predictor",
                "core",
            ]
            .map(String::from)
            .to_vec(),
            _ => options.kind.clone(),
        },
        models: match (options.quick, options.model.is_empty()) {
            (true, true) => ["resnet50", "bert_base", "lstm"].map(String::from).to_vec(),
            _ => options.model.clone(),
        },
        short: !options.full,
        held_back: options.held_back,
        partners: options
            .partners
            .unwrap_or(match options.full || options.quick || !options.model.is_empty() {
                true => usize::MAX,
                false => 4,
            }),
        until: None,
        all_rules: options.all_rules,
        frontier: options.frontier,
        host_times: options.host_time.clone(),
        rules: options.rule.clone(),
        tuning: tuning(options, queue),
    })
}

fn the_set(options: &LabOptions) -> Result<AimVerdict> {
    let start = Instant::now();
    let settings = settings(options)?;
    let models = pairs::models(&options.traces)?;
    let mut plans = Vec::new();
    for (device, queue) in &settings {
        plans.push(plan(options, device.clone(), *queue)?);
    }
    // Each block gets an equal part of the time.
    let minutes = options
        .minutes
        .map(|minutes| minutes.clamp(0.0, 1e6) / settings.len() as f64);
    let (mut rows_of, mut cases) = (Vec::new(), (0, 0));
    for ((device, queue), plan) in settings.iter().zip(&mut plans) {
        plan.until = minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(60.0 * minutes));
        let of_plan = pairs::cases(&models, plan);
        let played = PlayedDevice::new(device, *queue, &device.settings(Mode::TimeSlice), &device.hosts(1.0));
        println!("{played}");
        let rows = play(&models, &of_plan, plan);
        cases = (cases.0 + cases_in(&rows), cases.1 + of_plan.len());
        print!("{}", report::text_of_set(&rows));
        rows_of.push((played, rows));
    }
    let first = &plans[0];
    let foresight: Vec<GapForesight> = models
        .iter()
        .filter(|_| first.wants("predictor"))
        .flat_map(|model| [(&model.infer, "infer"), (&model.train, "train")].map(|(trace, mode)| (model, trace, mode)))
        .filter_map(|(model, trace, mode)| {
            let trace = trace.as_ref()?;
            Some(foresight::of(&format!("{}-{mode}", model.name), trace))
        })
        .collect();
    let speed: Vec<Speed> = weft_scheduler::PolicyName::ALL
        .iter()
        .filter(|_| first.wants("core"))
        .flat_map(|policy| [100, 1_000].map(|clients| speed::measure(*policy, clients)))
        .collect();
    let blocks = rows_of
        .into_iter()
        .map(|(device, rows)| LabBlock::of(device, rows, &foresight, &speed));
    let played = PlayedBlocks {
        blocks: blocks.collect(),
        foresight,
        speed,
        seeds: first.seeds.clone(),
        requests: first.requests,
        cases,
        seconds: start.elapsed().as_secs_f64(),
    };
    tell(options, &played)
}

/// Plays the cases of a plan, and prints its progress.
fn play(models: &[pairs::Model], cases: &[pairs::Case], plan: &CasePlan) -> Vec<CaseRow> {
    let start = Instant::now();
    eprintln!(
        "{} models, {} cases, {} requests a figure, {} threads",
        models.len(),
        cases.len(),
        plan.requests,
        plan.threads
    );
    pairs::run_with_progress(cases, plan, start)
}

/// Number of cases in these rows.
fn cases_in(rows: &[CaseRow]) -> usize {
    let case = |row: &CaseRow| {
        let jobs = (row.service.clone(), row.batch.clone());
        (
            row.kind,
            row.device,
            jobs,
            row.closed,
            row.figures.seed,
            row.host_time.to_bits(),
        )
    };
    rows.iter().map(case).collect::<HashSet<_>>().len()
}

impl LabBlock {
    /// The block of the rows of one device and launch queue, with judged aims.
    fn of(device: PlayedDevice, rows: Vec<CaseRow>, foresight: &[GapForesight], speed: &[Speed]) -> LabBlock {
        LabBlock {
            device,
            summaries: report::Summary::of(&rows),
            aims: aims::judge(&rows, foresight, speed),
            rows,
        }
    }

    fn setting_aims(&self) -> impl Iterator<Item = SettingAim<'_>> {
        let setting = &self.device.setting;
        self.aims.iter().map(move |aim| SettingAim { setting, aim })
    }
}

/// Writes the requested files, and prints the rest: aims last.
fn tell(options: &LabOptions, played: &PlayedBlocks) -> Result<AimVerdict> {
    let blocks = &played.blocks;
    let command = std::env::args().collect::<Vec<String>>().join(" ");
    let commit = commit();
    let rows = || blocks.iter().flat_map(|block| &block.rows);
    let events = rows().map(|row| row.figures.events).sum();
    if let Some(path) = &options.json {
        let results = LabResults {
            command: &command,
            commit: &commit,
            seeds: &played.seeds,
            requests: played.requests,
            cases: played.cases,
            seconds: played.seconds,
            events,
            devices: blocks.iter().map(|block| &block.device).collect(),
            aims: blocks.iter().flat_map(LabBlock::setting_aims).collect(),
            foresight: &played.foresight,
            speed: &played.speed,
            summaries: blocks.iter().flat_map(|block| &block.summaries).collect(),
            rows: rows().collect(),
        };
        write(path, &serde_json::to_string(&results)?)?;
    }
    let several = blocks.len() > 1;
    for block in blocks.iter().filter(|_| options.gaps || options.why) {
        if several {
            println!("{}", block.device);
        }
        if options.gaps {
            print!("{}", report::text_of_gaps(&block.rows));
        }
        if options.why {
            print!("{}", report::causes::text(&block.rows));
        }
    }
    let summaries: Vec<_> = blocks.iter().flat_map(|block| block.summaries.clone()).collect();
    print!("{}", report::text_of_settings(&summaries));
    if played.requests < report::ENOUGH && rows().next().is_some() {
        println!(
            "{} requests a figure, where the aims ask for {}: p99 and p99.9 rest on few of them",
            played.requests,
            report::ENOUGH
        );
    }
    if played.cases.0 < played.cases.1 {
        println!(
            "{} of {} cases were run in the time given",
            played.cases.0, played.cases.1
        );
    }
    for block in blocks {
        if several {
            println!("{}", block.device.setting);
        }
        print!("{}", report::text_of_aims(&block.aims));
    }
    std::io::stdout().flush()?;
    let aims: Vec<Aim> = blocks.iter().flat_map(|block| block.aims.clone()).collect();
    Ok(AimVerdict::of(&aims))
}

fn write(path: &PathBuf, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

/// The commit that this runs from, if git knows it.
fn commit() -> String {
    let git = std::process::Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .output();
    git.ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string())
        .unwrap_or_default()
}
