// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft predict`: what sharing a GPU would do to a service, from recorded files, without a GPU.
//!
//! `play` plays the jobs, `show` makes the page in text, `html` that for a browser.
//! `docs/predict.md` has the settings.
#![forbid(unsafe_code)]

mod html;
mod play;
mod show;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use weft_engine::SmLimits;
use weft_player::{ArrivalPattern, Ns, PlayError, Program};
use weft_trace_format::{Source, Trace};
use weft_trace_import::{ImportReport, ProgramRole};

use super::terminal::ProgressLine;
use super::{report, text, trace};
use play::{PlayedSet, Prediction};

/// Predict what sharing a GPU would do to a service
///
/// Files are traces of torch.profiler, exports of Nsight Systems, and weft's own traces. No GPU is
/// needed. Without BATCH: the gaps of the service.
#[derive(Debug, Args)]
pub struct PredictArgs {
    /// File of the service; each step of it is a request
    service: PathBuf,
    /// Files of jobs that would share the GPU, with a lower priority
    batch: Vec<PathBuf>,
    /// Host time between an answer and the next request, in place of the file's
    #[arg(long, value_name = "MS", value_parser = positive, conflicts_with = "rate")]
    think: Option<f64>,
    /// Requests come at random, at this rate
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    rate: Option<f64>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Also write the prediction as a page for a browser, with the intervals as bars
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.001..=1e6).contains(&value) => Ok(value),
        _ => Err("give a number from 0.001 to 1000000".to_owned()),
    }
}

/// A file of a job.
#[derive(Debug, Serialize)]
struct PredictedJob {
    file: String,
    name: String,
    /// The GPU of the file, or `null`.
    gpu: Option<String>,
    /// Origin of the kernels' times.
    times: &'static str,
    steps: usize,
    kernels: usize,
    /// The meaning of a step, in the words of an import; `null` if the file does not have it.
    step: Option<String>,
    /// The role that an import guessed from names, or `null`.
    guessed: Option<ProgramRole>,
}

/// The answer.
#[derive(Debug, Serialize)]
struct PredictAnswer {
    schema: u32,
    service: PredictedJob,
    batch: Vec<PredictedJob>,
    /// When requests come.
    arrivals: String,
    #[serde(flatten)]
    prediction: Prediction,
    /// Reasons of odd figures, one line each.
    reasons: Vec<String>,
    /// Things that the prediction does not know, one line each.
    unknown: Vec<String>,
}

/// A file that was read.
struct ReadJob {
    trace: Trace,
    report: Option<Box<ImportReport>>,
    job: PredictedJob,
    program: Program,
}

impl ReadJob {
    fn of(path: &Path) -> Result<ReadJob> {
        let (trace, report) = trace::read(path)?;
        let job = PredictedJob {
            file: path.display().to_string(),
            name: trace.name.clone(),
            gpu: Some(trace.gpu.name.clone()).filter(|name| !name.is_empty()),
            times: trace.source.name(),
            steps: trace.steps.len(),
            kernels: trace.kernels.len(),
            step: match &report {
                Some(report) => Some(report.cut.clone()),
                None => trace.note.strip_prefix("imported from ").map(|note| {
                    let mut parts = note.split("; ");
                    parts.nth(1).unwrap_or(note).to_owned()
                }),
            },
            guessed: report.as_ref().map(|report| report.role),
        };
        let program = Program::of(&trace)?;
        Ok(ReadJob {
            trace,
            report,
            job,
            program,
        })
    }

    /// Whether its kernel times were not measured on the service's GPU.
    fn is_unsure(&self, service: &ReadJob) -> bool {
        self.trace.source == Source::Estimated || self.job.gpu != service.job.gpu
    }

