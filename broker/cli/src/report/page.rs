// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of a report, as one self-contained HTML file. Pure.
//!
//! Rows of jobs have their outcome's figures as `data-` attributes, with the same values as `weft
//! history --json`.
#![forbid(unsafe_code)]

use std::fmt::Write;

use weft_api::outcome::{Outcome, Warning};
use weft_api::recording::{JobInterval, JobRecording};

use super::super::{history, text};
use super::charts;
use super::gaps::JobGaps;
use super::selection::{JobReport, ReportJob, Run};
use super::svg::escape;

/// Style of a report.
const STYLE: &str = include_str!("style.css");

/// A page that needs no other file. `head` ends its head, `body` is the element.
pub fn document(title: &str, head: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n{head}</head>\n{body}</html>\n",
        escape(title)
    )
}

/// Makes the page, with `nav` at its top.
pub(super) fn render(report: &JobReport, nav: &str) -> String {
    let title = format!("weft report: {}", report.title());
    let mut page = format!(
        "<body>\n{nav}<h1>{}</h1>\n<p class=\"soft\">Made at {} UTC by weft {}.</p>\n",
        escape(&title),
        history::date(report.now_ms),
        env!("CARGO_PKG_VERSION"),
    );
    for (number, run) in report.runs.iter().enumerate() {
        render_run(&mut page, run, number);
    }
    render_gaps(&mut page, &report.gaps);
    page.push_str(NOTES);
    page.push_str("</body>\n");
    document(&title, "", &page)
}

/// Sources of the figures.
const NOTES: &str = "<h2>Sources of the figures</h2>\n\
<table><tr><th>figure</th><th>source</th></tr>\n\
<tr><td>time run, roles</td><td>clock; roles as seen once a second</td></tr>\n\
<tr><td>lost, cost</td><td>measured at the foreground job's waits, only by policy <code>weft</code>; divided among the \
background jobs by their GPU time in each interval. Measurements scatter, so parts may be below zero</td></tr>\n\
<tr><td>latency</td><td>measured: from the first launch to the wait that saw all work end</td></tr>\n\
<tr><td>launches, forced launches, memory moved, held at the gate</td><td>counted</td></tr>\n\
<tr><td>GPU time, won, of plain sharing</td><td><i>estimated</i>, from predicted kernel times. A job that is alone times \
no launches, so the charts show its GPU time only while other jobs run</td></tr></table>\n\
<p class=\"note\">docs/outcomes.md has the formulas. Charts have at most 256 intervals.</p>\n";

fn render_run(page: &mut String, run: &Run, number: usize) {
    let device = if run.device.is_empty() {
        "an unknown GPU"
    } else {
        &run.device
    };
    let seconds = run.end_ms.saturating_sub(run.begin_ms) as f64 / 1e3;
    let _ = write!(
        page,
        "<h2 id=\"run{number}\">{} on {}</h2>\n<p class=\"soft\">From {} UTC, for {}.</p>\n",
        text::count(run.jobs.len() as u64, "job", "jobs"),
        escape(device),
        history::date(run.begin_ms),
        long(seconds),
    );
    render_cards(page, run);
    page.push_str("<h3>Timeline</h3>\n");
    legend(
        page,
        &[
            ("k-foreground", "foreground: never held"),
            ("k-background", "background: fills gaps"),
            ("k-alone", "alone on the GPU"),
            ("k-memory", "waits for device memory"),
        ],
    );
    page.push_str(&charts::timeline(run));
    page.push_str(
        "<p class=\"note\">Time since the start of the run. The strip is the job's role, the area above it its part of \
         the GPU while other jobs run (<i>estimated</i>). A triangle is a warning.</p>\n",
    );
    render_table(page, run);
    if let Some(picture) = charts::shares(run) {
        page.push_str("<h3>GPU time of each job</h3>\n");
        job_legend(page, run, |_| true);
        page.push_str(&picture);
        page.push_str(
            "<p class=\"note\">Parts of the time, <i>estimated</i>; upper bounds if the job's GPU time is marked ≤. In \
             the rest the GPU was idle, or a job was alone. Background jobs drawn above the foreground job ran in its \
             gaps.</p>\n",
        );
    }
    render_lateness(page, run);
    render_causes(page, run);
    if let Some(picture) = charts::moved(run) {
        page.push_str("<h3>Memory moved</h3>\n");
        job_legend(page, run, |_| true);
        page.push_str(&picture);
        page.push_str("<p class=\"note\">Managed memory, to the device and to the host, for each job.</p>\n");
    }
    render_warnings(page, run);
}

