// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words of a prediction, and its page in text. Pure.
#![forbid(unsafe_code)]

use weft_engine::Settings;
use weft_scheduler::Config;
use weft_trace_import::ProgramRole;
use weft_trace_import::report::NOTABLE;

use super::super::columns::{self, TextColumn};
use super::super::text::{self, PageLine};
use super::play::{FigureRange, LatencyFigures, Prediction, WayFigures};
use super::{PredictAnswer, PredictedJob, ReadJob};

/// Least figure that needs no reason.
const LEAST_PLAIN: f64 = 0.02;

/// Things that the prediction does not know.
pub(super) fn unknown(service: &ReadJob, batch: &[ReadJob]) -> Vec<String> {
    let mut out = Vec::new();
    let all = || std::iter::once(service).chain(batch);
    if !batch.is_empty() {
        out.push(
            "memory bandwidth and caches: kernels side by side slow each other down by 30 % to 150 %, whatever they do"
                .to_owned(),
        );
        out.push(
            "how fast an unprofiled batch job becomes: weft learns many kernels for longer than such a run".to_owned(),
        );
        out.push("the host: CPUs, bus and disk are each job's own; whether the jobs' memory fits the GPU".to_owned());
    }
    out.push("kernels, lengths and loads that the files do not have".to_owned());
    for job in all() {
        let name = &job.job.name;
        if job.is_unsure(service) {
            let gpu = |job: &ReadJob| job.job.gpu.clone().unwrap_or_else(|| "an unknown one".to_owned());
            let why = match job.job.gpu == service.job.gpu {
                true => "they are estimates of a simulated GPU".to_owned(),
                false => format!(
                    "they are {}, of another GPU than the service's ({} and {})",
                    job.job.times,
                    gpu(job),
                    gpu(service)
                ),
            };
            out.push(format!(
                "the kernel times of {name}: {why}, so they are also played halved and doubled"
            ));
        }
        if job.trace.steps.len() == 1 {
            out.push(format!("how the steps of {name} differ: its file has one"));
        }
        if !job.program.collectives.is_empty() {
            out.push(format!(
                "the other GPUs of {name}: its kernels that wait for peers take the time in the file"
            ));
        }
        let off = job.report.as_ref().map_or(1.0, |report| report.comparison.step_ratio);
        if (off - 1.0).abs() > NOTABLE {
            out.push(format!(
                "{name} as it ran: its solo run takes {off:.2} of the file's time here"
            ));
        }
    }
    out
}

/// Reasons of odd figures: batch jobs that get nothing, and those that get less by their profile.
pub(super) fn reasons(prediction: &Prediction, batch: &[ReadJob]) -> Vec<String> {
    let mut out = Vec::new();
    let (ways, gaps) = (&prediction.ways, &prediction.gaps);
    for (at, job) in batch.iter().enumerate() {
        let name = &job.job.name;
        let speeds = |way: &WayFigures| way.batch.get(at).copied().flatten().unwrap_or_default();
        let speed = |way: &WayFigures| speeds(way).point;
        let times = job.program.kernel_times().into_iter().map(|ns| (true, ns as f64));
        let times = FigureRange::of(times).unwrap_or_default();
        let still = ways.iter().filter(|way| speed(way) < LEAST_PLAIN).map(|way| way.way);
        let still: Vec<&str> = still.collect();
        if !still.is_empty() {
            let why = match times.high > gaps.room_ns.point {
                true => format!(
                    "its kernels take up to {}, the longest gap of a usual request has {}, a run {}",
                    time(times.high),
                    time(gaps.room_ns.point),
                    text::duration(prediction.run_ns)
                ),
                false => format!(
                    "the service's kernels run {} of the time",
                    range(gaps.busy, text::percent)
                ),
            };
            let still = match still.len() == ways.len() {
                true => "every way".to_owned(),
                false => still.join("; "),
            };
            out.push(format!("{name} gets next to nothing from {still}: {why}."));
        }
        for without in ways {
            let with = without.way.strip_suffix(", batch unprofiled");
            let with = ways.iter().find(|way| Some(way.way) == with);
            if let Some(with) = with.filter(|with| speed(without) > speeds(with).high) {
                let p99 = |way: &WayFigures| figure(way.latency.map(|of| of.p99)).1;
                out.push(format!(
                    "{name} gets more from {} without its profile: weft charges a kernel {} until it has seen its time, \
                     here {}, and lets it go sooner. The service's p99 is {} without the profile, {} with it.",
                    with.way,
                    text::duration(Config::default().unknown_cost),
                    range(times, time),
                    p99(without),
                    p99(with)
                ));
            }
        }
    }
    out
}

fn job(job: &PredictedJob, one: &str, many: &str) -> String {
    let gpu = job.gpu.as_deref().unwrap_or("an unknown GPU");
    let steps = text::count(job.steps as u64, one, many);
    let guessed = match job.guessed {
        Some(ProgramRole::Service) => "; by its names a service (if it trains: weft trace import --training)",
        Some(ProgramRole::Training) => {
            "; by its names a training (if it answers requests: weft trace import --service)"
        }
        None => "",
    };
    format!("{}: {steps} on {gpu}, {} times{guessed}", job.name, job.times)
}

fn time(ns: f64) -> String {
    text::duration(ns as u64)
}

/// `11 ms (10 ms to 12 ms)`.
fn range(of: FigureRange, shown: fn(f64) -> String) -> String {
    match (shown(of.low), shown(of.high)) {
        (low, high) if low == high => low,
        (low, high) => format!("{} ({low} to {high})", shown(of.point)),
    }
}

