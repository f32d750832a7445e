// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft-lab memory prediction`: templates learnt from one recording, judged on another one of the
//! same model.
//!
//! A recording is the simulated GPU's page ledger for each launch (`WEFT_EVIDENCE`, see
//! `tests/clients/test_prediction.py`). Invariants: no judged launch was used to fit. The judged
//! run is another process, whose memory has other addresses. Launches whose kernels were never seen
//! count in full.
//!
//! Each launch's evidence is marked as exact or as a guess ([`Certainty`]). The simulated GPU knows
//! the regions of some kernels from their parameters. For the others (matrix products, convolutions
//! and other libraries' kernels, which it does not run) it guesses from launches that it has met
//! before. So the same launch may be recorded with 448 KB once and with 784 KB another time. No
//! template can predict that. (A host's page table shows the actions of the simulated GPU, guesses
//! included. So templates learnt from a page table are judged by the GPU's own evidence, in
//! granules.) Operands: a file of the same name and `.operands` may lie next to a recording. The
//! framework's tensors in it then explain many of these launches ([`super::operands`]), and they
//! count as exact. The aims are judged on the exact launches; the guessed ones are printed next to
//! them, with their share.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde::Serialize;
use weft_profiles::working_set::recording::{Recorded, Recording};
use weft_profiles::working_set::{
    Allocations, Certainty, Fitter, LaunchArguments, Region, Template, Touched, WorkingSetAccuracy,
    WorkingSetPredictor, WorkingSets,
};

use super::operands;

/// The unit of transfers: MSched's pages are 4 KB.
const PAGE: u64 = 4096;

/// MSched's means: a quarter of a per cent of the touched memory is not predicted, and nothing is
/// predicted that is not touched.
const MOST_MISSED: f64 = 0.0025;
const MOST_TOO_MUCH: f64 = 0.0;

/// The limit for templates that were learnt from granules, judged in granules: a driver brings up
/// to twice the touched bytes, and on average a third more.
const MOST_TOO_MUCH_IN_GRANULES: f64 = 0.25;

/// The most time for a launch's prediction, ns.
const MAX_PREDICTION_NS: f64 = 1_000.0;

/// Templates learnt from one recording of a model, judged on another.
///
///   weft-lab memory prediction resnet50=learn.evidence,judge.evidence gpt2=a,b \
///     --check --json prediction.json
///   pytest tests/clients/test_prediction.py     makes the recordings with PyTorch on the
///                                               simulated GPU, then runs this
#[derive(Debug, Parser)]
#[command(name = "weft-lab memory prediction", verbatim_doc_comment)]
struct PredictionOptions {
    /// MODEL=LEARN,JUDGE: a model's name and two recordings
    #[arg(required = true, value_name = "MODEL=LEARN,JUDGE")]
    models: Vec<String>,
    /// Exit 1 if an aim is missed; the missed aims, with figures, come last
    #[arg(long)]
    check: bool,
    /// All results, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Number of kernels to list per model, those with the most misses first. Each has its
    /// templates and the words of its parameters behind which memory is missed
    #[arg(long, default_value_t = 0)]
    worst: usize,
}

/// One model's figures.
#[derive(Debug, Serialize)]
struct PredictionRow {
    model: String,
    kernels: usize,
    /// Regions behind pointers by template: fixed, linear, strided, recalled.
    templates: [usize; 4],
    fitted_launches: usize,
    /// Granule size, if templates were learnt from granules and are judged in them. 0: to the byte,
    /// and in pages.
    granule: u64,
    /// Judged launches that the framework's operands made exact.
    by_operands: usize,
    /// Launches whose evidence is exact: the aims are about these.
    exact: PredictionPart,
    /// Launches whose evidence is a guess.
    guessed: PredictionPart,
    /// Time to predict a launch, ns: all judged launches one after the other, the median of rounds.
    predict_ns: f64,
}

/// Figures of some judged launches.
#[derive(Debug, Serialize)]
struct PredictionPart {
    launches: u64,
    /// Their share of all judged launches, and of all bytes touched.
    of_launches: f64,
    of_bytes: f64,
    /// Launches of kernels that were never seen.
    unknown: u64,
    /// As parts of all bytes.
    false_negatives: f64,
    false_positives: f64,
    /// Means over launches, as MSched gives them.
    mean_false_negatives: f64,
    mean_false_positives: f64,
}

impl PredictionPart {
    fn new(some: &WorkingSetAccuracy, both: [&WorkingSetAccuracy; 2]) -> PredictionPart {
        let share = |of: fn(&WorkingSetAccuracy) -> u64| {
            of(some) as f64 / both.iter().map(|one| of(one)).sum::<u64>().max(1) as f64
        };
        PredictionPart {
            launches: some.launches,
            of_launches: share(|one| one.launches),
            of_bytes: share(|one| one.touched_bytes),
            unknown: some.unknown,
            false_negatives: some.false_negatives(),
            false_positives: some.false_positives(),
            mean_false_negatives: some.mean_false_negatives(),
            mean_false_positives: some.mean_false_positives(),
        }
    }
}

