// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft-lab memory`, which `scripts/lab memory` builds and starts.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use serde::Serialize;
use simgpu_calibration::Calibration;
use weft_engine::memory::MemorySettings;

use super::contender::ALL;
use super::study::{Study, StudyPlan};
use super::workload::NAMES;
use super::{aims, priority, report, study, whole_jobs};
use crate::aims::Aim;
use crate::{MS, Ns};

/// Jobs that together exceed the device's memory, in virtual time: the stock driver, weft, weft
/// without each of its ideas, a model of MSched, others.
///
///   scripts/lab memory                   all runs: tables and aims (minutes)
///   scripts/lab memory --check --json target/lab/memory.json
///                                        exit 1 if an aim is missed
///   scripts/lab memory --quick           two workloads at 100 and 200 %: shows whether it works
///   scripts/lab memory --workload decoders --share 200 --slice 100
///   scripts/lab memory --only whole-jobs whole jobs in turns of seconds, by eviction
///   scripts/lab memory --only service    a service with a batch job, against XSched with paging
///   scripts/lab memory --device rtx3080-like
///                                        the memory and link of MSched's smaller test bed
///   scripts/lab memory prediction --help
///                                        how good templates are on recorded launches
#[derive(Debug, Parser)]
#[command(name = "weft-lab memory", verbatim_doc_comment)]
struct MemoryOptions {
    /// Exit 1 if an aim is missed; the missed aims, with figures, come last
    #[arg(long)]
    check: bool,
    /// All results, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Two workloads, two shares
    #[arg(long)]
    quick: bool,
    /// Only this part: jobs that take turns, whole jobs that do, or a service with a batch job
    #[arg(long, value_enum)]
    only: Option<StudyPart>,
    /// The device's memory and link: a file of tests/simgpu/calibration by name, or a path. Kernel
    /// times are those of an RTX 5080 in any case
    #[arg(
        long,
        visible_alias = "calibration",
        value_name = "NAME",
        default_value = "rtx5080-like"
    )]
    device: String,
    /// Requests of the service that count
    #[arg(long, default_value_t = 100)]
    requests: usize,
    /// Only these workloads (decoders, vectors, rodinia, cnns, hybrid)
    #[arg(long)]
    workload: Vec<String>,
    /// Only these contenders, by name
    #[arg(long)]
    contender: Vec<String>,
    /// Only these shares of the device, per cent
    #[arg(long)]
    share: Vec<u64>,
    /// The common slice in ms, instead of the one from the model of MSched
    #[arg(long, value_name = "MS")]
    slice: Option<f64>,
    /// Seeds
    #[arg(long, value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,
    /// Threads to run on; 0 means all cores
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

/// Parts that may be run separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StudyPart {
    /// Jobs of one importance, in turns
    Turns,
    /// Whole jobs in turns of seconds: all memory of one leaves for another
    WholeJobs,
    /// A service with a batch job
    Service,
}

/// The JSON output.
#[derive(Debug, Serialize)]
struct MemoryResults<'a> {
    command: String,
    calibration: &'a str,
    aims: &'a [Aim],
    #[serde(flatten)]
    study: &'a Option<Study>,
    whole_jobs: &'a Option<whole_jobs::WholeJobs>,
    service: &'a [priority::ServiceRow],
}

/// A device's memory from its calibration, with the standard host's memory, its slice, ns, and the
/// memory of a context, bytes.
fn memory_of(device: &str) -> Result<(MemorySettings, Ns, u64)> {
    let figures = Calibration::load(device)
        .and_then(|calibration| calibration.figures())
        .with_context(|| format!("--device {device}"))?;
    let memory = figures.paging(MemorySettings::default().host_limit, true);
    Ok((memory, figures.engine.slice, figures.context_memory))
}