/// Colours, by their class, and their meaning.
pub fn legend(page: &mut String, keys: &[(&str, &str)]) {
    page.push_str("<p class=\"legend\">");
    for (class, what) in keys {
        let _ = write!(page, "<span><i class=\"key {class}\"></i>{}</span>", escape(what));
    }
    page.push_str("</p>\n");
}

fn job_legend(page: &mut String, run: &Run, shown: impl Fn(&ReportJob) -> bool) {
    let keys: Vec<(String, &str)> = run
        .jobs
        .iter()
        .enumerate()
        .filter(|(_, job)| shown(job))
        .map(|(number, job)| (charts::colour(number), job.name.as_str()))
        .collect();
    let keys: Vec<(&str, &str)> = keys.iter().map(|(class, name)| (class.as_str(), *name)).collect();
    legend(page, &keys);
}

/// A time; from two minutes on with minutes and seconds, from two hours on with hours and minutes.
fn long(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..120 => text::duration((seconds.max(0.0) * 1e9) as u64),
        120..7_200 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3_600, whole / 60 % 60),
    }
}

/// Lateness. Measurements scatter below zero; all views show such a value as 0.
fn lateness(ns: i64) -> String {
    text::duration(ns.max(0) as u64)
}

/// One card per job, with its most important figure.
fn render_cards(page: &mut String, run: &Run) {
    page.push_str("<div class=\"cards\">\n");
    for job in &run.jobs {
        let outcome = &job.of.job.outcome;
        let allowed = job
            .of
            .recording
            .as_ref()
            .and_then(|recording| recording.slowdown_allowed);
        let (class, big, small) = match (&outcome.lost, &outcome.won) {
            (Some(lost), _) => {
                let kept = allowed.is_none_or(|allowed| lost.part <= allowed);
                let allowed = allowed.map_or(String::new(), |allowed| format!(", {} allowed", text::percent(allowed)));
                (
                    if kept { "good" } else { "bad" },
                    format!("lost {}", lost.part_text()),
                    format!(
                        "of its time to background jobs: {} at {}{allowed}",
                        text::duration(lost.ns.max(0) as u64),
                        text::count(lost.waits, "wait", "waits")
                    ),
                )
            }
            (None, Some(won)) => {
                let of_plain = won.of_plain.map_or(String::new(), |part| {
                    format!("; about {} of the maximum under plain sharing", text::percent(part))
                });
                let cost = outcome.cost.map_or(String::new(), |cost| {
                    format!("; cost foreground jobs {}", history::late(Some(cost)).0)
                });
                (
                    "",
                    format!("won {}", outcome.gpu_part_text(won.over_exclusive_ns)),
                    format!("of GPU time over exclusive use{of_plain}{cost}"),
                )
            }
            (None, None) => {
                let gpu = outcome
                    .gpu_text()
                    .map_or(String::new(), |gpu| format!("had {gpu} of GPU time; "));
                let role = match outcome.foreground_s > 0.0 {
                    true => "nothing was measured at its waits",
                    false => "alone on the GPU",
                };
                (
                    "",
                    format!("ran {}", text::duration((outcome.ran_s.max(0.0) * 1e9) as u64)),
                    format!("{gpu}{role}"),
                )
            }
        };
        let _ = writeln!(
            page,
            "<div class=\"card\"><b>{}</b><span class=\"big {class}\">{}</span><div class=\"soft\">{}</div></div>",
            escape(&job.name),
            escape(&big),
            escape(&small)
        );
    }
    page.push_str("</div>\n");
}