/// A recording, and the number of its launches that the operands file next to it explains, if
/// `explained` is set.
fn read(path: &Path, explained: bool) -> Result<(Recording, usize)> {
    let bytes = std::fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    let mut recording = Recording::read(&bytes).with_context(|| path.display().to_string())?;
    if recording.launches.is_empty() {
        bail!(
            "{}: no launches in it: was the job in stage 1 on managed memory, on the simulated GPU?",
            path.display()
        );
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".operands");
    let beside = PathBuf::from(beside);
    if !explained {
        return Ok((recording, 0));
    }
    let explained = match std::fs::read_to_string(&beside) {
        Ok(lines) => operands::explain(&mut recording, &lines).with_context(|| beside.display().to_string())?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error).with_context(|| beside.display().to_string()),
    };
    Ok((recording, explained))
}

/// The allocations of a launch's job at that launch.
fn held<'a>(recording: &'a Recording, launch: &Recorded) -> Result<&'a Allocations> {
    let live = recording.allocations.get(launch.allocations);
    live.context("a launch without its allocations")
}

fn row(
    model: &str,
    learn: &Recording,
    (judge, by_operands): (&Recording, usize),
    worst: usize,
) -> Result<PredictionRow> {
    // Templates learnt from granules are judged in granules: these are the unit of transfers.
    let page = learn.granule.unwrap_or(PAGE);
    let mut fitter = match learn.granule {
        Some(_) => Fitter::of_residency(),
        None => Fitter::default(),
    };
    for launch in &learn.launches {
        fitter.observe_as(
            launch.certainty,
            &launch.launch(),
            held(learn, launch)?,
            &launch.touched,
        );
    }
    let sets = fitter.fit();
    let mut templates = [0; 4];
    for word in sets.kernels.iter().flat_map(|kernel| &kernel.words) {
        templates[match word.template {
            Template::Fixed { .. } => 0,
            Template::Linear { .. } => 1,
            Template::Strided { .. } => 2,
            Template::Recalled { .. } | Template::Table { .. } => 3,
        }] += 1;
    }
    let kernels = sets.kernels.len();
    let mut predictor = WorkingSetPredictor::new(sets);
    let (mut exact, mut guessed) = (WorkingSetAccuracy::default(), WorkingSetAccuracy::default());
    let mut each: BTreeMap<(u64, bool), OfKernel> = BTreeMap::new();
    for launch in &judge.launches {
        let predicted = predictor.predict(&launch.launch(), held(judge, launch)?);
        let is_exact = launch.certainty == Certainty::Exact;
        let all = if is_exact { &mut exact } else { &mut guessed };
        all.add(predicted.known, predicted.regions, &launch.touched, page);
        let one = each.entry((launch.kernel, is_exact)).or_default();
        one.evaluation
            .add(predicted.known, predicted.regions, &launch.touched, page);
        if worst > 0 {
            one.behind(&launch.launch(), predicted.regions, &launch.touched);
        }
    }
    name_worst(model, (learn, judge), predictor.sets(), each, worst);
    let both = [&exact, &guessed];
    Ok(PredictionRow {
        model: model.to_string(),
        kernels,
        templates,
        fitted_launches: learn.launches.len(),
        granule: learn.granule.unwrap_or(0),
        by_operands,
        exact: PredictionPart::new(&exact, both),
        guessed: PredictionPart::new(&guessed, both),
        predict_ns: time(&mut predictor, judge)?,
    })
}

/// The errors for one kernel.
#[derive(Debug, Default)]
struct OfKernel {
    evaluation: WorkingSetAccuracy,
    /// Bytes of pieces that no single region covers, by the words that point at their begin:
    /// offsets in the parameters.
    behind: BTreeMap<Vec<u16>, u64>,
}

impl OfKernel {
    fn wrong(&self) -> u64 {
        self.evaluation.false_negative_bytes + self.evaluation.false_positive_bytes
    }

    fn behind(&mut self, launch: &LaunchArguments, regions: &[Region], touched: &[Touched]) {
        for piece in touched {
            let mut parts = regions.iter().flat_map(|region| region.parts());
            if !parts.any(|part| part.address <= piece.address && piece.end() <= part.end()) {
                let words = launch.pointer_offsets();
                let words = words.filter(|offset| launch.word64(*offset) == Some(piece.address));
                *self.behind.entry(words.collect()).or_default() += piece.bytes;
            }
        }
    }

