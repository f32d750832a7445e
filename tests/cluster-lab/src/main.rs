// SPDX-License-Identifier: MIT OR Apache-2.0
//! The laboratory of clusters: the cluster's core in virtual time. `scripts/lab cluster` builds and
//! starts it.
//!
//! * [`openb`]: the public trace;
//! * [`known`]: figures published by others, from the same input;
//! * [`world`]: jobs with arrivals and runs under every policy;
//! * [`trial`]: jobs for it;
//! * [`serving`]: services with objectives;
//! * [`contenders`]: policies and a placement that only the lab has;
//! * [`claims`]: claims of papers, and this lab's results;
//! * [`environment`]: the same worlds for the training of networks.
//!
//! Invariants: a run is its input and its seeds. The core is the one that an engine's adaptor would
//! drive; the lab counts the given resources itself.
#![forbid(unsafe_code)]

mod claims;
mod contenders;
mod environment;
mod known;
mod openb;
mod serving;
mod trial;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;

use weft_cluster::placement::PlacementRule;

use contenders::inss_network::InssNetwork;
use contenders::meta_rl::LearntPlacement;
use world::NodeCosts;

/// Jobs on a cluster in virtual time: placements on a public trace, compared with the published
/// figures, and policies on jobs of the same trace.
///
///   scripts/lab cluster --check --json target/cluster.json
///   scripts/lab cluster --quick
///   scripts/lab cluster --only policies
#[derive(Debug, Parser)]
#[command(name = "scripts/lab cluster", verbatim_doc_comment)]
struct ClusterOptions {
    /// Two seeds and fewer jobs: a check that it works
    #[arg(long)]
    quick: bool,
    /// Exit 1 if a published figure is missed; the missed ones come last. 2 if none could be judged
    #[arg(long)]
    check: bool,
    /// All results, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// placements or policies, in place of both; shared, loads, rates, links, spread, placing or
    /// serving, a part of the policies; train: weights of SCHED2's stand-in; large: gangs on
    /// 10,000 GPUs
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// Seeds of the placements, from 42 on
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// Jobs of the part large
    #[arg(long, default_value_t = 20_000)]
    jobs: usize,
    /// Threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Costs of sharing on a node: under MPS, in place of time-sliced
    #[arg(long)]
    mps: bool,
    /// Only this policy, of the parts that have policies
    #[arg(long, value_name = "NAME")]
    policy: Vec<String>,
    /// The first seed of made jobs
    #[arg(long, value_name = "N", default_value_t = 1)]
    from_seed: u64,
    /// Plays worlds for a trainer, over standard input and output in lines of JSON: meta-rl,
    /// sched2, sched2-told or inss
    #[arg(long, value_name = "WHAT")]
    environment: Option<String>,
    /// Judge this network's file in place of the shipped one: meta-rl, sched2, sched2-told or
    /// inss
    #[arg(long, value_name = "FILE")]
    network: Option<PathBuf>,
    /// For --network: on seeds of neither figures nor training, to choose among networks
    #[arg(long)]
    compare: bool,
    /// The public trace's folder
    #[arg(long, value_name = "FOLDER", default_value = "../shared/data/openb")]
    openb: PathBuf,
}

#[derive(Debug, Serialize)]
struct ClusterResults {
    command: String,
    seconds: f64,
    placements: Vec<known::PlacementFigure>,
    policies: Vec<world::PolicyFigure>,
    serving: Vec<serving::ServingFigure>,
    claims: Vec<claims::ClaimFigure>,
}

const PARTS: [&str; 12] = [
    "placements",
    "policies",
    "shared",
    "links",
    "spread",
    "placing",
    "serving",
    "claims",
    "loads",
    "rates",
    "train",
    "large",
];

/// The chosen ones of these policies.
fn chosen<'a>(options: &ClusterOptions, names: &[&'a str]) -> Vec<&'a str> {
    let wanted = |name: &&&str| options.policy.is_empty() || options.policy.iter().any(|wanted| wanted == **name);
    names.iter().filter(wanted).copied().collect()
}