/// Attributes with an outcome's figures, for programs.
fn data(job: &ReportJob) -> String {
    let outcome: &Outcome = &job.of.job.outcome;
    let mut data = format!(
        "data-pid=\"{}\" data-client=\"{}\" data-launches=\"{}\" data-forced-launches=\"{}\" data-memory-moved=\"{}\"",
        job.of.job.pid, job.of.job.client, outcome.launches, outcome.forced_launches, outcome.memory_moved
    );
    let figures = [
        ("gpu-ns", outcome.gpu_ns.map(|ns| ns as i64)),
        ("gpu-shared-ns", Some(outcome.gpu_shared_ns as i64)),
        ("lost-ns", outcome.lost.map(|lost| lost.ns)),
        ("cost-ns", outcome.cost.map(|cost| cost.ns)),
        ("won-ns", outcome.won.map(|won| won.over_exclusive_ns as i64)),
    ];
    for (name, figure) in figures {
        if let Some(figure) = figure {
            let _ = write!(data, " data-{name}=\"{figure}\"");
        }
    }
    data
}

fn render_table(page: &mut String, run: &Run) {
    page.push_str(
        "<h3>Figures of each job</h3>\n<div class=\"scroll\"><table class=\"jobs\"><tr><th>job</th><th class=\"n\">priority</th>\
         <th class=\"n\">ran</th><th class=\"n\">foreground</th><th class=\"n\">background</th>\
         <th class=\"n\">GPU time, <i>est.</i></th><th class=\"n\">lost</th><th class=\"n\">cost</th>\
         <th class=\"n\">of plain, <i>est.</i></th><th class=\"n\">launches</th><th class=\"n\">known</th><th>ended</th></tr>\n",
    );
    for (number, job) in run.jobs.iter().enumerate() {
        let outcome = &job.of.job.outcome;
        let cells = history::figures(outcome);
        let span = |seconds: f64| match seconds > 0.0 {
            true => long(seconds),
            false => "-".to_string(),
        };
        let ended = match job.of.running {
            true => "runs".to_string(),
            false => job.of.job.exit.words(job.of.job.ending),
        };
        let _ = writeln!(
            page,
            "<tr {}><td><i class=\"key {}\"></i>{}<div class=\"command\">process {}: {}</div></td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td>{}</td></tr>",
            data(job),
            charts::colour(number),
            escape(&job.name),
            job.of.job.pid,
            escape(&text::command(&job.of.job.command, text::LONG_COMMAND)),
            job.of.job.priority,
            span(outcome.ran_s),
            span(outcome.foreground_s),
            span(outcome.background_s),
            escape(&cells.gpu),
            escape(&history::late(outcome.lost).0),
            escape(&history::late(outcome.cost).0),
            escape(&cells.of_plain),
            outcome.launches,
            escape(&cells.known),
            escape(&ended),
        );
    }
    page.push_str("</table></div>\n");
    if run.jobs.iter().any(|job| job.of.recording.is_none()) {
        page.push_str(
            "<p class=\"note\">Some jobs have no intervals: they ended under an older weft, or newer recordings replaced \
             theirs.</p>\n",
        );
    }
}