    /// The words behind which the most bytes are missed.
    fn worst_words(&self) -> String {
        let mut words: Vec<_> = self.behind.iter().collect();
        words.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
        let told = words.iter().take(4).map(|(words, bytes)| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            format!("{} KB at {}", *bytes >> 10, words.join("="))
        });
        told.collect::<Vec<_>>().join(", ")
    }
}

/// Prints the kernels with the most errors, exact ones first, and their templates.
fn name_worst(
    model: &str,
    (learn, judge): (&Recording, &Recording),
    sets: &WorkingSets,
    each: BTreeMap<(u64, bool), OfKernel>,
    worst: usize,
) {
    let mut named: Vec<((u64, bool), OfKernel)> = each.into_iter().collect();
    named.sort_by_key(|((_, exact), one)| std::cmp::Reverse((*exact, one.wrong())));
    for wanted in [true, false] {
        let some = named
            .iter()
            .filter(|((_, exact), one)| *exact == wanted && one.wrong() > 0);
        for ((kernel, exact), of) in some.take(worst) {
            let one = &of.evaluation;
            println!(
                "  {model}: {}: {} launches, {} unknown, {} KB touched, {:.3} % missed, {:.3} % too much: {kernel:016x} {}",
                if *exact { "exact" } else { "guessed" },
                one.launches,
                one.unknown,
                one.touched_bytes >> 10,
                100.0 * one.false_negatives(),
                100.0 * one.false_positives(),
                judge.names.get(kernel).map_or("", String::as_str)
            );
            let learnt = |certainty| {
                let of = learn.launches.iter().filter(|launch| launch.kernel == *kernel);
                of.filter(|launch| launch.certainty == certainty).count()
            };
            println!(
                "    learnt from {} exact launches and {} guesses: {}",
                learnt(Certainty::Exact),
                learnt(Certainty::Guessed),
                words(sets, *kernel)
            );
            println!("    missed: {}", of.worst_words());
        }
    }
}

/// A kernel's templates: the number of words with each, and the first offsets in the parameters.
fn words(sets: &WorkingSets, kernel: u64) -> String {
    let mut by_name: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    for word in sets.kernel(kernel).into_iter().flat_map(|known| &known.words) {
        let name = match &word.template {
            Template::Table { seen, .. } if seen.is_empty() => "what all had in common".to_string(),
            other => other.name().to_string(),
        };
        by_name.entry(name).or_default().push(word.offset);
    }
    let told = by_name.iter().map(|(name, offsets)| {
        let first: Vec<String> = offsets.iter().take(4).map(ToString::to_string).collect();
        format!("{} {name} (at {})", offsets.len(), first.join(", "))
    });
    let told: Vec<String> = told.collect();
    if told.is_empty() {
        "nothing".to_string()
    } else {
        told.join(", ")
    }
}

