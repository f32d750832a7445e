//! `weft-lab`: runs a scenario, or the large set, and says what came of it. `scripts/lab` builds
//! and starts it.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;

use weft_lab::US;
use weft_lab::aims::{self, Aim, AimVerdict};
use weft_lab::compare::Tuning;
use weft_lab::foresight::{self, GapForesight};
use weft_lab::pairs::{self, CasePlan, CaseRow, HeldBackCases};
use weft_lab::report;
use weft_lab::rule::Rule;
use weft_lab::scenario::Scenario;
use weft_lab::speed::{self, Speed};

/// Jobs on one GPU in virtual time, under every policy on the same seed.
///
/// Without --scenario: every recorded model as a service beside every model as a batch job, and the
/// cases beyond pairs (see tests/lab/src/pairs.rs).
///
///   weft-lab --scenario tests/lab/scenarios/service-and-training.toml
///   weft-lab --quick --check
///   weft-lab --full --threads 8 --page target/lab/full.html
///   weft-lab --page target/lab/page.html --json target/lab/lab.json
///   weft-lab --kind pair --device mps --model resnet50 --model lstm
#[derive(Debug, Parser)]
#[command(verbatim_doc_comment)]
struct LabOptions {
    /// Run this scenario instead of the set
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// A tenth of the requests, a few models: says whether it works, not whether aims are met
    #[arg(long)]
    quick: bool,
    /// Every case with every seed: tables then have intervals
    #[arg(long)]
    every_seed: bool,
    /// Every service beside every batch job, every case with every seed: hours
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Exit 1 where an aim is missed (which, with figures, comes last), 2 where nothing that was
    /// run is enough to judge any
    #[arg(long)]
    check: bool,
    /// Everything, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Everything, for people: one HTML file
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Recordings to replay
    #[arg(long, value_name = "FOLDER", default_value = "profiles/recorded/simulated-A100")]
    traces: PathBuf,
    /// Threads to run on; all cores where 0
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Seeds. Without --full each case has one of them
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// Requests a figure rests on
    #[arg(long)]
    requests: Option<u64>,
    /// Only this device: mps (turns kernel by kernel), mps-shared (an A100 whose SMs kernels share
    /// block by block), mps-shared-h100 (an H100's SMs, with the recordings' own kernel times) or
    /// time-sliced. Without it mps and time-sliced, or what the kind is about
    #[arg(long)]
    device: Option<String>,
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
    /// Cases with a model that is held back from tuning (resnet152, gpt2, vit_b_16, detection)
    /// only, cases without, or all
    #[arg(long, value_enum, default_value = "all")]
    held_back: HeldBackCases,
    /// Put each service beside so many batch jobs (of kind pair; 4, or all with --full or --model)
    #[arg(long)]
    partners: Option<usize>,
    /// Begin no case after so many minutes; the page then says how many of them it rests on
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Every rule on every pair and at random arrivals, not only weft, fikit and the device's own
    #[arg(long)]
    all_rules: bool,
    /// The frontier of every pair: every rule on each, with its one parameter swept. `scripts/lab
    /// frontier` asks for it
    #[arg(long)]
    frontier: bool,
    /// Hosts take these parts of the recorded host time: 0.5 is a host twice as fast. All cases are
    /// run for each; aims are judged for the first
    #[arg(long, value_name = "PARTS", default_value = "1", value_delimiter = ',', value_parser = host_time)]
    host_time: Vec<f64>,
    /// Only these rules (weft, fikit, default, ...): enough to try something out; aims that compare
    /// rules are not judged then
    #[arg(long)]
    rule: Vec<Rule>,
    /// Try another `risk` of policy weft
    #[arg(long)]
    risk: Option<f64>,
    /// Try another minimum share
    #[arg(long)]
    minimum_share: Option<f64>,
    /// Let background jobs' hosts leave so many launches behind at a closed gate, in place of the
    /// 1024 that the interposer's queue holds; 0: as with WEFT_QUEUE=off
    #[arg(long)]
    queue: Option<usize>,
    /// Let background jobs spin so many microseconds at a closed gate before they sleep
    #[arg(long, value_name = "US")]
    gate_spin: Option<u64>,
    /// Leave a part of policy weft out, to see what it is worth: the grace before a better moment,
    /// or the stir (a foreground job's calls that are no launches are then no sign of it). Or, of
    /// every rule, what it adds to a launch
    #[arg(long, value_parser = ["grace", "stir", "launch-costs"])]
    without: Vec<String>,
    /// Where the time of gaps went, by their length and policy
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

/// What is written as JSON.
#[derive(Debug, Serialize)]
struct LabResults {
    command: String,
    commit: String,
    seeds: Vec<u64>,
    requests: u64,
    /// Cases that were run, of how many.
    cases: (usize, usize),
    seconds: f64,
    events: u64,
    aims: Vec<Aim>,
    foresight: Vec<GapForesight>,
    speed: Vec<Speed>,
    /// Means over the cases of a device, kind, host and rule, with intervals where there are seeds.
    summaries: Vec<report::Summary>,
    rows: Vec<CaseRow>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first == "admission") {
        return weft_lab::admission::main(arguments.skip(1));
    }
    if arguments.peek().is_some_and(|first| first == "memory") {
        return weft_lab::memory::command::main(arguments.skip(1));
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

fn the_scenario(options: &LabOptions, path: &Path) -> Result<AimVerdict> {
    let start = Instant::now();
    let scenario = Scenario::load(path)?;
    let rows = one_scenario(&scenario);
    let results = LabResults {
        seeds: scenario.benches.iter().map(|bench| bench.seed).collect(),
        requests: scenario.benches.first().map_or(0, |bench| bench.requests),
        cases: (scenario.benches.len(), scenario.benches.len()),
        seconds: start.elapsed().as_secs_f64(),
        ..LabResults::of(rows, Vec::new(), Vec::new())
    };
    print!("{}", report::text(&results.rows));
    tell(options, &results)
}

fn one_scenario(scenario: &Scenario) -> Vec<CaseRow> {
    let mut rows = Vec::new();
    for bench in &scenario.benches {
        let known = bench.know_all(&scenario.jobs);
        let (service, batch) = pairs::names(&scenario.jobs);
        for rule in &scenario.rules {
            eprintln!("{}: seed {}, {rule}", scenario.name, bench.seed);
            rows.push(CaseRow {
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

fn plan(options: &LabOptions) -> Result<CasePlan> {
    let named = options.device.as_deref();
    let device = named
        .map(|name| pairs::mode_named(name, options.contention))
        .transpose()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let requests = options.requests.unwrap_or(if options.quick { 100 } else { 1_000 });
    Ok(CasePlan {
        device,
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
        until: options
            .minutes
            .map(|minutes| Instant::now() + Duration::from_secs_f64(60.0 * minutes.clamp(0.0, 1e6))),
        all_rules: options.all_rules,
        frontier: options.frontier,
        host_times: options.host_time.clone(),
        rules: options.rule.clone(),
        tuning: Tuning {
            risk: options.risk,
            minimum_share: options.minimum_share,
            queue: options.queue,
            gate_spin: options.gate_spin.map(|us| us.saturating_mul(US)),
            no_grace: options.without.iter().any(|part| part == "grace"),
            no_launch_costs: options.without.iter().any(|part| part == "launch-costs"),
            no_stir: options.without.iter().any(|part| part == "stir"),
        },
    })
}

fn the_set(options: &LabOptions) -> Result<AimVerdict> {
    let start = Instant::now();
    let plan = plan(options)?;
    let models = pairs::models(&options.traces)?;
    let cases = pairs::cases(&models, &plan);
    eprintln!(
        "{} models, {} cases, {} requests a figure, {} threads",
        models.len(),
        cases.len(),
        plan.requests,
        plan.threads
    );
    let told = Mutex::new(Instant::now());
    let progress = |done: usize, of: usize| {
        let Ok(mut told) = told.lock() else { return };
        if told.elapsed().as_secs() >= 10 || done == of {
            *told = Instant::now();
            eprintln!("{done} of {of} cases after {:.0} s", start.elapsed().as_secs_f64());
        }
    };
    let rows = pairs::run(&cases, &plan, &progress);
    let run = rows
        .iter()
        .map(|row| {
            (
                row.kind,
                row.device,
                &row.service,
                &row.batch,
                row.closed,
                row.figures.seed,
                row.host_time.to_bits(),
            )
        })
        .collect::<std::collections::HashSet<_>>()
        .len();
    let wants = |kind: &str| plan.wants(kind);
    let foresight: Vec<GapForesight> = models
        .iter()
        .filter(|_| wants("predictor"))
        .flat_map(|model| [(&model.infer, "infer"), (&model.train, "train")].map(|(trace, mode)| (model, trace, mode)))
        .filter_map(|(model, trace, mode)| {
            let trace = trace.as_ref()?;
            Some(foresight::of(&format!("{}-{mode}", model.name), trace))
        })
        .collect();
    let speed: Vec<Speed> = weft_scheduler::PolicyName::ALL
        .iter()
        .filter(|_| wants("core"))
        .flat_map(|(policy, _, _)| [100, 1_000].map(|clients| speed::measure(*policy, clients)))
        .collect();
    let results = LabResults {
        seeds: plan.seeds.clone(),
        requests: plan.requests,
        cases: (run, cases.len()),
        seconds: start.elapsed().as_secs_f64(),
        ..LabResults::of(rows, foresight, speed)
    };
    print!("{}", report::text_of_set(&results.rows));
    tell(options, &results)
}

impl LabResults {
    /// Of what was run, judged; what is known of the run itself is for the caller to say.
    fn of(rows: Vec<CaseRow>, foresight: Vec<GapForesight>, speed: Vec<Speed>) -> LabResults {
        LabResults {
            command: std::env::args().collect::<Vec<String>>().join(" "),
            commit: commit(),
            seeds: Vec::new(),
            requests: 0,
            cases: (0, 0),
            seconds: 0.0,
            events: rows.iter().map(|row| row.figures.events).sum(),
            aims: aims::judge(&rows, &foresight, &speed),
            foresight,
            speed,
            summaries: report::Summary::of(&rows),
            rows,
        }
    }
}

/// Writes what is to be written, and says the rest: aims last.
fn tell(options: &LabOptions, results: &LabResults) -> Result<AimVerdict> {
    if let Some(path) = &options.json {
        write(path, &serde_json::to_string(results)?)?;
    }
    if let Some(path) = &options.page {
        let made = report::PageOrigin {
            command: &results.command,
            commit: &results.commit,
            seeds: &results.seeds,
            requests: results.requests,
            seconds: results.seconds,
            events: results.events,
            cases: results.cases,
        };
        let page = report::page(&made, &results.rows, &results.aims, &results.foresight, &results.speed);
        write(path, &page)?;
    }
    if options.gaps {
        print!("{}", report::text_of_gaps(&results.rows));
    }
    if options.why {
        print!("{}", report::causes::text(&results.rows));
    }
    if results.requests < report::ENOUGH && !results.rows.is_empty() {
        println!(
            "{} requests a figure, where the aims ask for {}: p99 and p99.9 rest on few of them",
            results.requests,
            report::ENOUGH
        );
    }
    if results.cases.0 < results.cases.1 {
        println!(
            "{} of {} cases were run in the time given",
            results.cases.0, results.cases.1
        );
    }
    print!("{}", report::text_of_aims(&results.aims));
    std::io::stdout().flush()?;
    Ok(AimVerdict::of(&results.aims))
}

fn write(path: &PathBuf, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

/// The commit that this runs from, if git says.
fn commit() -> String {
    let git = std::process::Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .output();
    git.ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string())
        .unwrap_or_default()
}