fn render_lateness(page: &mut String, run: &Run) {
    if let Some(picture) = charts::lateness(run) {
        page.push_str("<h3>Lateness of the foreground jobs over time</h3>\n");
        job_legend(page, run, |job| job.of.job.outcome.lost.is_some());
        page.push_str(&picture);
        page.push_str(
            "<p class=\"note\">A part of the job's own time, measured at its waits. Line: since its start. Dots: each \
             interval. Dashed: the allowed slowdown. Dots outside the chart are drawn at its edge.</p>\n",
        );
    }
    for job in &run.jobs {
        let Some(latency) = job
            .of
            .recording
            .as_ref()
            .and_then(|recording| recording.latency.as_ref())
        else {
            continue;
        };
        let Some(picture) = charts::latency(latency) else {
            continue;
        };
        let _ = writeln!(
            page,
            "<h3>Latency of {}, without and with background work</h3>",
            escape(&job.name)
        );
        legend(
            page,
            &[
                ("k-alone", "stretches without background work"),
                ("k-beside", "stretches with background work"),
            ],
        );
        page.push_str(&picture);
        page.push_str(
            "<table><tr><th>stretches</th><th class=\"n\">number</th><th class=\"n\">mean</th><th class=\"n\">median</th>\
             <th class=\"n\">p90</th><th class=\"n\">p99</th></tr>\n",
        );
        for (name, lengths) in [
            ("without background work", &latency.alone),
            ("with background work", &latency.beside),
        ] {
            let shown = |ns: Option<u64>| ns.map_or("-".to_string(), text::duration);
            let quantile = |part| shown(lengths.quantile_ns(part));
            let _ = writeln!(
                page,
                "<tr><td>{name}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
                lengths.count,
                shown(lengths.mean_ns()),
                quantile(0.5),
                quantile(0.9),
                quantile(0.99),
            );
        }
        page.push_str(
            "</table>\n<p class=\"note\">A stretch goes from the first launch after a wait to the wait that saw all work end. \
             Means are exact, quantiles to 3 % of themselves. The two rows are different requests, and a longer one meets \
             background work more often. The cost of sharing is the lateness above, which compares each stretch with itself.</p>\n",
        );
    }
    render_costs(page, run);
}

/// Which background job cost which foreground job how much.
fn render_costs(page: &mut String, run: &Run) {
    fn recorded(job: &ReportJob) -> impl Iterator<Item = &JobRecording> {
        job.of.recording.iter()
    }
    // Foreground jobs by client and process.
    let mut columns: Vec<(u64, u32)> = Vec::new();
    for cost in run
        .jobs
        .iter()
        .flat_map(recorded)
        .flat_map(|recording| &recording.costs)
    {
        if !columns.contains(&(cost.client, cost.pid)) {
            columns.push((cost.client, cost.pid));
        }
    }
    if columns.is_empty() {
        return;
    }
    columns.sort_unstable();
    page.push_str(
        "<h3>Which job cost which</h3>\n<div class=\"scroll\"><table class=\"costs\"><tr><th>lateness by</th>",
    );
    for (client, pid) in &columns {
        let called = run
            .jobs
            .iter()
            .find(|job| (job.of.job.client, job.of.job.pid) == (*client, *pid));
        let called = match (called, client) {
            (Some(job), _) => format!("of {}", job.name),
            (None, 0) => "of other jobs".to_string(),
            // The job is another user's, or not on this page.
            (None, client) => format!("of client {client} (process {pid})"),
        };
        let _ = write!(page, "<th class=\"n\">{}</th>", escape(&called));
    }
    page.push_str("<th class=\"n\">total</th></tr>\n");
    for job in &run.jobs {
        let costs: Vec<_> = recorded(job).flat_map(|recording| &recording.costs).collect();
        if costs.is_empty() {
            continue;
        }
        let _ = write!(page, "<tr><td>{}</td>", escape(&job.name));
        for column in &columns {
            let cost = costs.iter().find(|cost| (cost.client, cost.pid) == *column);
            let shown = cost.map_or("-".to_string(), |cost| lateness(cost.ns));
            let _ = write!(page, "<td class=\"n\">{shown}</td>");
        }
        let all: i64 = costs.iter().map(|cost| cost.ns).sum();
        let _ = writeln!(page, "<td class=\"n\">{}</td></tr>", lateness(all));
    }
    page.push_str("</table></div>\n");
}

/// Causes of a job's lost time: cause, time, remedy.
fn causes(job: &ReportJob) -> Vec<(&'static str, i64, &'static str)> {
    let sum = job
        .of
        .recording
        .as_ref()
        .map_or(JobInterval::default(), JobRecording::sum);
    let lost = job.of.job.outcome.lost.map_or(0, |lost| lost.ns);
    let all = [
        (
            "late at its waits (measured)",
            lost,
            "background work delayed it; shorter background kernels, a profile, or a lower --slowdown reduce this",
        ),
        (
            "held at the gate",
            sum.gate_ns,
            "the foreground job had work, or no gap was long enough; smaller kernels fit into more gaps",
        ),
        (
            "waited for device memory",
            sum.memory_wait_ns,
            "other jobs held it (weft queue); weft run --memory and managed memory admit more jobs",
        ),
        (
            "waited for memory to arrive",
            sum.paging_ns,
            "its managed memory was on the host; a profile with its working set prefetches it",
        ),
    ];
    all.into_iter().filter(|(_, ns, _)| *ns > 0).collect()
}

