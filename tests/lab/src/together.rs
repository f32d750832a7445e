// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine in which kernels share SMs, compared with hardware measurements of others.
//!
//! Source: Tally's benchmark (`tally-project/tally-bench`) has two files of results. `result.json`
//! (c86090c) counts iterations in ten seconds, of solo trainings and of pairs under plain MPS.
//! `tally_results/priority-aware-perf.csv` (5b72ee8) has two servers, each with six trainings,
//! under MPS without and with client priorities. It gives latencies in ms, and the training's
//! throughput as a part of its solo throughput. The second file is from an A100, by the paper
//! (ASPLOS'25).
//!
//! Unknown: the first file names no device. Neither file defines how requests of "load 0.5" arrive.
//! In a solo run they do not queue, and a server whose latency exceeds its period answers fewer. So
//! here the time from an answer to the next request is the service's solo latency.
//!
//! Names: only pairs of models that both sides have are compared. bert is `bert_base`, VGG is
//! `vgg19`, LSTM and resnet50 have the same names. llama-2-7b in ONNX Runtime is `llama_graph`:
//! neither's host is a bottleneck. Batch sizes and lengths differ; no recording of theirs is at
//! hand. gpt2 is held back: its rows count in no error.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use weft_engine::Mode;
use weft_player::{ArrivalPattern, PlayedJob, Program};

use crate::calibrated::{CalibratedDevice, CalibrationOptions, PlayedDevice};
use crate::compare::{Fixture, KnownJob, Tuning};
use crate::pairs::{self, HELD_BACK, Model};
use crate::rule::Rule;

/// Two trainings under plain MPS, and each one's iterations as a part of its solo iterations.
const TRAININGS: [(&str, &str, [f64; 2]); 10] = [
    ("resnet50", "resnet50", [0.545, 0.542]),
    ("resnet50", "bert_base", [0.197, 0.882]),
    ("resnet50", "vgg19", [0.788, 0.389]),
    ("resnet50", "lstm", [0.532, 0.584]),
    ("bert_base", "bert_base", [0.542, 0.542]),
    ("bert_base", "vgg19", [0.958, 0.155]),
    ("bert_base", "lstm", [0.800, 0.300]),
    ("vgg19", "vgg19", [0.673, 0.673]),
    ("vgg19", "lstm", [0.379, 0.813]),
    ("lstm", "lstm", [0.563, 0.563]),
];

/// A service that shares with a training under one rule.
#[derive(Debug, Clone, Copy, PartialEq)]
struct BesideFigures {
    /// Mean latency over that of the solo run.
    mean: f64,
    /// 99th percentile over that of the solo run.
    p99: f64,
    /// The training's throughput over that of the solo run.
    batch: f64,
}

/// Solo runs of their services: mean and 99th percentile, ms.
const BERT_MS: [f64; 2] = [4.05, 4.098];
const LLAMA_MS: [f64; 2] = [1_963.886, 1_982.652];

/// A service and a training of ours, and their service's solo run, ms. For MPS without and with
/// priorities: mean and p99, ms, and the training's throughput over that of the solo run.
type PublishedService = (&'static str, &'static str, [f64; 2], [[f64; 3]; 2]);

/// The rows whose models both sides have. The one held back is last of each service.
const SERVICES: [PublishedService; 6] = [
    (
        "bert_base",
        "resnet50",
        BERT_MS,
        [[5.952, 9.024, 0.78], [5.892, 8.921, 0.77]],
    ),
    (
        "bert_base",
        "bert_base",
        BERT_MS,
        [[16.592, 27.376, 0.94], [12.728, 18.051, 0.91]],
    ),
    (
        "bert_base",
        "gpt2",
        BERT_MS,
        [[10.359, 21.891, 0.88], [9.076, 20.967, 0.86]],
    ),
    (
        "llama_graph",
        "resnet50",
        LLAMA_MS,
        [[2_535.965, 2_566.643, 0.74], [2_480.039, 2_512.709, 0.74]],
    ),
    (
        "llama_graph",
        "bert_base",
        LLAMA_MS,
        [[6_939.101, 6_994.107, 0.92], [4_724.447, 4_844.567, 0.85]],
    ),
    (
        "llama_graph",
        "gpt2",
        LLAMA_MS,
        [[4_191.625, 4_252.638, 0.84], [3_513.134, 3_574.84, 0.81]],
    ),
];

