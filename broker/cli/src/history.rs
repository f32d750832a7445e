// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft history`: ended jobs, from disk. It needs no broker.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use serde::Serialize;

use super::columns::{self, TextColumn};
use super::{status, text, users};
use weft_api::admin::{self, AdminQuestion, Answer};
use weft_api::history::{HistoryQuery, HistoryRow};
use weft_api::outcome::{LatenessSum, Outcome};
use weft_api::paths::Places;
use weft_daemon::history;
use weft_profiles::calendar::{DAY_S, civil, days_of};

/// Number of jobs shown by default: a screen.
const USUAL: u64 = 20;

const EXAMPLES: &str = "\
Examples:
  weft history
  weft history --since 2h
  weft history --last 100 --json";

/// Show ended jobs: the GPU time that each had, lost, cost and won
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct HistoryArgs {
    /// Show only this job: its name, process id (4711, pid:4711), client number (client:3) or a
    /// part of its command line
    #[arg(value_name = "JOB")]
    job: Option<String>,
    /// Show only the newest N jobs; default: 20, with --since all
    #[arg(long, short = 'n', value_name = "N", value_parser = text::whole::<u64>, allow_hyphen_values = true)]
    last: Option<u64>,
    /// Show jobs that ended within this time (30m, 2h, 7d) or since this day or time, UTC
    /// (2026-11-25, 2026-11-25T08:30)
    #[arg(long, value_name = "TIME", value_parser = since, allow_hyphen_values = true)]
    since: Option<SinceMoment>,
    /// Show only the processes of this gang, as --json names it; a Slurm job is slurm-NUMBER
    #[arg(long, value_name = "NAME")]
    gang: Option<String>,
    /// Show only the jobs of this user of the system (a name or number; no label of WEFT_USER)
    #[arg(long, value_name = "USER", value_parser = users::user)]
    user: Option<u32>,
    /// Print only one line with the sum of these jobs; without jobs, nothing. Without --last it is
    /// the sum of all
    #[arg(long, conflicts_with = "json")]
    total: bool,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// Longest wait for a private broker's rows. It takes 1 s of it at most, more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// Start of a span, milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinceMoment(pub u64);

/// The answer of `weft history --json`.
#[derive(Debug, Serialize)]
pub struct HistoryPage {
    /// Version of these keys: an existing key keeps its meaning.
    pub schema: u32,
    /// Ended jobs, newest first.
    pub jobs: Vec<HistoryRow>,
}

/// Shows the jobs.
pub fn main(args: HistoryArgs) -> Result<ExitCode> {
    let places = Places::of_environment();
    let selects = args.since.is_some() || args.gang.is_some() || args.total;
    let last = args.last.or((!selects).then_some(USUAL));
    let query = HistoryQuery {
        last: last.filter(|_| args.job.is_none()),
        since_ms: args.since.map(|since| since.0),
        uid: args.user,
        gang: args.gang,
    };
    // The rows of a shared broker have no other source.
    let patience = if places.is_shared() { admin::PATIENCE } else { PATIENCE };
    let mut page = page(&places, &query, Ok(patience))?;
    if let Ok(status) = status::ask_within(&places, PATIENCE)
        && let Some(trouble) = status.broker.history_trouble
    {
        text::warn(trouble);
    }
    if let Some(job) = &args.job {
        page.jobs.retain(|row| is_called(row, job));
        page.jobs
            .truncate(last.map_or(usize::MAX, |last| usize::try_from(last).unwrap_or(usize::MAX)));
    }
    if args.total {
        if let Some(total) = total(&page.jobs) {
            text::print(&total);
        }
        return Ok(ExitCode::SUCCESS);
    }
    text::show(&page, args.json, |page| {
        let width = text::terminal_width().unwrap_or(text::USUAL_WIDTH);
        match page.jobs.is_empty() {
            true if args.job.is_some() => "no such job has ended here (weft history lists the jobs)".to_string(),
            true if query.gang.is_some() => "no job of this gang has ended here".to_string(),
            true if query.since_ms.is_some() => "no job ended here in that time".to_string(),
            true => "no job has ended here".to_string(),
            false => render(&page.jobs, width),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a person's word means this job: its process id, also as `pid:4711`, its client number as
/// `client:3`, its name or a part of its command line.
pub fn is_called(row: &HistoryRow, wanted: &str) -> bool {
    let is_number = !wanted.is_empty() && wanted.bytes().all(|byte| byte.is_ascii_digit());
    let by_number = match wanted.strip_prefix("client:") {
        Some(client) => client.parse() == Ok(row.client),
        None => wanted.strip_prefix("pid:").unwrap_or(wanted).parse() == Ok(row.pid),
    };
    by_number || !is_number && (row.name.as_deref() == Some(wanted) || row.command.contains(wanted))
}

/// Longest wait for a broker's rows, or the reason why it is not asked.
pub type Patience = Result<Duration, String>;

/// The answer about these jobs.
pub fn page(places: &Places, query: &HistoryQuery, patience: Patience) -> Result<HistoryPage> {
    let jobs = rows(places, query, patience)?;
    Ok(HistoryPage { schema: 1, jobs })
}

/// The jobs from a shared broker, whose file belongs to its owner and which shows each user only
/// their own jobs; else the jobs from the file.
fn rows(places: &Places, query: &HistoryQuery, patience: Patience) -> Result<Vec<HistoryRow>> {
    match patience {
        Ok(patience) if places.is_shared() => {
            match admin::ask_within(places, &AdminQuestion::History(query.clone()), patience) {
                Ok(Answer::History(rows)) => return Ok(rows),
                Ok(other) => bail!("unexpected answer {other:?}"),
                Err(error) if error.is_nobody() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(patience) => admin::settle_history(places, patience),
        Err(why) if places.is_shared() => bail!(why),
        Err(_) => {}
    }
    let file = history::file(places)?;
    let (rows, damaged) = history::read(&file, query)?;
    if let Some(damaged) = damaged {
        eprintln!("weft: {damaged}");
    }
    Ok(rows)
}

/// The sum of some jobs in one line. The part of GPU time is that of the time from the first begin
/// to the last end.
fn total(rows: &[HistoryRow]) -> Option<String> {
    let begin_ms = |row: &HistoryRow| row.ended_ms as f64 - row.outcome.ran_s * 1e3;
    let begin = rows.iter().map(begin_ms).reduce(f64::min)?;
    let ran_ms = (rows.iter().map(|row| row.ended_ms).max()? as f64 - begin).max(1.0);
    let outcomes = || rows.iter().map(|row| &row.outcome);
    let mut parts = vec![format!("ran {}", text::duration((ran_ms * 1e6) as u64))];
    if rows.len() > 1 {
        parts.insert(0, format!("{} processes", rows.len()));
    }
    let timed = || outcomes().filter_map(|of| of.gpu_ns.map(|ns| (of, ns)));
    let sum = Outcome {
        gpu_ns: (timed().count() > 0).then(|| timed().map(|(_, ns)| ns).sum()),
        gpu_least_ns: Some(timed().map(|(of, ns)| of.gpu_least_ns.unwrap_or(ns)).sum()),
        gpu_most_ns: Some(timed().map(|(of, ns)| of.gpu_most_ns.unwrap_or(ns)).sum()),
        launches: outcomes().map(|of| of.launches).sum(),
        ..Outcome::default()
    };
    parts.push(match (sum.gpu_text(), sum.gpu_ns) {
        (Some(gpu), Some(ns)) => {
            let part = match sum.is_close() {
                true => format!(" ({})", text::percent(ns as f64 / 1e6 / ran_ms)),
                false => String::new(),
            };
            let of = match timed().count() {
                some if some < rows.len() => format!(" of {some} of them"),
                _ => String::new(),
            };
            format!("GPU {gpu}{part}{of}")
        }
        _ => text::count(sum.launches, "launch", "launches"),
    });
    for (word, sums) in [
        ("lost", outcomes().filter_map(|of| of.lost).collect::<Vec<_>>()),
        ("cost", outcomes().filter_map(|of| of.cost).collect()),
    ] {
        match sums[..] {
            [] => {}
            [one] => parts.push(format!("{word} {}", late(Some(one)).0)),
            // The parts are those of different times.
            _ => {
                let ns: i64 = sums.iter().map(|sum| sum.ns).sum();
                parts.push(format!("{word} {}", text::duration(ns.max(0) as u64)));
            }
        }
    }
    Some(parts.join(", "))
}

/// Columns of ended jobs.
pub fn columns(rows: &[HistoryRow]) -> Vec<TextColumn> {
    let several = rows
        .iter()
        .any(|row| row.uid != rows.first().map_or(0, |first| first.uid));
    let figures = |row: &HistoryRow| figures(&row.outcome);
    let mut columns = vec![
        TextColumn::words("name", 0, 12).with(rows, |row| row.name.clone().unwrap_or_else(|| "-".to_string())),
        TextColumn::figures("pid", 4).with(rows, |row| row.pid.to_string()),
    ];
    if several {
        columns.push(TextColumn::words("user", 3, 6).with(rows, |row| users::name_of(row.uid)));
    }
    columns.extend([
        TextColumn::figures("ended (UTC)", 1).with_short(rows, |row| {
            let date = date(row.ended_ms);
            // Without year and seconds.
            let short = date.get(5..16).unwrap_or_default().to_string();
            (date, short)
        }),
        TextColumn::words("how", 4, 10).with(rows, |row| row.exit.words(row.ending)),
        TextColumn::figures("prio", 6).with(rows, |row| row.priority.to_string()),
        TextColumn::figures("ran", 2).with(rows, |row| text::span(row.outcome.ran_s)),
        TextColumn::figures("GPU", 2).with(rows, |row| figures(row).gpu),
        TextColumn::figures("lost", 2).with_short(rows, |row| late(row.outcome.lost)),
        TextColumn::figures("cost", 2).with_short(rows, |row| late(row.outcome.cost)),
        TextColumn::figures("of plain", 5).with(rows, |row| figures(row).of_plain),
        TextColumn::figures("known", 7).with(rows, |row| figures(row).known),
        TextColumn::words("command", 8, 24).with(rows, |row| text::command(&row.command, text::LONG_COMMAND)),
    ]);
    columns
}

fn render(rows: &[HistoryRow], width: usize) -> String {
    let mut lines = columns::lines(&columns::fit(columns(rows), width));
    let warned = rows.iter().flat_map(|row| {
        let process = format!("process {}", row.pid);
        let warnings = row.outcome.warnings.iter();
        warnings.map(move |warning| (process.clone(), process.clone(), warning.kind, warning.text.as_str()))
    });
    lines.extend(status::grouped(warned).iter().map(|line| format!("! {line}")));
    lines.join("\n")
}

/// An outcome's figures for a table; `-` if a figure is unknown or does not apply to the role.
#[derive(Debug)]
pub struct OutcomeCells {
    /// GPU time of the job, estimated.
    pub gpu: String,
    /// Part of the GPU time that sharing without weft could give.
    pub of_plain: String,
    /// Part of the launches known by its profile.
    pub known: String,
}

/// Lateness as a long cell (time and part) and a short one (part).
pub fn late(sum: Option<LatenessSum>) -> (String, String) {
    let Some(sum) = sum else {
        return ("-".to_string(), "-".to_string());
    };
    let part = sum.part_text();
    (format!("{} ({part})", text::duration(sum.ns.max(0) as u64)), part)
}

/// A figure as a cell, with a mark if it is only an upper bound.
pub fn bounded<T>((value, at_most): (T, bool), shown: impl Fn(T) -> String) -> String {
    let mark = if at_most { "≤" } else { "" };
    format!("{mark}{}", shown(value))
}

/// The cells of an outcome.
pub fn figures(outcome: &Outcome) -> OutcomeCells {
    let or_none = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_string());
    OutcomeCells {
        gpu: or_none(outcome.gpu_ns.map(|ns| bounded(outcome.gpu_figure(ns), text::duration))),
        of_plain: or_none(outcome.won.and_then(|won| won.of_plain).map(text::percent)),
        known: or_none(outcome.launches_known.map(text::percent)),
    }
}

/// Milliseconds since 1970 as `2026-11-25 08:30:12`, UTC.
pub fn date(ms: u64) -> String {
    let seconds = ms / 1_000;
    let (days, of_day) = (seconds / DAY_S, seconds % DAY_S);
    let (year, month, day) = civil(days as i64);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        of_day / 3_600,
        of_day / 60 % 60,
        of_day % 60
    )
}

/// Parses a span before now, or a day or time.
pub fn since(text: &str) -> Result<SinceMoment, String> {
    let wrong = || "a span (30m, 2h, 7d) or a day or time, UTC (2026-11-25, 2026-11-25T08:30)".to_string();
    if let Some(seconds) = span(text) {
        let begin = SystemTime::now().checked_sub(Duration::from_secs(seconds));
        let begin = begin.and_then(|begin| begin.duration_since(UNIX_EPOCH).ok());
        return Ok(SinceMoment(begin.map_or(0, |begin| begin.as_millis() as u64)));
    }
    moment(text).map(SinceMoment).ok_or_else(wrong)
}

/// Seconds of `30m` and the like.
fn span(text: &str) -> Option<u64> {
    let at = text.len().checked_sub(1)?;
    let unit = match text.get(at..)? {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => DAY_S,
        _ => return None,
    };
    let number: u64 = text.get(..at)?.parse().ok()?;
    number.checked_mul(unit)
}

/// Milliseconds since 1970 of `2026-11-25`, also with a time.
fn moment(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let figures = |text: &str, between: char| -> Option<Vec<i64>> {
        let parts = text.split(between);
        parts
            .map(|part| {
                part.parse()
                    .ok()
                    .filter(|_| part.bytes().all(|byte| byte.is_ascii_digit()))
            })
            .collect()
    };
    let date = figures(date, '-')?;
    let [year, month, day] = date[..] else { return None };
    let time = figures(time.trim_end_matches('Z'), ':')?;
    let (hour, minute, second) = match time[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let sound = (1970..=9999).contains(&year) && hour < 24 && minute < 60 && second < 60;
    let days = days_of(year, month, day).filter(|_| sound)?;
    Some((days * DAY_S + (hour * 3_600 + minute * 60 + second) as u64) * 1_000)
}

#[cfg(test)]
mod tests {
    use weft_api::status::{Ending, Exit};

    use super::*;
    use weft_api::outcome::{Warning, WarningKind, Won};

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00");
        assert_eq!(date(951_827_696_000), "2000-02-29 12:34:56");
        assert_eq!(date(1_764_115_199_999), "2025-11-25 23:59:59");
        assert_eq!(moment("2000-02-29T12:34:56Z"), Some(951_827_696_000));
        assert_eq!(moment("2025-11-25 00:00"), moment("2025-11-25"));
        for wrong in [
            "2025-02-29",
            "2025-13-01",
            "2025-1",
            "yesterday",
            "2025-11-25T25:00",
            "+1-2-3",
            "",
        ] {
            assert_eq!(moment(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn spans_have_units() {
        assert_eq!(
            [span("30m"), span("2h"), span("7d"), span("5s")],
            [Some(1_800), Some(7_200), Some(604_800), Some(5)]
        );
        assert_eq!([span("2"), span("h"), span("2w"), span("-2h"), span("ü")], [None; 5]);
        assert!(since("2 hours").is_err());
        let hour_ago = since("1h").expect("a span").0;
        assert!(hour_ago > 1_600_000_000_000);
    }

    #[test]
    fn a_row_says_what_a_job_had_and_cost() {
        let row = HistoryRow {
            ended_ms: 951_827_696_000,
            uid: 1000,
            pid: 77,
            client: 3,
            name: Some("nightly".to_string()),
            gang: None,
            priority: 5,
            command: "python train.py".to_string(),
            profile: None,
            device: None,
            ending: Ending::Vanished,
            exit: Exit::default(),
            outcome: Outcome {
                ran_s: 90.0,
                gpu_ns: Some(12_000_000_000),
                cost: Some(LatenessSum {
                    ns: 35_000_000,
                    part: 0.002,
                    waits: 0,
                }),
                won: Some(Won {
                    over_exclusive_ns: 12_000_000_000,
                    plain_ns: 15_000_000_000,
                    of_plain: Some(0.8),
                }),
                warnings: vec![Warning {
                    kind: WarningKind::NoMps,
                    client: None,
                    device: None,
                    text: "the device takes turns".to_string(),
                }],
                ..Outcome::default()
            },
        };
        assert_eq!(
            total(std::slice::from_ref(&row)).as_deref(),
            Some("ran 90.0 s, GPU about 12.0 s (13.3 %), cost 35.0 ms (0.2 %)")
        );
        let mut other = row.clone();
        other.ended_ms += 30_000;
        other.outcome.lost = row.outcome.cost;
        assert_eq!(
            total(&[row.clone(), other.clone()]).as_deref(),
            Some("2 processes, ran 2 min, GPU about 24.0 s (20 %), lost 35.0 ms (0.2 %), cost 70.0 ms")
        );
        (other.outcome.gpu_ns, other.outcome.launches) = (None, 40);
        (other.outcome.lost, other.outcome.cost) = (None, None);
        let two = [row.clone(), other.clone()];
        let some = "2 processes, ran 2 min, GPU about 12.0 s (10 %) of 1 of them, cost 35.0 ms (0.2 %)";
        assert_eq!(total(&two).as_deref(), Some(some));
        assert_eq!(total(&[other]).as_deref(), Some("ran 90.0 s, 40 launches"));
        let mut bounded = row.clone();
        bounded.outcome.gpu_least_ns = Some(0);
        bounded.outcome.gpu_most_ns = bounded.outcome.gpu_ns;
        assert_eq!(figures(&bounded.outcome).gpu, "≤12.0 s");
        assert!(total(&[bounded]).is_some_and(|line| line.contains("GPU at most 12.0 s, cost")));
        assert_eq!(total(&[]), None);
        let page = render(&[row], 200);
        for part in [
            "2000-02-29 12:34:56",
            "vanished",
            "90 s",
            "12.0 s",
            "35.0 ms (0.2 %)",
            "80 %",
            "python train.py",
            "nightly",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        assert!(page.ends_with("! process 77: the device takes turns"), "{page}");
    }
}