fn render_causes(page: &mut String, run: &Run) {
    let rows: Vec<_> = run.jobs.iter().map(|job| (job, causes(job))).collect();
    if rows.iter().all(|(_, causes)| causes.is_empty()) {
        return;
    }
    page.push_str(
        "<h3>Why time was lost</h3>\n<div class=\"scroll\"><table><tr><th>job</th><th>why</th><th class=\"n\">time</th>\
         <th class=\"n\">of its time</th><th style=\"width:120px\"></th><th>remedy</th></tr>\n",
    );
    for (job, causes) in rows {
        for (why, ns, helps) in causes {
            let ran = (job.of.job.outcome.ran_s * 1e9).max(1.0);
            // As in the table, lateness is a part of the time of its stretches without other jobs.
            let lost = job.of.job.outcome.lost.filter(|lost| lost.ns == ns);
            let part = lost.map_or(ns as f64 / ran, |lost| lost.part);
            let words = lost.map_or_else(|| text::percent(part), |lost| lost.part_text());
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td>{why}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td><span class=\"bar\" style=\"width:{:.1}%\"></span></td><td class=\"soft\">{helps}</td></tr>",
                escape(&job.name),
                text::duration(ns.max(0) as u64),
                words,
                100.0 * part.clamp(0.0, 1.0),
            );
        }
    }
    page.push_str(
        "</table></div>\n<p class=\"note\">Waits of several threads of a job are added, so a part may exceed 100 %. For the rest \
         of its time a background job had nothing to launch, or its kernels ran.</p>\n",
    );
}

/// A warning, and the times of its first and last sight, ns after the job's start.
type TimedWarning<'a> = (&'a Warning, Option<(u64, u64)>);

fn warnings(job: &ReportJob) -> Vec<TimedWarning<'_>> {
    let recorded = job.of.recording.iter().flat_map(|recording| &recording.warned);
    let mut all: Vec<TimedWarning<'_>> = recorded
        .map(|warned| (&warned.warning, Some((warned.first_ns, warned.last_ns))))
        .collect();
    for warning in &job.of.job.outcome.warnings {
        if all.iter().all(|(other, _)| other.kind != warning.kind) {
            all.push((warning, None));
        }
    }
    all
}

fn render_warnings(page: &mut String, run: &Run) {
    if run.jobs.iter().all(|job| warnings(job).is_empty()) {
        return;
    }
    page.push_str("<h3>Warnings about protection</h3>\n");
    // A warning about a device appears once, with all jobs that had it.
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for job in &run.jobs {
        for (warning, times) in warnings(job) {
            let at = |ns: u64| {
                let since = job.begin_ms.saturating_sub(run.begin_ms).saturating_mul(1_000_000);
                long(since.saturating_add(ns) as f64 / 1e9)
            };
            let when = match times {
                Some((first, last)) if last > first => format!("{}: from {} to {}", job.name, at(first), at(last)),
                Some((first, _)) => format!("{}: at {}", job.name, at(first)),
                None => job.name.clone(),
            };
            match said.iter_mut().find(|(text, _)| *text == warning.text) {
                Some((_, times)) => times.push(when),
                None => said.push((warning.text.clone(), vec![when])),
            }
        }
    }
    for (text, times) in said {
        let _ = writeln!(
            page,
            "<div class=\"warning\">{}<div class=\"note\">{}</div></div>",
            escape(&text),
            escape(&times.join("; "))
        );
    }
}