/// The rules here that the columns of [`SERVICES`] stand for.
const SHARING_RULES: [Rule; 2] = [Rule::Default, Rule::MpsPriority];

/// Jobs whose kernels share the SMs of a device, compared with hardware measurements of others:
/// Tally's published results. The one constant that may be fitted to them is --contention.
///
///   scripts/lab together
///   scripts/lab together --contention 0,15,30,60
#[derive(Debug, Parser)]
#[command(name = "scripts/lab together", verbatim_doc_comment)]
struct TogetherOptions {
    /// mps-shared, mps-shared-h100, or mps (turns kernel by kernel) to see the effect of sharing
    #[arg(long, default_value = "mps-shared")]
    device: String,
    /// Per cent that blocks take longer while others' blocks have the rest of the device, in place
    /// of 30. With several, the errors of each are printed, and the tables of the last one
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    contention: Vec<u32>,
    /// Requests for a latency
    #[arg(long, default_value_t = 200)]
    requests: u64,
    /// Seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Recordings to replay
    #[arg(long, value_name = "FOLDER", default_value = "profiles/recorded/simulated-A100")]
    traces: PathBuf,
    #[command(flatten)]
    calibration: CalibrationOptions,
}

/// Runs the command.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = TogetherOptions::parse_from(std::iter::once("together".to_string()).chain(arguments));
    match run(&options) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("weft-lab together: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The figures of the pairs here.
#[derive(Debug)]
struct Simulated {
    /// In the order of [`TRAININGS`].
    trainings: Vec<[f64; 2]>,
    /// In the order of [`SERVICES`], by rule.
    services: Vec<[BesideFigures; 2]>,
    /// By job: the part of the device's block slots that its kernels take, averaged over their
    /// time. Empty if kernels share no SMs.
    shares: Vec<(String, f64)>,
}

/// Errors as a factor (1 is right), in the geometric mean over the pairs without a model that is
/// held back.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Misses {
    /// Sum of two trainings' throughputs.
    sum: f64,
    /// Each training's part.
    part: f64,
    /// Mean latency of services.
    mean: f64,
    /// Throughput of trainings that share with services.
    batch: f64,
}

fn run(options: &TogetherOptions) -> Result<String> {
    let devices = options.calibration.devices()?;
    let models: HashMap<String, Model> = pairs::models(&options.traces)?
        .into_iter()
        .map(|model| (model.name.clone(), model))
        .collect();
    let given: Vec<Option<u32>> = match options.contention.as_slice() {
        [] => vec![None],
        some => some.iter().copied().map(Some).collect(),
    };
    let mut out = String::new();
    for device in &devices {
        beside_measured(&models, device, &given, options, &mut out)?;
    }
    Ok(out)
}

/// The text of one device, for each contention.
fn beside_measured(
    models: &HashMap<String, Model>,
    device: &CalibratedDevice,
    contentions: &[Option<u32>],
    options: &TogetherOptions,
    out: &mut String,
) -> Result<()> {
    let mut last = None;
    for contention in contentions {
        let mode = pairs::mode_named(&options.device, *contention)?;
        if last.is_none() {
            let played = PlayedDevice::new(device, None, &device.settings(mode), &device.hosts(1.0));
            *out += &format!("{played}\n");
        }
        let simulated = simulate(models, device, mode, options)?;
        let name = match mode {
            Mode::MpsShared(limits) => format!("contention {} %", limits.contention / 10),
            Mode::Mps | Mode::TimeSlice => "no SMs shared".to_string(),
        };
        let misses = Misses::of(&simulated);
        *out += &format!(
            "{}, {name}: off by a factor of {:.3} (sum of two trainings), {:.3} (each one's part), {:.3} (a service's mean latency), {:.3} (batch beside it)\n",
            options.device, misses.sum, misses.part, misses.mean, misses.batch
        );
        last = Some(simulated);
    }
    if let Some(simulated) = last {
        *out += &text(&simulated);
    }
    Ok(())
}

