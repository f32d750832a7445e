// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft report`: one page about a user's jobs, and a trace of them for the Perfetto UI.
//!
//! | file | holds |
//! | --- | --- |
//! | `selection` | the jobs of a report, and the runs that they form; pure |
//! | `page` | the page in HTML; pure |
//! | `charts` | its charts in SVG; pure |
//! | `svg` | shapes, scales and escaping; pure |
//! | `gaps` | the foreground jobs' gaps in a broker's trace |
//! | `perfetto` | the trace |
#![forbid(unsafe_code)]

mod charts;
mod gaps;
mod page;
mod perfetto;
mod selection;
mod svg;

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::history::{HistoryQuery, RecordedJob};
use weft_api::paths::Places;
use weft_daemon::history;

use self::gaps::{BrokerTrace, JobGaps};
pub use self::page::{document, legend};
use self::selection::{JobReport, Run, Selection};
pub use self::svg::{AxisScale, escape};
use super::history::{Patience, SinceMoment, since};
use super::{browser, text};

const EXAMPLES: &str = "\
Examples:
  weft report                      # the newest job and the jobs that ran with it
  weft report train.py -o train.html
  weft report --open               # and open it in the browser
  weft report --last 30m --perfetto run.json
  weft broker --trace broker.trace # instead of the broker that weft run starts
  weft report --trace broker.trace";

/// Default file of the page.
const USUAL_FILE: &str = "weft-report.html";

/// Write a page about your jobs: timeline, latency, what each lost and cost, and why
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// Job by its name, process id (4711, pid:4711), client number (client:3) or a part of its
    /// command line; jobs that ran with it are shown too
    #[arg(value_name = "JOB", conflicts_with_all = ["last", "since"])]
    job: Option<String>,
    /// The newest N jobs, or the jobs of this time (30m, 2h, 7d)
    #[arg(long, short = 'n', value_name = "N|TIME", value_parser = last, allow_hyphen_values = true)]
    last: Option<LastJobs>,
    /// Jobs that run or ended since this day or time, UTC (2026-11-25, 2026-11-25T08:30)
    #[arg(long, value_name = "TIME", value_parser = since, allow_hyphen_values = true, conflicts_with = "last")]
    since: Option<SinceMoment>,
    /// File of the page; `-`: stdout [default: weft-report.html]
    #[arg(long, short = 'o', value_name = "FILE.html")]
    output: Option<PathBuf>,
    /// Also write a trace for ui.perfetto.dev; without -o only the trace
    #[arg(long, value_name = "FILE.json")]
    perfetto: Option<PathBuf>,
    /// A broker's trace (weft broker --trace FILE): each launch, and which jobs ran in the gaps
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Open the page in the browser: BROWSER, else xdg-open
    #[arg(long)]
    open: bool,
}

/// Number of the newest jobs, or the start of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastJobs {
    Jobs(u64),
    Since(SinceMoment),
}

fn last(text: &str) -> Result<LastJobs, String> {
    match text.parse() {
        Ok(0) | Err(_) => {}
        Ok(jobs) => return Ok(LastJobs::Jobs(jobs)),
    }
    let moment = since(text).ok().filter(|_| text.ends_with(['s', 'm', 'h', 'd']));
    moment
        .map(LastJobs::Since)
        .ok_or_else(|| "expected a number of jobs, 1 or more, or a span (30m, 2h, 7d)".to_string())
}

/// Writes the files.
pub fn main(args: ReportArgs) -> Result<ExitCode> {
    let places = Places::of_environment();
    let selection = match (&args.job, args.last, args.since) {
        (Some(job), _, _) => Selection::Job(job.clone()),
        (_, Some(LastJobs::Jobs(jobs)), _) => Selection::Last(jobs),
        (_, Some(LastJobs::Since(since)), _) | (_, _, Some(since)) => Selection::Since(since.0),
        _ => Selection::Newest,
    };
    if args.open && args.output.as_deref() == Some(Path::new("-")) {
        eprintln!("weft: --open needs a file: -o FILE.html instead of -o - (weft report --help)");
        return Ok(ExitCode::from(2));
    }
    if let Some(file) = args.output.as_deref().filter(|file| *file != Path::new("-")) {
        replaces_only_pages(file)?;
    }
    // Read first, so that a damaged trace does not leave only some of the files written.
    let trace = args.trace.as_deref().map(BrokerTrace::load).transpose()?;
    let (jobs, silent) = gather(&places, &selection, Ok(admin::PATIENCE))?;
    if let Some(silent) = &silent {
        text::warn(silent);
    }
    let runs = match (selection.pick(jobs), &trace) {
        (Ok(runs), _) => runs,
        // A trace is enough for a report.
        (Err(_), Some(_)) if selection == Selection::Newest => Vec::new(),
        (Err(nothing), _) => bail!(nothing),
    };
    let had = |client: u64, pid: u32| {
        let mut jobs = runs.iter().flat_map(|run| &run.jobs);
        let job = jobs.find(|job| (job.of.job.client, job.of.job.pid) == (client, pid))?;
        Some(job.of.recording.as_ref()?.sum().gpu_ns.max(0) as u64)
    };
    let gaps = trace.as_ref().map_or_else(Vec::new, |trace| gaps::of(trace, had));
    let report = report(runs, gaps);
    let mut written = Vec::new();
    if let Some(file) = &args.perfetto {
        write(file, |to| perfetto::write(to, &report, trace.as_ref()))?;
        written.push(format!("{} (open it at ui.perfetto.dev)", file.display()));
    }
    let output = match (&args.output, &args.perfetto) {
        (Some(output), _) => Some(output.clone()),
        (None, Some(_)) if !args.open => None,
        (None, _) => Some(PathBuf::from(USUAL_FILE)),
    };
    if let Some(file) = output {
        let page = page::render(&report, "");
        if file == Path::new("-") {
            text::put(page.as_bytes());
        } else {
            write(&file, |to| to.write_all(page.as_bytes()))?;
            written.push(match args.open {
                true => opened(&file),
                false => file.display().to_string(),
            });
        }
    }
    for file in written {
        eprintln!("weft: {} in {file}", report.title());
    }
    Ok(ExitCode::SUCCESS)
}

