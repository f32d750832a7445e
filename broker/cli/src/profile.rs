// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft profile`: runs a job once and learns its kernels, their times and gaps; shows and lists
//! profiles.
//!
//! * An unwritable file is reported before the job starts.
//! * A replaced profile is kept as `NAME.old`.
//! * The exit code is the job's, or [`NOTHING`](waiting::NOTHING) if nothing was learnt.
//!
//! The job samples itself (`WEFT_MODE=profile`), the broker collects the samples and writes the
//! profile, this command waits.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Subcommand;

use super::environment::{self, BackingOption, EvidenceOption, Wishes};
use super::run::not_started;
use super::{inherited, mps, start, text, trace, waiting};
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::mps::MpsMode;
use weft_api::paths::Places;
use weft_api::profile_path;
use weft_api::status::Sampled;

/// Learn a job once (stage 1), or show the profiles. Returns the job's exit status, or 73 if the
/// job succeeded but no profile (or trace) was written. A former profile of that name is kept as
/// NAME.old
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ProfileArgs {
    #[command(subcommand)]
    action: Option<ProfileAction>,
    /// Name of the profile
    #[arg(long, required_unless_present = "trace")]
    name: Option<String>,
    /// Record every launch of the steps that the job marks (cuProfilerStart) in this file; this is
    /// heavier than a profile. With --name the profile is made from the trace
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "priority"])]
    trace: Option<PathBuf>,
    /// Also write the profile to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Priority while the job is sampled, 0 to 9; default: 0, so that its gaps are its own
    #[arg(long, short, value_parser = text::priority)]
    priority: Option<u8>,
    /// Kind of the job's device memory while it is sampled; the memory that its kernels touch is
    /// learnt only with managed memory
    #[arg(long, value_enum, conflicts_with = "trace")]
    backing: Option<BackingOption>,
    /// Source of which memory a kernel touched: the driver (a simulated one reports it), or the
    /// host's page table. With the latter the job's memory is managed, and launches run one by one
    /// until each kernel was seen often enough, for at most two minutes. None of this counts as the
    /// job's own time
    #[arg(long, hide_short_help = true, value_enum, conflicts_with = "trace")]
    evidence: Option<EvidenceOption>,
    /// Whether the job is sampled under the MPS of its broker, as for weft run; default: as the
    /// broker has it
    #[arg(long, value_name = "auto|on|off", conflicts_with = "trace")]
    mps: Option<MpsMode>,
    /// The job and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(super) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