fn program(models: &HashMap<String, Model>, name: &str, trains: bool) -> Result<Arc<Program>> {
    let model = models.get(name);
    let trace = model.and_then(|model| {
        if trains {
            model.train.as_ref()
        } else {
            model.infer.as_ref()
        }
    });
    let kind = if trains { "training" } else { "inference" };
    let trace = trace.with_context(|| format!("{name}: no recording of its {kind}"))?;
    Ok(Arc::new(Program::of(trace)?))
}

fn simulate(
    models: &HashMap<String, Model>,
    device: &CalibratedDevice,
    mode: Mode,
    options: &TogetherOptions,
) -> Result<Simulated> {
    let bench = Fixture {
        device: device.settings(mode),
        hosts: device.hosts(1.0),
        seed: options.seed,
        requests: options.requests.max(1),
        warmup: 20,
        tuning: Tuning::default(),
    };
    let training = |name: &str, place: usize| -> Result<KnownJob> {
        let program = program(models, name, true)?;
        Ok(bench.know(&pairs::job(name, 5, &program, None), place, false))
    };
    let service = |name: &str| -> Result<KnownJob> {
        let program = program(models, name, false)?;
        let think = Some(program.usual_time());
        let job = PlayedJob {
            arrivals: ArrivalPattern::Closed { think },
            ..pairs::job(name, 0, &program, None)
        };
        Ok(bench.know(&job, 0, true))
    };
    let mut trainings = Vec::new();
    for (one, other, _) in TRAININGS {
        let parts = bench.throughputs(&[training(one, 0)?, training(other, 1)?]);
        trainings.push([parts[0], parts[1]]);
    }
    let mut services = Vec::new();
    for (name, beside, ..) in SERVICES {
        let jobs = [service(name)?, training(beside, 1)?];
        services.push(SHARING_RULES.map(|rule| {
            let figures = bench.compare(&jobs, rule);
            BesideFigures {
                mean: figures.slowdown(),
                p99: figures.latency.p99 / figures.alone.p99.max(1.0),
                batch: figures.batch_sum,
            }
        }));
    }
    let mut shares = Vec::new();
    if let Mode::MpsShared(limits) = mode {
        for (name, trains) in [("resnet50", true), ("bert_base", true), ("vgg19", true), ("lstm", true)]
            .into_iter()
            .chain([("bert_base", false), ("llama_graph", false)])
        {
            let kind = if trains { "training" } else { "inference" };
            let share = program(models, name, trains)?.share(&limits);
            shares.push((format!("{name} {kind}"), share));
        }
    }
    Ok(Simulated {
        trainings,
        services,
        shares,
    })
}

/// A published row as [`BesideFigures`].
fn beside(alone: [f64; 2], with: [f64; 3]) -> BesideFigures {
    BesideFigures {
        mean: with[0] / alone[0],
        p99: with[1] / alone[1],
        batch: with[2],
    }
}

/// Geometric mean of the ratios' distance from 1, in either direction.
fn apart(ratios: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = ratios.fold((0.0, 0), |(sum, count), ratio| (sum + ratio.ln().abs(), count + 1));
    (sum / f64::from(count.max(1))).exp()
}

impl Misses {
    fn of(simulated: &Simulated) -> Misses {
        let sum = |parts: [f64; 2]| parts[0] + parts[1];
        let pairs = || TRAININGS.iter().zip(&simulated.trainings);
        let services = || {
            let counted = SERVICES.iter().zip(&simulated.services);
            counted
                .filter(|((name, with, ..), _)| !HELD_BACK.contains(name) && !HELD_BACK.contains(with))
                .flat_map(|((_, _, alone, published), here)| {
                    [0, 1].map(|rule| (beside(*alone, published[rule]), here[rule]))
                })
        };
        Misses {
            sum: apart(pairs().map(|((_, _, published), here)| sum(*here) / sum(*published))),
            part: apart(pairs().flat_map(|((_, _, published), here)| [0, 1].map(|at| here[at] / published[at]))),
            mean: apart(services().map(|(published, here)| here.mean / published.mean)),
            batch: apart(services().map(|(published, here)| here.batch / published.batch)),
        }
    }
}