/// The median of rounds over all launches.
fn time(predictor: &mut WorkingSetPredictor, judge: &Recording) -> Result<f64> {
    const ROUNDS: usize = 21;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for launch in &judge.launches {
            std::hint::black_box(predictor.predict(&launch.launch(), held(judge, launch)?));
        }
        rounds.push(begin.elapsed().as_nanos() as f64 / judge.launches.len() as f64);
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

fn judged(options: &PredictionOptions) -> Result<Vec<PredictionRow>> {
    let mut rows = Vec::new();
    for given in &options.models {
        let parts = given
            .split_once('=')
            .and_then(|(model, files)| Some((model, files.split_once(',')?)));
        let (model, (learn, judge)) = parts.with_context(|| format!("{given}: give MODEL=LEARN,JUDGE"))?;
        let learn = read(Path::new(learn), true)?.0;
        // The page table shows the actions of the simulated GPU, guesses included. It did not do
        // the accesses that the framework reports for those launches.
        let (judge, by_operands) = read(Path::new(judge), learn.granule.is_none())?;
        rows.push(row(model, &learn, (&judge, by_operands), options.worst)?);
    }
    Ok(rows)
}

/// The missed aims, with figures.
fn missed(rows: &[PredictionRow]) -> Vec<String> {
    let mut missed = Vec::new();
    for row in rows {
        let too_much = match row.granule {
            0 => MOST_TOO_MUCH,
            _ => MOST_TOO_MUCH_IN_GRANULES,
        };
        for (what, figure, most, factor, unit) in [
            (
                "touched and not predicted",
                row.exact.false_negatives,
                MOST_MISSED,
                100.0,
                "%",
            ),
            (
                "predicted and not touched",
                row.exact.false_positives,
                too_much,
                100.0,
                "%",
            ),
            ("a launch's prediction", row.predict_ns, MAX_PREDICTION_NS, 1.0, "ns"),
        ] {
            if figure > most {
                missed.push(format!(
                    "{}: {what}: {:.4} {unit}, aim {} {unit}",
                    row.model,
                    factor * figure,
                    factor * most
                ));
            }
        }
    }
    missed
}

fn print_rows(rows: &[PredictionRow]) {
    println!(
        "{:<20} {:>7} {:>24} {:>8} {:>8}   {:<7} {:>8} {:>9} {:>8} {:>8} {:>19} {:>19}",
        "model",
        "kernels",
        "fix/lin/strided/recalled",
        "fitted",
        "ns",
        "judged",
        "launches",
        "% of them",
        "% bytes",
        "unknown",
        "FN % (mean)",
        "FP % (mean)",
    );
    for row in rows {
        let templates: Vec<String> = row.templates.iter().map(ToString::to_string).collect();
        for (kind, part) in [("exact", &row.exact), ("guessed", &row.guessed)] {
            let head = match kind {
                "exact" => format!(
                    "{:<20} {:>7} {:>24} {:>8} {:>8.0}",
                    row.model,
                    row.kernels,
                    templates.join("/"),
                    row.fitted_launches,
                    row.predict_ns
                ),
                _ => format!("{:71}", ""),
            };
            println!(
                "{head}   {kind:<7} {:>8} {:>9.1} {:>8.1} {:>8} {:>9.4} ({:>7.4}) {:>9.4} ({:>7.4})",
                part.launches,
                100.0 * part.of_launches,
                100.0 * part.of_bytes,
                part.unknown,
                100.0 * part.false_negatives,
                100.0 * part.mean_false_negatives,
                100.0 * part.false_positives,
                100.0 * part.mean_false_positives,
            );
        }
    }
}

/// Runs the command.
pub fn main(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options =
        PredictionOptions::parse_from(std::iter::once("weft-lab memory prediction".to_string()).chain(arguments));
    let rows = match judged(&options) {
        Ok(rows) => rows,
        Err(error) => {
            eprintln!("weft-lab memory prediction: {error:#}");
            return ExitCode::from(2);
        }
    };
    print_rows(&rows);
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&rows).unwrap_or_default();
        if let Err(error) = std::fs::write(path, text + "\n") {
            eprintln!(
                "weft-lab memory prediction: {}: {error}: name another file",
                path.display()
            );
            return ExitCode::from(2);
        }
    }
    let missed = missed(&rows);
    println!("{} of {} aims met", 3 * rows.len() - missed.len(), 3 * rows.len());
    for line in &missed {
        println!("missed: {line}");
    }
    ExitCode::from(u8::from(options.check && !missed.is_empty()))
}

#[cfg(test)]
mod tests {
    use weft_profiles::working_set::Access;

    use super::*;

    /// A job whose kernel writes the number of bytes in its argument, at this address, in launches
    /// of these sizes.
    fn recording(base: u64, sizes: &[u32], kernel: u64) -> Recording {
        let mut live = Allocations::new();
        live.add(base, 1 << 24);
        let launch = |size: &u32| {
            let mut parameters = base.to_le_bytes().to_vec();
            parameters.extend((u64::from(*size)).to_le_bytes());
            let bytes = u64::from(*size) * 4;
            Recorded {
                number: 1,
                certainty: Certainty::Exact,
                kernel,
                parameters,
                grid: [1; 3],
                block: [1; 3],
                touched: vec![Touched {
                    address: base,
                    bytes,
                    access: Access::Write,
                }],
                allocations: 0,
            }
        };
        Recording {
            launches: sizes.iter().map(launch).collect(),
            allocations: vec![live],
            ..Recording::default()
        }
    }

    #[test]
    fn a_rule_that_holds_elsewhere_misses_nothing_and_an_unknown_kernel_counts() {
        let sizes: Vec<u32> = (1..40).map(|n| n * 5_000).collect();
        let learn = recording(0x7f00_0000_0000, &sizes, 1);
        let found = row(
            "m",
            &learn,
            (&recording(0x7e00_0000_0000, &[333_000, 444_000], 1), 0),
            0,
        )
        .unwrap();
        assert_eq!(
            (
                found.exact.false_negatives,
                found.exact.false_positives,
                found.exact.unknown
            ),
            (0.0, 0.0, 0)
        );
        assert_eq!(found.templates, [0, 1, 0, 0]);
        let found = row("m", &learn, (&recording(0x7e00_0000_0000, &[3_000_000], 2), 0), 0).unwrap();
        assert_eq!(found.exact.unknown, 1);
        assert!(found.exact.false_negatives > MOST_MISSED);
        assert!(!missed(&[found]).is_empty());
    }

    #[test]
    fn bad_input_is_said() {
        let options = |text: &str| PredictionOptions::parse_from(["x", text]);
        assert!(judged(&options("resnet")).is_err());
        let error = judged(&options("a=/nonexistent/x,/nonexistent/y")).unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/x"));
    }
}
