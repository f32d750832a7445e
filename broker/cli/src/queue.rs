// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft queue`: jobs that wait for device memory, with reasons, and jobs that have it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::columns::{self, TextColumn};
use super::text::{self, PageLine};
use super::users;
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::paths::Places;
use weft_api::queue::{LearntRow, Queue, RunningRow, WaitingRow};

/// Show which jobs wait for device memory, why, and when each is expected to begin
#[derive(Debug, clap::Args)]
pub struct QueueArgs {
    /// Print everything as JSON (docs/json.md lists the fields)
    #[arg(long)]
    pub json: bool,
    /// Also show counts so far, the size of a context, and all jobs that ended without --memory
    #[arg(long, short)]
    pub verbose: bool,
}

/// Largest number of ended jobs on a page for people.
const LEARNT_SHOWN: usize = 8;

/// Shows the queue.
pub fn main(args: QueueArgs) -> Result<ExitCode> {
    let Answer::Queue(queue) = admin::ask(&Places::of_environment(), &AdminQuestion::Queue)? else {
        bail!("unexpected answer");
    };
    let terminal = text::terminal_width();
    let width = terminal.unwrap_or(text::USUAL_WIDTH);
    text::show(&*queue, args.json, |queue| {
        text::page(render(queue, args.verbose, width).into_iter(), terminal)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Expected start of a job; a guess if an earlier job's duration is undeclared.
fn begins(row: &WaitingRow) -> String {
    match (row.begins_s, row.guess) {
        (None, _) => "?".to_string(),
        (Some(seconds), false) => text::span(seconds),
        (Some(seconds), true) => format!("{} (guess)", text::span(seconds)),
    }
}

/// A name for a table; `-` if hidden, as another user's is.
fn called(name: &str) -> String {
    match name.is_empty() {
        true => "-".to_string(),
        false => name.to_string(),
    }
}

/// A user's name for a table, or a label of the queue.
fn user(label: &str) -> String {
    text::cut(&users::shown(label), 16)
}

/// The page for people.
fn render(queue: &Queue, verbose: bool, width: usize) -> Vec<PageLine> {
    let say = |line: String| PageLine::Prose(line);
    let rows = |columns| columns::rows(columns, width);
    let (running, waiting) = (queue.running.len() as u64, queue.waiting.len() as u64);
    let mut page = vec![say(format!(
        "admission by {}: {} of device memory, {}",
        queue.policy,
        match running {
            1 => "1 job has a share".to_string(),
            _ => format!("{running} jobs have a share"),
        },
        match waiting {
            0 => "no job waits".to_string(),
            1 => "1 job waits".to_string(),
            _ => format!("{waiting} jobs wait"),
        },
    ))];
    if verbose {
        page.push(say(format!(
            "{} admitted so far, {} of them after a wait; {} could never run; {} requests exceeded the free memory",
            queue.admitted, queue.waited, queue.refused, queue.denied
        )));
    }
    for device in &queue.devices {
        let context = match verbose {
            true => format!(", {} a context", text::size(device.context)),
            false => String::new(),
        };
        page.push(say(format!(
            "device {}: {} of {} free, {} held by others{context}",
            text::cut(&device.uuid, 12),
            text::size(device.free),
            text::size(device.memory),
            text::size(device.foreign),
        )));
    }
    page.extend(queue.others.iter().map(|other| say(other.to_string())));
    if !queue.waiting.is_empty() {
        page.extend([say(String::new()), say("waiting:".to_string())]);
        page.extend(rows(waiting_columns(&queue.waiting, verbose)));
        page.extend(queue.waiting.iter().map(|row| {
            let who = named(&row.name, row.pid);
            say(format!("{}. {who}: {}", row.position, row.reason))
        }));
    }
    if !queue.running.is_empty() {
        page.extend([say(String::new()), say("have memory:".to_string())]);
        page.extend(rows(running_columns(&queue.running, verbose)));
        let growing = queue.running.iter().filter(|row| row.waits_for > 0);
        let limited = queue
            .running
            .iter()
            .filter_map(|row| Some((row, row.request?, row.limit?)));
        page.extend(limited.map(|(row, request, limit)| {
            say(format!(
                "{} {}",
                named(&row.name, row.pid),
                text::bounds(request, limit, row.held)
            ))
        }));
        page.extend(growing.map(|row| {
            say(format!(
                "{} waits for {} more, inside a call",
                named(&row.name, row.pid),
                text::size(row.waits_for)
            ))
        }));
    }
    if !queue.weights.is_empty() {
        let weights = queue.weights.iter();
        let each = weights.map(|row| format!("{} {}", users::shown(&row.user), row.weight));
        let each = each.collect::<Vec<String>>().join(", ");
        page.extend([say(String::new()), say(format!("weights: {each} (all others 1)"))]);
    }
    if !queue.caps.is_empty() {
        let each = queue.caps.iter().map(|row| {
            let jobs = row.jobs.map(|jobs| text::count(jobs.into(), "job", "jobs"));
            let figures = jobs.into_iter().chain(row.memory.map(text::size));
            let figures = figures.collect::<Vec<String>>().join(" and ");
            format!(
                "{} {figures}",
                row.uid.map_or_else(|| "all others".to_string(), users::name_of)
            )
        });
        let each = each.collect::<Vec<String>>().join(", ");
        page.extend([say(String::new()), say(format!("limits: {each}"))]);
    }
    let shown = match verbose {
        true => queue.learnt.len(),
        false => queue.learnt.len().min(LEARNT_SHOWN),
    };
    if let Some(learnt) = queue.learnt.get(..shown).filter(|rows| !rows.is_empty()) {
        page.extend([
            say(String::new()),
            say(
                "recently ended without --memory or profile (weft profile keep PID --name NAME makes a profile):"
                    .to_string(),
            ),
        ]);
        page.extend(rows(learnt_columns(learnt)));
        if shown < queue.learnt.len() {
            page.push(say(format!("{} more: weft queue -v", queue.learnt.len() - shown)));
        }
    }
    page
}

/// A job by name, or by process if its name is not known.
fn named(name: &str, pid: u32) -> String {
    match name.is_empty() {
        true => format!("process {pid}"),
        false => format!("{name} ({pid})"),
    }
}

/// Columns of waiting jobs. The reasons are sentences, so they stand below the table.
fn waiting_columns(rows: &[WaitingRow], verbose: bool) -> Vec<TextColumn> {
    let mut columns = vec![
        TextColumn::figures("place", 1).with(rows, |row| row.position.to_string()),
        TextColumn::words("name", 0, 12).with(rows, |row| called(&row.name)),
        TextColumn::figures("pid", 3).with(rows, |row| row.pid.to_string()),
        TextColumn::words("user", 4, 6).with(rows, |row| user(&row.user)),
        TextColumn::figures("prio", 2).with(rows, |row| row.priority.to_string()),
        TextColumn::figures("needs", 1).with(rows, |row| text::size(row.needs)),
        TextColumn::figures("waited", 2).with(rows, |row| text::span(row.waited_s)),
        TextColumn::figures("begins in", 1).with(rows, begins),
    ];
    if verbose {
        columns.push(TextColumn::words("runs", 5, 6).with(rows, |row| row.duration.clone()));
    }
    columns.push(command(rows, |row| &row.command));
    columns
}

/// Columns of jobs that have memory.
fn running_columns(rows: &[RunningRow], verbose: bool) -> Vec<TextColumn> {
    let mut columns = vec![
        TextColumn::words("name", 0, 12).with(rows, |row| called(&row.name)),
        TextColumn::figures("pid", 3).with(rows, |row| row.pid.to_string()),
        TextColumn::words("user", 4, 6).with(rows, |row| user(&row.user)),
        TextColumn::figures("prio", 2).with(rows, |row| row.priority.to_string()),
        TextColumn::figures("may have", 1).with(rows, |row| text::size(row.share)),
        TextColumn::figures("holds", 1).with(rows, |row| text::size(row.held)),
        TextColumn::words("memory", 3, 7).with(rows, |row| row.memory.clone()),
        TextColumn::figures("since", 2).with(rows, |row| text::span(row.since_s)),
        TextColumn::words("device", 5, 6).with(rows, |row| text::cut(&row.device, 12)),
    ];
    if verbose {
        columns.push(TextColumn::figures("processes", 5).with(rows, |row| row.clients.len().to_string()));
    }
    columns.push(command(rows, |row| &row.command));
    columns
}

/// Columns of jobs that ended without a declared need.
fn learnt_columns(rows: &[LearntRow]) -> Vec<TextColumn> {
    let more = |row: &LearntRow| if row.denied { "more" } else { "-" }.to_string();
    vec![
        TextColumn::words("name", 0, 12).with(rows, |row| called(&row.name)),
        TextColumn::figures("pid", 1).with(rows, |row| row.pid.to_string()),
        TextColumn::words("user", 4, 6).with(rows, |row| user(&row.user)),
        TextColumn::figures("took", 1).with(rows, |row| text::size(row.peak)),
        TextColumn::words("wanted", 3, 6).with(rows, more),
        TextColumn::figures("ran", 2).with(rows, |row| text::span(row.ran_s)),
        command(rows, |row| &row.command),
    ]
}

fn command<T>(rows: &[T], of: impl Fn(&T) -> &String) -> TextColumn {
    TextColumn::words("command", 6, 24).with(rows, |row| text::command(of(row), text::LONG_COMMAND))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(begins_s: Option<f64>, guess: bool) -> WaitingRow {
        WaitingRow {
            position: 1,
            pid: 1_234_567,
            name: "train.py".to_string(),
            user: "0".to_string(),
            needs: 20 << 30,
            waited_s: 61.0,
            reason: "needs 20.39 GiB of device memory, 9.61 GiB are free".to_string(),
            command: format!("python -u /home/ann/{}/train.py --lr 3", "deep/".repeat(9)),
            begins_s,
            guess,
            ..WaitingRow::default()
        }
    }

    fn shown(queue: &Queue, verbose: bool, width: usize) -> String {
        text::page(render(queue, verbose, width).into_iter(), Some(width))
    }

    #[test]
    fn a_begin_that_is_guessed_is_called_so() {
        assert_eq!(begins(&waits(Some(1_740.0), true)), "29 min (guess)");
        assert_eq!(begins(&waits(Some(1_740.0), false)), "29 min");
        assert_eq!(begins(&waits(None, true)), "?");
        let queue = Queue {
            waiting: vec![waits(Some(1_740.0), true)],
            ..Queue::default()
        };
        let page = shown(&queue, false, 80);
        assert!(page.contains("29 min (guess)"), "{page}");
    }

    #[test]
    fn the_page_fits_any_terminal_and_names_jobs_and_users() {
        let runs = RunningRow {
            pid: 1_234_568,
            name: "a-name-of-as-many-letters-as-there-may-be-in-a-name-of-a-job-64x".to_string(),
            device: "0f".repeat(16),
            user: "0".to_string(),
            share: 12 << 30,
            held: 11 << 30,
            memory: "managed: did not fit".to_string(),
            clients: vec![1, 2],
            waits_for: 3 << 30,
            ..RunningRow::default()
        };
        let learnt = LearntRow {
            pid: 1_234_569,
            name: "once.py".to_string(),
            user: "4000000".to_string(),
            peak: 3 << 30,
            denied: true,
            ..LearntRow::default()
        };
        let queue = Queue {
            policy: "weft".to_string(),
            waiting: vec![waits(Some(1_740.0), true), waits(None, false)],
            running: vec![runs],
            learnt: vec![learnt; LEARNT_SHOWN + 2],
            ..Queue::default()
        };
        for width in [60, 80, 100, 200] {
            for verbose in [false, true] {
                let page = shown(&queue, verbose, width);
                for line in page.lines() {
                    assert!(text::width(line) <= width, "{width}: {line}");
                }
                let has = |words: &[&str]| words.iter().all(|word| page.contains(word));
                assert!(
                    has(&["train.py", "a-name-of-", "once.py", "may have", "20.0 GiB"]),
                    "{width}: {page}"
                );
                assert!(has(&["1. train.py (1234567): needs 20.39 GiB"]), "{width}: {page}");
                assert!(width < 100 || has(&["root", "1234568"]), "{width}: {page}");
                assert!(
                    width < 200 || has(&["4000000", "train.py --lr 3", "managed: did not fit"]),
                    "{width}: {page}"
                );
                assert!(
                    width < 200 || has(&["(1234568) waits for 3.00 GiB more, inside a call"]),
                    "{width}: {page}"
                );
                assert_eq!(has(&["admitted so far"]), verbose, "{page}");
                assert_eq!(has(&["2 more: weft queue -v"]), !verbose, "{page}");
                assert!(
                    width < 200 || has(&["processes", "  runs"]) == verbose,
                    "{width}: {page}"
                );
            }
        }
    }
}