fn text(simulated: &Simulated) -> String {
    let mut out = String::from(
        "\nTwo trainings under plain MPS: what each does of its own throughput, and the sum\n\
         pair                       measured               simulated\n",
    );
    for ((one, other, theirs), ours) in TRAININGS.iter().zip(&simulated.trainings) {
        let parts = |parts: &[f64; 2]| format!("{:.2} + {:.2} = {:.2}", parts[0], parts[1], parts[0] + parts[1]);
        out += &format!(
            "{:24}   {}   {}\n",
            format!("{one} + {other}"),
            parts(theirs),
            parts(ours)
        );
    }
    out += "\nA service at half load beside a training: mean and p99 over alone, throughput of the training\n\
            pair                       rule           measured               simulated\n";
    for ((name, with, alone, published), ours) in SERVICES.iter().zip(&simulated.services) {
        let held = if HELD_BACK.contains(with) { " (held back)" } else { "" };
        for (at, rule) in ["MPS", "MPS, priority"].iter().enumerate() {
            let figures = |of: BesideFigures| format!("{:.2} / {:5.2} / {:.2}", of.mean, of.p99, of.batch);
            out += &format!(
                "{:24}   {rule:13}  {}    {}{held}\n",
                format!("{name} + {with}"),
                figures(beside(*alone, published[at])),
                figures(ours[at])
            );
        }
    }
    if !simulated.shares.is_empty() {
        let shares = simulated.shares.iter().map(|(job, share)| format!("{job} {share:.2}"));
        out += &format!(
            "\nBlock slots that kernels take here while they run: {}\n",
            shares.collect::<Vec<String>>().join(", ")
        );
    }
    out += "\nMeasured: Tally's benchmark (tally-project/tally-bench, result.json at c86090c and\n\
            tally_results/priority-aware-perf.csv at 5b72ee8). Simulated: recordings whose kernel times are\n\
            estimates, of other batch sizes; no memory bandwidth of each kernel's own, no caches.\n";
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulated figures that differ from the published ones only by a factor.
    fn like_published(factor: f64) -> Simulated {
        Simulated {
            trainings: TRAININGS.map(|(_, _, parts)| parts.map(|part| part * factor)).to_vec(),
            services: SERVICES
                .map(|(_, with, alone, published)| {
                    let far = if HELD_BACK.contains(&with) { 9.0 } else { factor };
                    published.map(|row| {
                        let row = beside(alone, row);
                        BesideFigures {
                            mean: row.mean * far,
                            batch: row.batch / far,
                            ..row
                        }
                    })
                })
                .to_vec(),
            shares: vec![("lstm training".into(), 0.5)],
        }
    }

    #[test]
    fn misses_are_factors_either_way_and_not_of_models_held_back() {
        for factor in [1.0, 1.25, 0.8] {
            let misses = Misses::of(&like_published(factor));
            let by = f64::max(factor, 1.0 / factor);
            for miss in [misses.sum, misses.part, misses.mean, misses.batch] {
                assert!((miss - by).abs() < 1e-9, "{factor}: {misses:?}");
            }
        }
    }

    #[test]
    fn both_figures_of_a_row_stand_side_by_side() {
        let text = text(&like_published(1.0));
        let row = text.lines().find(|line| line.starts_with("bert_base + resnet50"));
        let row = row.expect("a row");
        assert_eq!(row.matches("1.47 /  2.20 / 0.78").count(), 2, "{row}");
        assert!(text.contains("0.20 + 0.88 = 1.08   0.20 + 0.88 = 1.08"), "{text}");
        assert_eq!(text.matches("(held back)").count(), 4);
        assert!(text.contains("lstm training 0.50\n"), "{text}");
    }

    #[test]
    fn a_recording_that_is_not_there_is_named() {
        let error = program(&HashMap::new(), "vgg19", true).expect_err("no recording");
        assert_eq!(error.to_string(), "vgg19: no recording of its training");
    }
}
