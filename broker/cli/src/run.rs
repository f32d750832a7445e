// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft run`: a job under weft. The job replaces this process (exec), so pid, exit code, signals
//! and stdout are its own.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use super::config::ConfigSources;
use super::config::keys::{ConfigSection, KEYS};
use super::device_share::{self, SmShare};
use super::environment::{self, BackingOption, Environment, Wishes};
use super::{gpus, inherited, mps, start, text};
use weft_api::job_name;
use weft_api::mps::MpsMode;
use weft_api::paths::Places;
use weft_api::profile_path;
use weft_protocol::amount::MemoryNeed;
use weft_protocol::duration;
use weft_protocol::latency_budget::{self, LatencyBudget};

/// Shell exit codes for a missing command, and for one that cannot be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

const EXAMPLES: &str = "\
Examples:
  weft run -p 0 --profile resnet --slowdown 2% -- python serve.py
  weft run -p 0 --profile resnet --slowdown 5% --slo 50ms -- python serve.py
  weft run --name nightly -p 7 --sm-share 50% -- python train.py";

/// Run a job under weft, together with other jobs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Name of the job in all tables; default: its script, module or program [env: WEFT_NAME]
    #[arg(long, value_name = "NAME", value_parser = job_name::parse)]
    pub name: Option<String>,
    /// 0 (matters most) to 9 (fills gaps last), or high (0), normal (5), low (7), idle (9);
    /// default: 5 [env: WEFT_PRIORITY]
    #[arg(long, short, value_parser = text::priority)]
    pub priority: Option<u8>,
    /// Largest mean slowdown by background jobs while this is a foreground job, as a part of its
    /// time (2%, 0.02, 0); default: the broker's, 1% [env: WEFT_SLOWDOWN]
    #[arg(long, value_name = "PART", value_parser = latency_budget::parse_slowdown, allow_hyphen_values = true)]
    pub slowdown: Option<u32>,
    /// Longest latency, from the first launch to the next wait, within which that slowdown may be
    /// used (50ms, 1.5s, 200us); default: no limit [env: WEFT_SLO]
    #[arg(long, value_name = "TIME", value_parser = latency_budget::parse_slo, allow_hyphen_values = true)]
    pub slo: Option<u64>,
    /// Part of the GPU's time that the job has at least as a background job, also if a foreground
    /// job is slower for it (30%, 0.3); default: none [env: WEFT_AT_LEAST]
    #[arg(long, value_name = "PART", value_parser = latency_budget::parse_at_least, allow_hyphen_values = true)]
    pub at_least: Option<u32>,
    /// Profile of the job: a name given to `weft profile`, or a file (with a slash)
    /// [env: WEFT_PROFILE]
    #[arg(long)]
    pub profile: Option<String>,
    /// Peak device memory of the job, all its processes together (12GiB, 500MB); the job begins
    /// when that is free; REQUEST:LIMIT (8GiB:20GiB): the request is kept for the job, and the
    /// part above that, up to the limit, is others' when they need it [env: WEFT_MEMORY]
    #[arg(long, value_name = "BYTES[:LIMIT]", value_parser = text::memory)]
    pub memory: Option<MemoryNeed>,
    /// Run time of the job: short (minutes), medium (up to an hour or so) or long; short jobs may
    /// pass long ones in the queue [env: WEFT_DURATION]
    #[arg(long, value_parser = ["short", "medium", "long"])]
    pub duration: Option<String>,
    /// Longest wait of the job for device memory; after it CUDA reports that it is out of memory
    /// [env: WEFT_WAIT]
    #[arg(long, value_name = "SECONDS", conflicts_with = "no_wait", value_parser = seconds, allow_hyphen_values = true)]
    pub wait: Option<u64>,
    /// Do not wait for device memory: CUDA reports that it is out of memory, and the job exits with
    /// status 75 (by itself, so that its output is not lost; after ten seconds it is ended)
    /// [env: WEFT_WAIT=no]
    #[arg(long)]
    pub no_wait: bool,
    /// Kind of the job's device memory: on the device, or managed, so that jobs can run which
    /// together exceed the device; auto: managed only if the job would otherwise wait for device
    /// memory; movable: it moves to the host when a more important job needs the room, or by weft
    /// pause --evict [env: WEFT_BACKING]
    #[arg(long, value_enum)]
    pub backing: Option<BackingOption>,
    /// Move the job's memory to the host once it has made no call for this long (10m, 90s);
    /// its next call brings it back; with --backing movable, or if the broker allows the driver's
    /// checkpoint [env: WEFT_EVICT_IDLE]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_some)]
    pub evict_idle: Option<Duration>,
    /// Longest time for which the job's memory makes room for other jobs (30m): then it comes back
    /// as soon as its bytes are free, before jobs that wait; for the same jobs as --evict-idle
    /// [env: WEFT_LONGEST_EVICTED]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_some)]
    pub longest_evicted: Option<Duration>,
    /// GPU of the job: any (weft chooses the one that fits best), or a list to choose from, with
    /// nvidia-smi's numbers or names (0,1 or GPU-5e1f...,MIG-...); within CUDA_VISIBLE_DEVICES if
    /// that is set [env: WEFT_GPU]
    #[arg(long, value_name = "any|LIST")]
    pub gpu: Option<String>,
    /// Part of the device's SMs that the job may use under MPS (25%)
    #[arg(long, value_name = "PERCENT", value_parser = SmShare::parse)]
    pub sm_share: Option<SmShare>,
    /// Put the job under the MPS of its broker, and have a broker that is started for it start MPS:
    /// auto: if nothing stands in the way; on: also print why not; off: no MPS for this job;
    /// default: as the broker has it (weft broker --mps)
    #[arg(long, value_name = "auto|on|off")]
    pub mps: Option<MpsMode>,
    /// Check options and variables, and end. Starts neither the job nor a broker
    #[arg(long, hide = true)]
    pub check: bool,
    /// Do not print on stderr, at the job's end, what weft did for it [env: WEFT_OUTCOME=off]
    #[arg(long, short)]
    pub quiet: bool,
    /// The job and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Runs the job.
