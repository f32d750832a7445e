// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft trace`: shows a launch trace and converts it to and from JSON; and the recording behind
//! `weft profile --trace`.
//!
//! Recording needs no broker: the job writes its operations (`WEFT_MODE=trace`), and this command
//! makes the trace.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use weft_profiles::Store;
use weft_trace_format::assemble::{self, RecordingFacts};
use weft_trace_format::raw::RecorderFile;
use weft_trace_format::{Source, Trace, show};

use super::environment::{self, Wishes};
use super::run::not_started;
use super::{inherited, report, text, waiting};
use weft_api::paths::Places;

mod import;

use import::ImportArgs;
pub use import::read;

/// Show a launch trace, or convert one to JSON and back
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct TraceArgs {
    #[command(subcommand)]
    action: TraceAction,
}

#[derive(Debug, Subcommand)]
enum TraceAction {
    /// Print a trace: the figures of its steps, and its kernels
    Show {
        /// The trace
        file: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a trace as JSON, with every operation
    Export {
        /// The trace
        file: PathBuf,
        /// File to write
        out: PathBuf,
    },
    /// Make a trace from files of torch.profiler or Nsight Systems, or from what `export` wrote
    Import(ImportArgs),
}

/// Largest number of kernels that are printed; the JSON has all.
const KERNELS: usize = 40;

/// Runs the command.
pub fn main(args: TraceArgs) -> Result<ExitCode> {
    match args.action {
        TraceAction::Show { file, json } => {
            let trace = Trace::load(&file)?;
            text::show(&show::to_json(&trace), json, |_| show::table(&trace, KERNELS))?;
        }
        TraceAction::Export { file, out } => {
            let trace = Trace::load(&file)?;
            report::write(&out, |to| Ok(serde_json::to_writer(to, &trace)?))?;
        }
        TraceAction::Import(args) => import::main(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Arguments of `weft profile --trace`.
#[derive(Debug)]
pub struct TraceWindow {
    /// File of the trace.
    pub file: PathBuf,
    /// Name of the trace and of the profile made of it.
    pub name: Option<String>,
    /// The job's command.
    pub command: Vec<OsString>,
}

/// Runs and records a job. Returns the job's exit status.
pub fn record(wanted: &TraceWindow) -> Result<ExitCode> {
    if let Some(name) = &wanted.name
        && let Err(error) = weft_profiles::valid_name(name)
    {
        eprintln!("weft: {error}");
        return Ok(ExitCode::from(2));
    }
    let file = std::path::absolute(&wanted.file).with_context(|| format!("cannot find {}", wanted.file.display()))?;
    // Checked before the job runs.
    remove_raw(&file)?;
    writable(&file)
        .map_err(|error| text::not_written(&file, &error))
        .context("the job was not started")?;
    if let Some(name) = &wanted.name {
        let ready = Store::of_user().and_then(|store| store.ready(name));
        ready.context("the job was not started: its profile could not be saved")?;
    }
    let environment = environment::assemble(&Places::of_environment(), &Wishes::default())?;
    for warning in &environment.warnings {
        text::warn(warning);
    }
    let (program, arguments) = wanted.command.split_first().context("no command")?;
    let signals = waiting::signals()?;
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.set.iter().cloned());
    command.env("WEFT_MODE", "trace").env("WEFT_TRACE", &file);
    let child = match inherited::pass_on(&mut command).spawn() {
        Ok(child) => child,
        Err(error) => {
            environment.tidy();
            return Ok(not_started(program, &error));
        }
    };
    let status = signals.wait(child)?;
    environment.tidy();
    let kept = keep(wanted, &file);
    if let Err(error) = &kept {
        eprintln!("weft: {}", text::told(error));
    }
    Ok(waiting::end_learnt(status, kept.is_ok()))
}

/// Whether a file can be written; an existing one is not changed.
pub fn writable(file: &Path) -> std::io::Result<()> {
    let there = file.exists();
    if there && !file.is_file() {
        return Err(std::io::Error::other("it is no regular file: name one"));
    }
    fs::File::options().append(true).create(true).open(file)?;
    match there {
        true => Ok(()),
        false => fs::remove_file(file),
    }
}

/// Makes the trace, and the profile if a name is given, from the files of the job's processes.
fn keep(wanted: &TraceWindow, file: &Path) -> Result<()> {
    let mut found = Vec::new();
    for path in raw_files(file)? {
        match RecorderFile::load(&path) {
            Ok(recording) => found.push(recording),
            Err(error) => text::warn(error),
        }
    }
    // The process with the most operations is the job; torchrun and data loaders add others.
    found.sort_by_key(|recording| std::cmp::Reverse(recording.operations()));
    let Some(recording) = found.first() else {
        bail!(
            "no process of the job used the GPU under weft: nothing was recorded (check interception with weft doctor)"
        );
    };
    let name = wanted.name.clone().unwrap_or_else(|| stem(file));
    let trace = assemble::trace(recording, &options(recording, name));
    if trace.steps.is_empty() {
        remove_raw(file)?;
        bail!(
            "the job marked no step, so {} was not written: call torch.cuda.profiler.start() (cuProfilerStart) in the job at the start of each request or iteration",
            file.display()
        );
    }
    trace.save(file)?;
    remove_raw(file)?;
    if let Some(why) = &recording.ended {
        text::warn(format_args!("the recording ended early: {why}"));
    }
    let others = found.iter().skip(1).filter(|other| other.operations() > 0).count();
    if others > 0 {
        let others = text::count(others as u64, "other process", "other processes");
        eprintln!("weft: {others} of the job used the GPU too; the trace is of the process with the most work");
    }
    eprintln!(
        "weft: trace {}: {}, {}, {}, {}",
        trace.name,
        text::count(trace.steps.len() as u64, "step", "steps"),
        text::count(trace.operations() as u64, "operation", "operations"),
        text::count(trace.kernels.len() as u64, "kernel", "kernels"),
        file.display()
    );
    if wanted.name.is_some() {
        let store = Store::of_user()?;
        let before = store.set_aside(&trace.name)?;
        let profile = store.save(&trace.profile())?;
        eprintln!("weft: profile {}: {}", trace.name, profile.display());
        if let Some(before) = before {
            eprintln!("weft: the former profile {} is now {before}", trace.name);
        }
    }
    Ok(())
}

fn options(recording: &RecorderFile, name: String) -> RecordingFacts {
    let simulated = recording.gpu.name.contains("(simulated)");
    RecordingFacts {
        name,
        note: format!("recorded on {}", recording.gpu),
        source: if simulated { Source::Estimated } else { Source::Measured },
        taken: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
    }
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Files that the job's processes wrote: `FILE.PID.raw`.
fn raw_files(file: &Path) -> Result<Vec<PathBuf>> {
    let directory = file.parent().context("no directory")?;
    let begin = format!("{}.", file.file_name().unwrap_or_default().to_string_lossy());
    let entries = fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let ours = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_str()?;
        let pid = name.strip_prefix(&begin)?.strip_suffix(".raw")?;
        let number = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
        number.then_some(path)
    });
    Ok(ours.collect())
}

fn remove_raw(file: &Path) -> Result<()> {
    for path in raw_files(file)? {
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn only_the_jobs_own_files_are_taken() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.trace");
        for name in [
            "a.trace",
            "a.trace.12.raw",
            "a.trace.x.raw",
            "a.trace.raw",
            "b.trace.12.raw",
            "a.trace.7.raw",
        ] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let mut names: Vec<_> = raw_files(&file).unwrap().into_iter().collect();
        names.sort();
        assert_eq!(
            names,
            [
                directory.path().join("a.trace.12.raw"),
                directory.path().join("a.trace.7.raw")
            ]
        );
        remove_raw(&file).unwrap();
        assert!(raw_files(&file).unwrap().is_empty());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 4);
    }

    #[test]
    fn json_goes_out_and_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let mut trace = Trace {
            name: "t".into(),
            ..Trace::default()
        };
        trace.steps.push(weft_trace_format::Step::default());
        trace.save(&at("t.trace")).unwrap();
        let done = |action| main(TraceArgs { action });
        done(TraceAction::Export {
            file: at("t.trace"),
            out: at("t.json"),
        })
        .unwrap();
        let import = |json| {
            let arguments = ["import", json, "u.trace"].map(|argument| at(argument).into_os_string());
            done(TraceAction::Import(ImportArgs::try_parse_from(arguments).unwrap()))
        };
        import("t.json").unwrap();
        assert_eq!(Trace::load(&at("u.trace")).unwrap(), trace);
        fs::write(at("bad.json"), "{}").unwrap();
        let error = import("bad.json").unwrap_err();
        assert!(format!("{error:#}").contains("bad.json is not a trace"), "{error:#}");
    }
}