enum ProfileAction {
    /// Print a profile
    Show {
        /// Its name, or a file (with a slash)
        name: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List the profiles
    List,
    /// Make a profile from the memory use of an ended job that had neither --memory nor a profile
    /// (weft queue lists these jobs)
    Keep {
        /// Its process id; default: the job that ended last
        #[arg(value_parser = text::whole::<u32>)]
        pid: Option<u32>,
        /// Name of the profile; an existing one gets the larger figures of both
        #[arg(long)]
        name: String,
    },
    /// Delete a profile
    Delete {
        /// Its name
        name: String,
    },
}

/// Time for the last samples to arrive after the job's end.
const SETTLE: Duration = Duration::from_secs(5);

/// Least part of stretches that repeat, below which weft cannot know every tenth gap of the job.
const REPEATED_PART: f64 = 0.9;

/// Largest number of kernels that are printed; the JSON has all.
const KERNELS: usize = 40;

/// Runs the command.
pub fn main(args: ProfileArgs) -> Result<ExitCode> {
    match args.action {
        None if args.trace.is_some() => trace::record(&trace::TraceWindow {
            file: args.trace.unwrap_or_default(),
            name: args.name,
            command: args.command,
        }),
        None => learn(args),
        Some(ProfileAction::Show { name, json }) => show(&name, json),
        Some(ProfileAction::List) => list(),
        Some(ProfileAction::Keep { pid, name }) => keep(pid, &name),
        Some(ProfileAction::Delete { name }) => {
            let (store, name) = profile_path::locate(&name)?;
            store.remove(&name)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn learn(args: ProfileArgs) -> Result<ExitCode> {
    let name = args.name.context("a profile needs a name")?;
    let called = match profile_path::absolute(&name) {
        Ok(called) => called,
        Err(error) => {
            eprintln!("weft: {error}");
            return Ok(ExitCode::from(2));
        }
    };
    if let Some((folder, _)) = name.rsplit_once('/')
        && !folder.is_empty()
        && !Path::new(folder).is_dir()
    {
        eprintln!("weft: --name {name} is a file, because it has a slash, and there is no folder {folder}");
        return Ok(ExitCode::from(2));
    }
    let file = profile_path::file(&called)?;
    profile_path::ready(&called).context("the job was not started: its profile could not be saved")?;
    if let Some(out) = &args.out {
        let ready = trace::writable(out).map_err(|error| text::not_written(out, &error));
        ready.context("the job was not started")?;
    }
    // A shared broker writes no files for users.
    let places = Places::own();
    let mut extra = start::idle_exit();
    extra.extend(mps::broker_option(args.mps));
    start::ensure(&places, &extra).context("sampling needs a broker")?;
    admin::ask(&places, &AdminQuestion::ProfileBegin { name: called.clone() })?;
    let joining = mps::joining(&places, args.mps).unwrap_or_default();
    let wishes = Wishes {
        // Left to WEFT_NAME, because --name is the profile's name.
        name: None,
        outcome: Some(false),
        priority: Some(args.priority.unwrap_or(0)),
        profile: Some(called.clone()),
        profiling: true,
        evict_idle: None,
        longest_evicted: None,
        backing: match args.evidence {
            Some(EvidenceOption::Residency) => Some(BackingOption::Managed),
            _ => args.backing,
        },
        evidence: args.evidence,
        most_important: joining.most_important,
        ..Wishes::default()
    };
    let environment = environment::assemble(&places, &wishes)?;
    for warning in &environment.warnings {
        text::warn(warning);
    }
    let (program, arguments) = args.command.split_first().context("no command")?;
    let signals = waiting::signals()?;
    let mut job = Command::new(program);
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let (set, line) = mps::variables(&joining, args.mps, visible.as_deref());
    mps::print(line);
    job.args(arguments).envs(environment.set.iter().cloned()).envs(set);
    let child = match inherited::pass_on(&mut job).spawn() {
        Ok(child) => child,
        Err(error) => {
            environment.tidy();
            let _ = admin::ask(&places, &AdminQuestion::ProfileEnd { name: called });
            return Ok(not_started(program, &error));
        }
    };
    let status = signals.wait(child)?;
    environment.tidy();
    let sampled = match settle(&places, &called) {
        Ok(sampled) => sampled,
        Err(error) => {
            // The job's own exit status matters more.
            eprintln!(
                "weft: {}: profile {} is as it was last written, if at all",
                text::told(&error),
                profile_path::short(&called)
            );
            return Ok(waiting::end_learnt(status, false));
        }
    };
    // A path stays one, so that the advice works.
    let shown = if name.contains('/') {
        &name
    } else {
        profile_path::short(&called)
    };
    let mut learnt = summary(shown, &sampled, &file);
    if let Some(out) = &args.out {
        match sampled.file.is_some() {
            true => {
                if let Err(error) = fs::copy(&file, out) {
                    eprintln!("weft: cannot write {}: {}", out.display(), text::why(&error));
                    learnt = false;
                }
            }
            false => eprintln!("weft: {} was not written", out.display()),
        }
    }
    Ok(waiting::end_learnt(status, learnt))
}

/// Waits until the job's processes have left the broker, then ends the sampling.
fn settle(places: &Places, name: &str) -> Result<Sampled> {
    let question = AdminQuestion::ProfileFlush { name: name.to_string() };
    let deadline = Instant::now() + SETTLE;
    while let Answer::Sampled(sampled) = admin::ask(places, &question)? {
        if sampled.active == 0 {
            break;
        }
        if Instant::now() > deadline {
            eprintln!(
                "weft: the job still has {}; the profile has their samples so far",
                text::count(sampled.active, "process", "processes")
            );
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    match admin::ask(places, &AdminQuestion::ProfileEnd { name: name.to_string() })? {
        Answer::Sampled(sampled) => Ok(sampled),
        other => bail!("unexpected answer {other:?}"),
    }
}

/// Prints the result. Returns whether anything was learnt.
fn summary(name: &str, sampled: &Sampled, file: &Path) -> bool {
    if let Some(trouble) = &sampled.trouble {
        text::warn(format_args!("profile {name} could not be written: {trouble}"));
        return false;
    }
    let before = match file.exists() {
        true => format!("; profile {name} is unchanged"),
        false => String::new(),
    };
    match (sampled.clients, sampled.samples) {
        (0, _) => eprintln!(
            "weft: no process of the job used the GPU under weft: nothing was learnt{before} (check interception with weft doctor)"
        ),
        (clients, 0) => eprintln!(
            "weft: {} attached, {}, but no samples: nothing was learnt{before} (weft reads times when the job waits for the GPU: it must synchronize)",
            text::count(clients, "process", "processes"),
            text::count(sampled.launches, "launch", "launches")
        ),
        (clients, samples) => {
            eprintln!(
                "weft: profile {name}: {}, {} of {} in {}, {}",
                text::count(sampled.kernels, "kernel", "kernels"),
                text::count(samples, "sample", "samples"),
                text::count(sampled.launches, "launch", "launches"),
                text::count(clients, "process", "processes"),
                file.display()
            );
            if sampled.stretches > 0 {
                let part = sampled.repeated as f64 / sampled.stretches as f64;
                let few = match part < REPEATED_PART {
                    true => "; gaps in a new order are filled with care, so background jobs get less",
                    false => "",
                };
                eprintln!(
                    "weft: {} of {} between two waits ({}) had kernels in an order seen before{few}",
                    sampled.repeated,
                    text::count(sampled.stretches, "stretch", "stretches"),
                    text::percent(part)
                );
            }
            if let Some(kept) = &sampled.kept {
                eprintln!("weft: the former profile {name} is now {kept}");
            }
            eprintln!("weft: run the job with: weft run --priority 0 --profile {name} -- ...");
        }
    }
    sampled.samples > 0 && sampled.clients > 0
}

fn show(name: &str, json: bool) -> Result<ExitCode> {
    let profile = profile_path::load(name)?;
    text::show(&weft_profiles::json::to_json(&profile), json, |_| {
        weft_profiles::show::table(&profile, KERNELS)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn keep(pid: Option<u32>, name: &str) -> Result<ExitCode> {
    let called = match profile_path::absolute(name) {
        Ok(called) => called,
        Err(error) => {
            eprintln!("weft: {error}");
            return Ok(ExitCode::from(2));
        }
    };
    let question = AdminQuestion::ProfileKeep {
        name: called.clone(),
        pid,
    };
    let kept = match admin::ask(&Places::of_environment(), &question)? {
        Answer::Kept(kept) => kept,
        // A shared broker returns its observations, and this user writes the profile.
        Answer::Learnt(took) => took.keep(&called)?,
        other => bail!("unexpected answer {other:?}"),
    };
    eprintln!(
        "weft: profile {name}: {} at its peak, {} long ({}), {}",
        text::size(kept.memory_peak),
        text::span(kept.ran_s),
        kept.command,
        kept.file.display()
    );
    if kept.denied {
        eprintln!(
            "weft: the job wanted more memory than was free, so it may take more next time (set --memory to limit it)"
        );
    }
    eprintln!("weft: use it with: weft run --profile {name} -- ...");
    Ok(ExitCode::SUCCESS)
}

fn list() -> Result<ExitCode> {
    let mut table = text::TextTable::new(["profile", "kernels", "launches", "gpu"]);
    let mut troubles = Vec::new();
    let store = weft_profiles::Store::of_user()?;
    for name in store.names()? {
        match store.load(&name) {
            Ok(profile) => table.row([
                name,
                profile.kernels.len().to_string(),
                profile.launches().to_string(),
                profile.gpu.to_string(),
            ]),
            Err(error) => troubles.push(format!("weft: {}", text::told(&error.into()))),
        }
    }
    text::print(&table.lines().join("\n"));
    for trouble in troubles {
        eprintln!("{trouble}");
    }
    Ok(ExitCode::SUCCESS)
}