pub fn main(args: RunArgs) -> Result<ExitCode> {
    let places = Places::of_environment();
    let profile = match args.profile.as_deref().map(profile_path::absolute).transpose() {
        Ok(profile) => profile,
        Err(error) => {
            eprintln!("weft: {error}");
            return Ok(ExitCode::from(2));
        }
    };
    if let Err(wrong) = said_well(&args) {
        eprintln!("weft: {wrong}");
        return Ok(ExitCode::from(2));
    }
    if args.check {
        // The backing of a job elsewhere may come from its own variables and files.
        let wrong = args.backing.and_then(|backing| not_movable(&args, Some(backing)));
        return Ok(match wrong {
            Some(option) => only_movable(option),
            None => ExitCode::SUCCESS,
        });
    }
    let files = ConfigSources::of_environment(false).load();
    for wrong in &files.errors {
        eprintln!("weft: {wrong}");
    }
    // An error in a file that the user cannot correct does not stop the job.
    if files.errors.iter().any(|wrong| !wrong.foreign) {
        return Ok(ExitCode::from(2));
    }
    let defaults = files.variables(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    let default = |name: &str| defaults.iter().find(|(set, _)| *set == name).map(|(_, value)| value);
    let variable_or_default = |name: &str| {
        let own = std::env::var_os(name).filter(|value| !value.is_empty());
        own.or_else(|| default(name).cloned())?.into_string().ok()
    };
    let backing = args
        .backing
        .or_else(|| BackingOption::from_str(variable_or_default("WEFT_BACKING")?.trim(), false).ok());
    if let Some(option) = not_movable(&args, backing) {
        return Ok(only_movable(option));
    }
    if backing != Some(BackingOption::Movable) {
        for variable in ["WEFT_EVICT_IDLE", "WEFT_LONGEST_EVICTED"] {
            // Other jobs of this shell, or of this file, may have movable memory.
            if std::env::var_os(variable).is_some_and(|value| !value.is_empty()) {
                text::warn(format!(
                    "{variable} is for movable memory only: this job has none without --backing movable"
                ));
            }
        }
    }
    // The broker reports to the job whether the profile is usable.
    let mut extra = start::idle_exit();
    extra.extend(mps::broker_option(args.mps));
    if let Err(error) = start::ensure(&places, &extra) {
        eprintln!("weft: {}; the job runs without weft", text::told(&error));
    }
    let joining = mps::joining(&places, args.mps).unwrap_or_default();
    let wishes = Wishes {
        name: args.name,
        priority: args.priority,
        budget: LatencyBudget {
            slowdown: args.slowdown,
            slo: args.slo,
            at_least: args.at_least,
        },
        profile,
        profiling: false,
        backing: args.backing,
        evict_idle: args.evict_idle,
        longest_evicted: args.longest_evicted,
        evidence: None,
        memory: args.memory,
        duration: args.duration,
        wait: match args.no_wait {
            true => Some("no".to_string()),
            false => args.wait.map(|seconds| seconds.to_string()),
        },
        sm_share: args.sm_share,
        most_important: joining.most_important,
        outcome: outcome(args.quiet, default("WEFT_OUTCOME").is_some()),
        defaults: defaults.clone(),
    };
    // The job runs even if weft cannot.
    let environment = environment::assemble(&places, &wishes).unwrap_or_else(|error| {
        eprintln!("weft: {}; the job runs without weft", text::told(&error));
        Environment::default()
    });
    for warning in &environment.warnings {
        text::warn(warning);
    }
    let wanted = args.gpu.or_else(|| variable_or_default("WEFT_GPU"));
    let device = match wanted {
        None => None,
        Some(wanted) => match gpus::choose(&places, &wanted, &wishes, &environment) {
            Ok(device) => device,
            Err(gpus::Trouble::Usage(why)) => {
                eprintln!("weft: --gpu {wanted}: {why}");
                return Ok(ExitCode::from(2));
            }
            Err(gpus::Trouble::Refused(why)) => {
                eprintln!("weft: this job can never run here: {why}");
                return Ok(ExitCode::FAILURE);
            }
        },
    };
    let Some((program, arguments)) = args.command.split_first() else {
        return Ok(ExitCode::from(2));
    };
    let unreached = super::outside::reason(program, arguments);
    if let Some(unreached) = &unreached {
        eprintln!("weft: {}", unreached.why);
    }
    let mut job = Command::new(program);
    job.args(arguments);
    let visible = device.clone().or_else(|| std::env::var("CUDA_VISIBLE_DEVICES").ok());
    if let Some(device) = device {
        job.env("CUDA_VISIBLE_DEVICES", device);
    }
    if !unreached.is_some_and(|unreached| unreached.breaks) {
        job.envs(environment.set);
        let (set, line) = mps::variables(&joining, args.mps, visible.as_deref());
        job.envs(set);
        mps::print(line);
    }
    let error = inherited::pass_on(&mut job).exec();
    Ok(not_started(program, &error))
}

/// The given option for movable memory, if the job's memory is not movable.
fn not_movable(args: &RunArgs, backing: Option<BackingOption>) -> Option<&'static str> {
    let given = [
        ("--evict-idle", args.evict_idle),
        ("--longest-evicted", args.longest_evicted),
    ];
    let found = given.into_iter().find(|(_, time)| time.is_some())?;
    (backing != Some(BackingOption::Movable)).then_some(found.0)
}