fn report(runs: Vec<Run>, gaps: Vec<JobGaps>) -> JobReport {
    let now_ms = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64);
    JobReport { now_ms, runs, gaps }
}

/// The page about a job and those that ran with it, with `nav` at its top; `None`: the newest job.
/// The inner error: there is no such job.
pub fn about(places: &Places, job: Option<&str>, patience: Patience, nav: &str) -> Result<Result<String, String>> {
    let selection = job.map_or(Selection::Newest, |job| Selection::Job(job.to_string()));
    let (jobs, silent) = gather(places, &selection, patience)?;
    match (selection.pick(jobs), silent) {
        (Ok(runs), silent) => {
            let note = silent.map_or(String::new(), |why| {
                format!("<p class=\"warning\">{}</p>\n", escape(&why))
            });
            Ok(Ok(page::render(&report(runs, Vec::new()), &format!("{nav}{note}"))))
        }
        // The job may run.
        (Err(_), Some(silent)) => bail!(silent),
        (Err(nothing), None) => Ok(Err(nothing)),
    }
}

/// Opens a page. Returns its path, and the reason if no browser opened it.
fn opened(file: &Path) -> String {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
    match browser::open(file.as_os_str()) {
        Ok(()) => file.display().to_string(),
        Err(why) => format!("{} (not opened: {why})", file.display()),
    }
}

/// Error: the file of a page that is to be written is there, and is something else. An earlier page
/// may be replaced, a job's script or recording may not.
pub fn replaces_only_pages(file: &Path) -> Result<()> {
    if let Some(folder) = file.parent()
        && !folder.as_os_str().is_empty()
        && !folder.is_dir()
    {
        let (file, folder) = (file.display(), folder.display());
        bail!("cannot write {file}: there is no folder {folder}: make it first");
    }
    if file.is_dir() {
        bail!("{} is a folder: name a file in it", file.display());
    }
    let mut head = Vec::new();
    if file.is_file() {
        let read = File::open(file).and_then(|file| file.take(64).read_to_end(&mut head));
        read.with_context(|| format!("cannot read {}", file.display()))?;
    }
    if !head.is_empty() && !head.to_ascii_lowercase().starts_with(b"<!doctype html") {
        bail!(
            "{} is there already, and is no page for a browser: give another name",
            file.display()
        );
    }
    Ok(())
}

/// Writes a file.
pub fn write(file: &Path, put: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let written = File::create(file).and_then(|target| {
        let mut target = BufWriter::new(target);
        put(&mut target)?;
        target.flush()
    });
    written.map_err(|error| text::not_written(file, &error))
}

/// Running jobs from the broker, and ended jobs from a shared broker or from disk; newest first.
/// With the reason if the broker did not answer: then running jobs are missing.
fn gather(places: &Places, selection: &Selection, patience: Patience) -> Result<(Vec<RecordedJob>, Option<String>)> {
    let query = HistoryQuery {
        since_ms: selection.since_ms(),
        last: selection.last(),
        ..HistoryQuery::default()
    };
    let shared = places.is_shared();
    let question = AdminQuestion::Recorded(shared.then(|| query.clone()));
    let silent = |why: String| (Vec::new(), Some(format!("{why}: only jobs that have ended are shown")));
    let (mut jobs, silent) = match patience.map(|patience| admin::ask_within(places, &question, patience)) {
        Ok(Ok(Answer::Recorded(jobs))) => (jobs, None),
        Ok(Ok(other)) => bail!("unexpected answer {other:?}"),
        Ok(Err(error)) if error.is_nobody() => (Vec::new(), None),
        Ok(Err(error)) => silent(error.to_string()),
        Err(why) => silent(why),
    };
    if !shared || jobs.is_empty() {
        let (ended, damaged) = history::read_recorded(&history::file(places)?, &query)?;
        if let Some(damaged) = damaged {
            eprintln!("weft: {damaged}");
        }
        jobs.extend(ended);
    }
    Ok((jobs, silent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_is_a_number_or_a_span() {
        assert_eq!(last("3"), Ok(LastJobs::Jobs(3)));
        assert!(matches!(last("30m"), Ok(LastJobs::Since(_))));
        for wrong in ["0", "-1", "soon", "2026-11-25", "", "3w"] {
            assert!(last(wrong).is_err(), "{wrong}");
        }
    }
}