/// The policies' own settings, besides `openb` and `gangs`.
fn settings(options: &ClusterOptions, results: &mut ClusterResults) -> Result<()> {
    let part = |name: &str| {
        options
            .only
            .as_deref()
            .is_none_or(|only| [name, "policies", "claims"].contains(&only))
    };
    let (jobs, seeds) = if options.quick { (40, 1) } else { (400, 5) };
    let seeds = options.from_seed..options.from_seed + seeds;
    let mut add = |trials: Vec<trial::Trial>, policies: &[&str]| -> Result<()> {
        let figures = trial::run(&trials, &chosen(options, policies))?;
        print!("{}", world::table(&figures));
        results.policies.extend(figures);
        Ok(())
    };
    let costs = if options.mps {
        NodeCosts::MPS
    } else {
        NodeCosts::TIME_SLICED
    };
    if part("shared") {
        let trials = seeds.clone().map(|seed| trial::shared(seed, jobs, costs));
        add(trials.collect(), &contenders::NAMES)?;
    }
    if part("loads") {
        let policies = [
            &claims::EXCLUSIVE[..],
            &["shortest-remaining", "weft-exclusive", "weft"],
        ]
        .concat();
        for (name, load) in trial::SHARED_LOADS {
            let trials = seeds
                .clone()
                .map(|seed| trial::shared_at(name, load, seed, jobs, costs));
            add(trials.collect(), &policies)?;
        }
    }
    if part("rates") {
        let policies = ["shortest-remaining", "tiresias", "gittins", "elas", "gandiva", "weft"];
        for rate in trial::OTHER_BYTES_PER_S {
            let trials = seeds.clone().map(|seed| trial::gangs_at(rate, seed, jobs));
            add(trials.collect(), &policies)?;
        }
    }
    if part("links") {
        let policies = ["fifo-backfill", "tiresias", "gittins", "crux", "weft-exclusive", "weft"];
        add(seeds.clone().map(|seed| trial::links(seed, jobs)).collect(), &policies)?;
    }
    if part("spread") {
        let policies = [
            "fifo",
            "fifo-backfill",
            "shortest-remaining",
            "tiresias",
            "gittins",
            "gandiva",
            "sched2",
            "sched2-net",
            "sched2-net-told",
            "weft-exclusive",
            "weft",
        ];
        add(seeds.clone().map(|seed| trial::spread(seed, jobs)).collect(), &policies)?;
    }
    if part("placing") {
        let mut placements = trial::placements();
        placements.push(PlacementRule::Gang(Arc::new(LearntPlacement::shipped()?)));
        let figures = trial::place(&trial::placing(jobs, seeds.start..=seeds.end - 1), &placements)?;
        print!("{}", world::table(&figures));
        results.policies.extend(figures);
    }
    if part("serving") {
        results.serving = serving::run(seeds.start..=seeds.end - 1, &InssNetwork::shipped()?);
        print!("{}", serving::table(&results.serving));
    }
    results.claims = claims::judge(&results.policies, &results.serving);
    Ok(())
}

fn run(options: &ClusterOptions) -> Result<ExitCode> {
    if let Some(what) = &options.environment {
        environment::serve(what)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(network) = &options.network {
        let text = std::fs::read_to_string(network).with_context(|| format!("{}", network.display()))?;
        let first = if options.compare { 101 } else { 1 };
        let (jobs, seeds) = if options.quick { (40, 1) } else { (400, 5) };
        let seeds = first..=first + seeds - 1;
        if environment::name_of(&text)? == "inss" {
            print!("{}", serving::table(&serving::run_network(seeds, &text)?));
            return Ok(ExitCode::SUCCESS);
        }
        let figures = environment::judge(&text, jobs, seeds).with_context(|| format!("{}", network.display()))?;
        print!("{}", world::table(&figures));
        return Ok(ExitCode::SUCCESS);
    }
    let part = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    anyhow::ensure!(
        PARTS.into_iter().any(part),
        "--only: the parts are {}",
        PARTS.join(", ")
    );
    let began = Instant::now();
    let pods = options.openb.join(openb::PODS);
    let trace = pods.exists().then(|| openb::read(&options.openb)).transpose()?;
    let mut results = ClusterResults {
        command: std::env::args().skip(1).collect::<Vec<String>>().join(" "),
        seconds: 0.0,
        placements: Vec::new(),
        policies: Vec::new(),
        serving: Vec::new(),
        claims: Vec::new(),
    };
    if options.only.as_deref() == Some("train") {
        trial::train()?;
    }
    if part("policies") || part("claims") {
        let (of_trace, gangs, seeds) = if options.quick { (150, 60, 1) } else { (3_000, 400, 5) };
        let mut trials: Vec<trial::Trial> = trace.iter().map(|trace| trial::openb(trace, of_trace)).collect();
        let first = options.from_seed;
        trials.extend((first..first + seeds).map(|seed| trial::gangs(seed, gangs)));
        results.policies = trial::run(&trials, &chosen(options, &contenders::NAMES))?;
        print!("{}", world::table(&results.policies));
    }
    if !["placements", "train", "large"]
        .iter()
        .any(|only| options.only.as_deref() == Some(*only))
    {
        settings(options, &mut results)?;
        print!("{}", claims::table(&results.claims));
    }
    if options.only.as_deref() == Some("large") {
        results.policies = Vec::new();
        for policy in chosen(options, &contenders::NAMES) {
            let figures = trial::run(&[trial::large(options.jobs)], &[policy])?;
            print!("{}", world::table(&figures));
            results.policies.extend(figures);
        }
    }
    if let Some(trace) = trace.as_ref().filter(|_| part("placements")) {
        let seeds = if options.quick {
            options.seeds.min(2)
        } else {
            options.seeds
        };
        results.placements = known::run(trace, seeds, options.threads.max(1));
        print!("{}", known::table(&results.placements));
    }
    if trace.is_none() {
        println!(
            "not judged: {} is not there (--openb names the public trace's folder)",
            pods.display()
        );
    }
    results.seconds = began.elapsed().as_secs_f64();
    println!("{:.0} s", results.seconds);
    if let Some(path) = &options.json {
        write(path, &results)?;
    }
    let mut missed = results.placements.iter().filter(|figure| !figure.met).count();
    if !options.quick {
        missed += results.claims.iter().filter(|claim| claim.verdict == "MISSED").count();
    }
    Ok(match (options.check, results.placements.is_empty()) {
        (true, true) => ExitCode::from(2),
        (true, false) if missed > 0 => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

fn write(path: &Path, results: &ClusterResults) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
    }
    let text = serde_json::to_string_pretty(results)?;
    std::fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

fn main() -> ExitCode {
    match run(&ClusterOptions::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("weft-cluster-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}