fn plan(options: &MemoryOptions) -> Result<(StudyPlan, u64)> {
    let (memory, device_slice, context) = memory_of(&options.device)?;
    let mut plan = StudyPlan::new(memory, device_slice, options.quick);
    let known = |name: &String| {
        let found = NAMES.into_iter().find(|known| known == name);
        found.with_context(|| format!("--workload {name}: choose of {}", NAMES.join(", ")))
    };
    if !options.workload.is_empty() {
        plan.workloads = options.workload.iter().map(known).collect::<Result<_>>()?;
    }
    if !options.contender.is_empty() {
        let known = |name: &String| {
            let found = ALL.into_iter().find(|known| known.name() == name);
            let names = ALL.map(|contender| format!("{:?}", contender.name()));
            found.with_context(|| format!("--contender {name}: choose of {}", names.join(", ")))
        };
        plan.contenders = options.contender.iter().map(known).collect::<Result<_>>()?;
    }
    if !options.share.is_empty() {
        if let Some(share) = options.share.iter().find(|share| !(100..=1000).contains(*share)) {
            bail!("--share {share}: per cent of the device, 100 to 1000");
        }
        plan.shares = options.share.clone();
    }
    if let Some(slice) = options.slice {
        if !(1.0..=60_000.0).contains(&slice) {
            bail!("--slice {slice}: milliseconds, 1 to 60000");
        }
        plan.slice = Some((slice * MS as f64) as Ns);
    }
    plan.seeds = options.seeds.clone();
    if options.requests == 0 {
        bail!("--requests 0: at least one");
    }
    if options.threads > 0 {
        plan.threads = options.threads;
    }
    Ok((plan, context))
}

fn run(options: &MemoryOptions) -> Result<bool> {
    let (plan, context) = plan(options)?;
    let start = Instant::now();
    let told = Mutex::new(Instant::now());
    let progress = |what: &str, done: usize, of: usize| {
        let Ok(mut told) = told.lock() else { return };
        if told.elapsed().as_secs() >= 5 || done == of {
            *told = Instant::now();
            eprintln!("{what}: {done} of {of} after {:.0} s", start.elapsed().as_secs_f64());
        }
    };
    let part = |part| options.only.is_none_or(|only| only == part);
    let study = part(StudyPart::Turns).then(|| study::make(&plan, &progress));
    let mut aims = study.as_ref().map_or_else(Vec::new, aims::judge);
    let whole_jobs = part(StudyPart::WholeJobs).then(|| {
        let pages = study.as_ref().map(|study| (study.slice_ms, study.rows.as_slice()));
        whole_jobs::make(&plan, context, pages, &progress)
    });
    aims.extend(whole_jobs.iter().flat_map(whole_jobs::judge));
    let chosen = !options.workload.is_empty() || !options.contender.is_empty() || !options.share.is_empty();
    let mut service = Vec::new();
    if options.only == Some(StudyPart::Service) || (options.only.is_none() && !chosen) {
        let of_service = priority::ServicePlan {
            memory: plan.memory,
            device_slice: plan.device_slice,
            requests: if options.quick {
                options.requests.min(20)
            } else {
                options.requests
            },
            seeds: plan.seeds.clone(),
            threads: plan.threads,
        };
        service = priority::make(&of_service, &|done, of| progress("the service", done, of));
        aims.extend(priority::judge(&service));
    }
    if let Some(path) = &options.json {
        let command = std::env::args().collect::<Vec<String>>().join(" ");
        let results = MemoryResults {
            command,
            calibration: &options.device,
            aims: &aims,
            study: &study,
            whole_jobs: &whole_jobs,
            service: &service,
        };
        write(path, &serde_json::to_string_pretty(&results)?)?;
    }
    if let Some(study) = &study {
        print!("{}", report::text(study));
    }
    if let Some(found) = &whole_jobs {
        print!("{}", whole_jobs::text(found));
    }
    print!("{}", priority::text(&service));
    println!();
    print!("{}", crate::report::text_of_aims(&aims));
    Ok(!options.check || aims.iter().all(|aim| aim.met))
}

fn write(path: &std::path::Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

/// Runs the command with the program's arguments after `memory`.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let mut arguments = arguments.peekable();
    if arguments.peek().is_some_and(|first| first == "prediction") {
        return super::prediction::main(arguments.skip(1));
    }
    let options = MemoryOptions::parse_from(std::iter::once("weft-lab memory".to_owned()).chain(arguments));
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weft-lab memory: {error:#}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_what_its_calibration_says() {
        let standard = memory_of("rtx5080-like").unwrap();
        assert_eq!(standard, (MemorySettings::default(), 1_500_000, 400 << 20));
        let (smaller, ..) = memory_of("rtx3080-like").unwrap();
        assert_eq!((smaller.capacity, smaller.to_device), (10 << 30, 22_220));
        assert!(memory_of("no such device").is_err());
    }
}