fn render_gaps(page: &mut String, all: &[JobGaps]) {
    if all.is_empty() {
        return;
    }
    page.push_str("<h2>Jobs in the gaps, from the broker's trace</h2>\n");
    for gaps in all {
        let part = |ns: u64| ns as f64 / gaps.length_ns.max(1) as f64;
        let rest = gaps
            .length_ns
            .saturating_sub(gaps.filled_ns)
            .saturating_sub(gaps.held_ns);
        let called = match gaps.command.as_str() {
            "" => format!("process {}", gaps.pid),
            command => format!("{} (process {})", text::command(command, text::COMMAND), gaps.pid),
        };
        let _ = write!(
            page,
            "<h3>{}: {}, {} in total</h3>\n<table><tr><th>in its gaps</th><th class=\"n\">time</th><th class=\"n\">part</th></tr>\n",
            escape(&called),
            text::count(gaps.count, "gap", "gaps"),
            text::duration(gaps.length_ns),
        );
        for (what, ns) in [
            ("filled by background launches (<i>est.</i>)", gaps.filled_ns),
            ("not filled while a background launch waited at the gate", gaps.held_ns),
            ("background jobs had nothing to launch", rest),
        ] {
            let _ = writeln!(
                page,
                "<tr><td>{what}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
                text::duration(ns),
                text::percent(part(ns))
            );
        }
        page.push_str(
            "</table>\n<div class=\"scroll\"><table><tr><th>background job</th><th class=\"n\">launches in gaps</th>\
             <th class=\"n\">their time, <i>est.</i></th><th class=\"n\">launches during its work</th>\
             <th class=\"n\">their time, <i>est.</i></th></tr>\n",
        );
        for (client, (command, filler)) in &gaps.fillers {
            let called = match command.as_str() {
                "" => format!("client {client}"),
                command => text::command(command, text::COMMAND),
            };
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
                escape(&called),
                filler.launches,
                text::duration(filler.ns),
                filler.launches_within,
                text::duration(filler.ns_within),
            );
        }
        page.push_str("</table></div>\n");
    }
    page.push_str(
        "<p class=\"note\">A gap goes from a wait that saw all work end to the next launch. The trace records when jobs \
         launched, not when the device ran the kernels.</p>\n",
    );
}

#[cfg(test)]
pub(super) mod tests {
    use weft_api::outcome::{LatenessSum, WarningKind, Won};
    use weft_api::recording::{CostShare, StretchLatency, StretchLengths, WarningTime};

    use super::*;
    use crate::report::gaps::GapFiller;
    use crate::report::selection::Selection;
    use crate::report::selection::tests::job;

    const S: i64 = 1_000_000_000;