fn only_movable(option: &str) -> ExitCode {
    eprintln!("weft: {option} is for movable memory only: add --backing movable");
    ExitCode::from(2)
}

/// Whether the job prints its outcome at its end; `None` leaves it to the variable.
fn outcome(quiet: bool, by_file: bool) -> Option<bool> {
    let said = by_file || std::env::var_os("WEFT_OUTCOME").is_some_and(|value| !value.is_empty());
    match (quiet, said) {
        (true, _) => Some(false),
        (false, true) => None,
        (false, false) => Some(true),
    }
}

/// Checks variables that no option overrides: a job with an invalid value would run without it.
fn said_well(args: &RunArgs) -> Result<(), String> {
    let variable = |name: &str| {
        let value = std::env::var_os(name)?.to_string_lossy().trim().to_string();
        Some(value).filter(|value| !value.is_empty())
    };
    let given = |name: &str| match name {
        "memory" => args.memory.is_some(),
        "duration" => args.duration.is_some(),
        "wait" => args.wait.is_some() || args.no_wait,
        "evict-idle" => args.evict_idle.is_some(),
        "longest-evicted" => args.longest_evicted.is_some(),
        "slowdown" => args.slowdown.is_some(),
        "slo" => args.slo.is_some(),
        "at-least" => args.at_least.is_some(),
        // The library and the lines below judge the other variables.
        _ => true,
    };
    for key in KEYS
        .iter()
        .filter(|key| key.section == ConfigSection::Run && !given(key.name))
    {
        if let Some(name) = key.variable
            && let Some(text) = variable(name)
        {
            (key.check)(&text).map_err(|why| format!("{name}: {why}"))?;
        }
    }
    if !args.quiet
        && let Some(text) = variable("WEFT_OUTCOME")
        && !["on", "off"].contains(&text.as_str())
    {
        return Err(format!("WEFT_OUTCOME={text} is neither on nor off"));
    }
    device_share::check(&|name| std::env::var_os(name).unwrap_or_default()).map(|_| ())
}

/// Parses a time to wait, s.
fn seconds(text: &str) -> Result<u64, String> {
    let asked = text.parse::<u64>();
    asked.map_err(|_| "expected a whole number of seconds, 0 or more (--no-wait does not wait)".to_string())
}

/// Reports why a job did not start; returns a shell's exit code.
pub fn not_started(program: &OsString, error: &io::Error) -> ExitCode {
    match error.kind() {
        io::ErrorKind::NotFound => {
            eprintln!("weft: {}: command not found", program.display());
            ExitCode::from(NOT_FOUND)
        }
        _ => {
            eprintln!("weft: {}: {}", program.display(), text::why(error));
            ExitCode::from(NOT_EXECUTABLE)
        }
    }
}