/// `1.02 1.00-1.10`, and its short form without the interval.
fn figure(of: Option<FigureRange>) -> (String, String) {
    let Some(of) = of else {
        return ("-".into(), "-".into());
    };
    let short = format!("{:.2}", of.point);
    (format!("{short} {:.2}-{:.2}", of.low, of.high), short)
}

fn all_batch(way: &WayFigures) -> (String, String) {
    let (long, short): (Vec<_>, Vec<_>) = way.batch.iter().map(|part| figure(*part)).unzip();
    (long.join(" + "), short.join(" + "))
}

/// The jobs and the solo run: a name and a text each.
pub(super) fn facts(answer: &PredictAnswer) -> Vec<(&'static str, String)> {
    let (solo, gaps) = (&answer.prediction.solo_ns, &answer.prediction.gaps);
    let mut facts = vec![("service", job(&answer.service, "request", "requests"))];
    facts.extend(answer.batch.iter().map(|one| ("batch", job(one, "step", "steps"))));
    let step = answer.service.step.as_deref().unwrap_or("as its recording marks them");
    facts.push(("requests", format!("steps of the file ({step}); {}", answer.arrivals)));
    facts.push((
        "solo",
        format!(
            "mean {}, p50 {}, p99 {}; its kernels run {} of the time",
            range(solo.mean, time),
            range(solo.p50, time),
            range(solo.p99, time),
            range(gaps.busy, text::percent)
        ),
    ));
    facts
}

/// The gaps of the service.
pub(super) fn gaps(answer: &PredictAnswer) -> [(&'static str, String); 3] {
    let gaps = &answer.prediction.gaps;
    let lengths = format!(
        "{} a request: half are shorter than {}, nine in ten than {}; the longest has {}",
        range(gaps.per_request, |count| format!("{count:.0}")),
        range(gaps.median_ns, time),
        range(gaps.p90_ns, time),
        range(gaps.longest_ns, time)
    );
    let idle = format!(
        "{} of it is in gaps longer than 0.1 ms, {} longer than 1 ms, {} longer than 10 ms",
        range(gaps.beyond_100us, text::percent),
        range(gaps.beyond_1ms, text::percent),
        range(gaps.beyond_10ms, text::percent)
    );
    let fits = format!(
        "a batch kernel of {} in a gap of every second request, of {} in nine requests of ten; without MPS {} less \
         for two switches",
        range(gaps.room_ns, time),
        range(gaps.room_most_ns, time),
        text::duration(2 * Settings::default().switch)
    );
    [("gaps", lengths), ("idle", idle), ("fits", fits)]
}

/// The meaning of the table's figures, and reasons of odd ones.
pub(super) fn notes(answer: &PredictAnswer) -> Vec<String> {
    let prediction = &answer.prediction;
    let ways = &prediction.ways;
    let mut notes = vec![
        "mean, p50, p99: latency of the service over that of its solo run. batch: speed of each batch job, as a part \
         of its solo run's. Behind each figure is its range over seeds, hosts as in the file and twice as fast, time \
         slices of 1 to 2 ms, and kernels that do not share SMs or slow each other down by 30 % to 150 %."
            .to_owned(),
    ];
    if ways.iter().any(|way| way.latency.is_none()) {
        notes.push("-: in a setting the service answered no request, because batch work filled the GPU.".to_owned());
    }
    let fewest = ways.iter().map(|way| way.requests).min().unwrap_or(0);
    notes.push(format!(
        "Each run has {}: {} solo, {fewest} in the slowest run.",
        text::duration(prediction.run_ns),
        text::count(prediction.requests as u64, "request", "requests")
    ));
    notes.extend(answer.reasons.iter().cloned());
    notes
}

/// The page in text.
pub(super) fn page(answer: &PredictAnswer) -> String {
    let prediction = &answer.prediction;
    let named = |(name, text): (&str, String)| PageLine::Prose(format!("{name:8} {text}"));
    let mut lines: Vec<PageLine> = facts(answer).into_iter().map(named).collect();
    match answer.batch.is_empty() {
        true => lines.extend(gaps(answer).map(named)),
        false => {
            let latency = |way: &WayFigures, pick: fn(&LatencyFigures<FigureRange>) -> FigureRange| {
                figure(way.latency.as_ref().map(pick))
            };
            let ways = &prediction.ways;
            let table = vec![
                TextColumn::words("sharing", 0, 10).with(ways, |way| way.way.to_owned()),
                TextColumn::figures("mean", 0).with_short(ways, |way| latency(way, |of| of.mean)),
                TextColumn::figures("p50", 2).with_short(ways, |way| latency(way, |of| of.p50)),
                TextColumn::figures("p99", 0).with_short(ways, |way| latency(way, |of| of.p99)),
                TextColumn::figures("batch", 0).with_short(ways, all_batch),
            ];
            lines.push(PageLine::Row(String::new()));
            let width = text::terminal_width().unwrap_or(usize::MAX / 2);
            lines.extend(columns::rows(table, width));
            lines.push(PageLine::Row(String::new()));
            lines.extend(notes(answer).into_iter().map(PageLine::Prose));
        }
    }
    lines.push(PageLine::Prose("Not known:".to_owned()));
    lines.extend(answer.unknown.iter().map(|line| PageLine::Prose(format!("* {line}"))));
    text::page(lines.into_iter(), text::terminal_width())
}