    /// A service of three seconds, alone in the first; training that came a second later, with a
    /// name that must be escaped.
    pub(in super::super) fn report() -> JobReport {
        let mut service = job(10, "python serve.py", 100_000, 103_000);
        service.job.client = 1;
        service.job.outcome.gpu_ns = Some(700_000_000);
        service.job.outcome.gpu_shared_ns = 500_000_000;
        service.job.outcome.lost = Some(LatenessSum {
            ns: 12_000_000,
            part: 0.006,
            waits: 200,
        });
        let foreground = |gpu_ns| JobInterval {
            length_ns: S,
            foreground_ns: S,
            gpu_ns,
            lost_ns: 6_000_000,
            judged_ns: S,
            waits: 100,
            ..JobInterval::default()
        };
        let alone = JobInterval {
            length_ns: S,
            ..JobInterval::default()
        };
        let lengths = |classes: &[(u16, u32)]| StretchLengths {
            count: classes.iter().map(|(_, count)| u64::from(*count)).sum(),
            sum_ns: 1_000_000 * classes.len() as u64,
            classes: classes.to_vec(),
        };
        service.recording = Some(JobRecording {
            begin_ms: 100_000,
            begin_ns: 5_000_000_000,
            intervals: vec![alone, foreground(200_000_000), foreground(300_000_000)],
            latency: Some(StretchLatency {
                alone: lengths(&[(80, 10), (81, 20)]),
                beside: lengths(&[(81, 100), (82, 60), (90, 2)]),
            }),
            slowdown_allowed: Some(0.01),
            warned: vec![WarningTime {
                warning: Warning {
                    kind: WarningKind::NoProfile,
                    client: Some(1),
                    device: None,
                    text: "client 1: no <profile>".to_string(),
                },
                first_ns: 1_500_000_000,
                last_ns: 2_500_000_000,
            }],
            ..JobRecording::default()
        });
        let mut training = job(15, "<b>train</b> \"x\" & y", 101_000, 103_000);
        training.job.client = 2;
        training.job.outcome.won = Some(Won {
            over_exclusive_ns: 800_000_000,
            plain_ns: S as u64,
            of_plain: Some(0.8),
        });
        training.job.outcome.gpu_ns = Some(800_000_000);
        training.job.outcome.cost = Some(LatenessSum {
            ns: 12_000_000,
            part: 0.006,
            waits: 0,
        });
        let background = JobInterval {
            length_ns: S,
            background_ns: S,
            gpu_ns: 400_000_000,
            cost_ns: 6_000_000,
            gate_ns: 250_000_000,
            moved_bytes: 1 << 30,
            ..JobInterval::default()
        };
        training.recording = Some(JobRecording {
            begin_ms: 101_000,
            begin_ns: 6_000_000_000,
            intervals: vec![background, background],
            costs: vec![CostShare {
                client: 1,
                pid: 10,
                ns: 12_000_000,
            }],
            ..JobRecording::default()
        });
        let runs = Selection::Newest.pick(vec![training, service]).expect("a run");
        JobReport {
            now_ms: 200_000,
            runs,
            gaps: vec![JobGaps {
                client: 1,
                pid: 10,
                command: "serve <i>".to_string(),
                count: 3,
                length_ns: 1_000,
                filled_ns: 600,
                held_ns: 300,
                fillers: [(2, ("t<r>ain".to_string(), GapFiller::default()))]
                    .into_iter()
                    .collect(),
            }],
        }
    }

    #[test]
    fn a_page_has_all_and_is_the_same_for_the_same_report() {
        let page = render(&report(), "");
        assert_eq!(page, render(&report(), ""));
        for part in [
            "weft report: 2 jobs",
            "lost 0.6 %",
            "1 % allowed",
            "won about 800 ms",
            "data-pid=\"10\" data-client=\"1\"",
            "data-lost-ns=\"12000000\"",
            "data-cost-ns=\"12000000\"",
            "of python serve.py</th>",
            "held at the gate</td><td class=\"n\">500 ms</td><td class=\"n\">25 %",
            "from 1.50 s to 2.50 s",
            "Memory moved",
            "3 gaps, 1.00 us in total",
            "30 %",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
    }

    #[test]
    fn a_page_needs_nothing_else_and_what_people_say_is_text() {
        let page = render(&report(), "");
        for bad in [
            "<b>train",
            "<profile>",
            "serve <i>",
            "t<r>ain",
            "<script",
            "http:",
            "https:",
            "url(",
            "@import",
            "<link",
        ] {
            assert!(!page.contains(bad), "{bad} is in\n{page}");
        }
        assert!(page.contains("&lt;b&gt;train&lt;/b&gt; &quot;x&quot; &amp; y"));
        assert!(STYLE.contains("prefers-color-scheme"));
        assert!(!STYLE.contains("</"));
        // Every element that needs an end has one.
        for element in [
            "svg", "table", "div", "p", "span", "td", "tr", "text", "title", "h2", "h3", "i",
        ] {
            let begins = page.matches(&format!("<{element} ")).count() + page.matches(&format!("<{element}>")).count();
            assert_eq!(begins, page.matches(&format!("</{element}>")).count(), "{element}");
        }
    }

    #[test]
    fn jobs_without_recordings_have_their_outcomes() {
        let mut report = report();
        for job in &mut report.runs[0].jobs {
            job.of.recording = None;
        }
        let page = render(&report, "");
        assert!(page.contains("lost 0.6 %") && page.contains("have no intervals"));
        let empty = JobReport {
            runs: Vec::new(),
            ..report
        };
        assert!(render(&empty, "").contains("Jobs in the gaps"));
    }
}