    /// Why it cannot be the service.
    fn is_no_service(&self) -> Option<&'static str> {
        let mut calls = self.trace.steps.iter().flat_map(|step| &step.operations);
        if self.job.guessed == Some(ProgramRole::Training) {
            return Some("looks like a training by the names of its kernels and marks");
        }
        (!calls.any(|operation| operation.call.waits()))
            .then_some("never waits for the GPU, so nothing in it is a request that is answered")
    }
}

/// Runs the command.
pub fn main(args: PredictArgs) -> Result<ExitCode> {
    args.html.as_deref().map_or(Ok(()), report::replaces_only_pages)?;
    let service = ReadJob::of(&args.service)?;
    if let Some(why) = service.is_no_service() {
        let file = args.service.display();
        bail!(
            "{file} {why}: name it behind the service's file; if it answers requests, `weft trace import --service` \
             makes a trace of it"
        );
    }
    let batch: Vec<ReadJob> = args.batch.iter().map(|path| ReadJob::of(path)).collect::<Result<_>>()?;
    let (arrivals, told) = arrivals(&args, &service.program)?;
    let unknown = show::unknown(&service, &batch);
    let unsure = std::iter::once(&service)
        .chain(&batch)
        .map(|job| job.is_unsure(&service));
    let set = PlayedSet {
        unsure: unsure.collect(),
        service: service.program,
        batch: batch.iter().map(|job| job.program.clone()).collect(),
        arrivals,
        limits: limits(&service.trace.gpu.name),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let line = Mutex::new(ProgressLine::new("playing"));
    let progress = |ended: usize, all: usize| {
        if let Ok(mut line) = line.lock() {
            line.show(ended as u64, all as u64);
        }
    };
    let prediction = set.predict(threads, progress);
    if let Ok(line) = line.lock() {
        line.clear();
    }
    if let Err(PlayError::TooLong(name)) = &prediction {
        bail!(
            "the jobs make too many calls within a request of {name} to play it: cut its file into steps with `weft \
             trace import --cut`"
        );
    }
    let prediction = prediction?;
    let answer = PredictAnswer {
        schema: 1,
        reasons: show::reasons(&prediction, &batch),
        service: service.job,
        batch: batch.into_iter().map(|job| job.job).collect(),
        arrivals: told,
        prediction,
        unknown,
    };
    text::show(&answer, args.json, show::page)?;
    if let Some(file) = &args.html {
        report::write(file, |to| to.write_all(html::render(&answer).as_bytes()))?;
        text::warn(format_args!("the page is in {}", file.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// When requests come, for the player and for people.
fn arrivals(args: &PredictArgs, service: &Program) -> Result<(ArrivalPattern, String)> {
    let ns = |ms: f64| (ms * 1e6) as Ns;
    if let Some(rate) = args.rate {
        let mean = (1e9 / rate) as Ns;
        let usual = service.usual_time();
        if usual >= mean {
            bail!(
                "--rate {rate}: {} answers a request in {} or more, so it cannot answer {rate} a second one by one",
                args.service.display(),
                text::duration(usual)
            );
        }
        return Ok((ArrivalPattern::Poisson { mean }, format!("{rate} a second, at random")));
    }
    let (think, source) = match args.think {
        Some(ms) => (ns(ms), ""),
        None => {
            let sum: Ns = service.steps.iter().map(|step| step.think).sum();
            (sum / service.steps.len().max(1) as Ns, ", as in the file")
        }
    };
    let told = format!("the next one {} after an answer{source}", text::duration(think));
    Ok((
        ArrivalPattern::Closed {
            think: args.think.map(ns),
        },
        told,
    ))
}

/// The SMs of a GPU, by its name: an H100's for later ones, else an A100's.
fn limits(gpu: &str) -> SmLimits {
    let later = ["H100", "H200", "H800", "H20", "GH200", "B100", "B200", "B300"];
    match later.iter().any(|name| gpu.to_uppercase().contains(name)) {
        true => SmLimits::H100_LIKE,
        false => SmLimits::A100_LIKE,
    }
}
