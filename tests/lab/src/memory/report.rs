// SPDX-License-Identifier: MIT OR Apache-2.0
//! The study for people: tables, the slice, and a plot.
#![forbid(unsafe_code)]

use std::fmt::Write;

use super::contender::Contender;
use super::machine::MachineFigures;
use super::study::{Study, StudyRow, TurnsBy, mean};

/// The figures as text.
pub fn text(study: &Study) -> String {
    let mut text = String::new();
    if let Some(fit) = &study.fit {
        let _ = writeln!(
            text,
            "The slice: {} ms, where the model of MSched comes nearest to its published shares of what fits:",
            fit.slice_ms
        );
        for (share, published, modelled) in &fit.points {
            let _ = writeln!(
                text,
                "  {share} %: published {:.1} %, modelled {:.1} %",
                published * 100.0,
                modelled * 100.0
            );
        }
    } else {
        let _ = writeln!(text, "The slice: {} ms, as asked for.", study.slice_ms);
    }
    for duplex in [true, false] {
        let _ = writeln!(
            text,
            "\nPer cent of the throughput when all fits; the link carries {}:",
            carries(duplex)
        );
        table(&mut text, &study.rows, duplex);
    }
    at_the_default(&mut text, study);
    bounded(&mut text, study);
    let mut slices: Vec<f64> = study.short.iter().map(|row| row.slice_ms).collect();
    slices.sort_by(f64::total_cmp);
    slices.dedup();
    for slice in slices {
        let _ = writeln!(
            text,
            "\nPer cent in turns of {slice} ms; the link carries {}:",
            carries(true)
        );
        let of_slice = |row: &&StudyRow| row.slice_ms.total_cmp(&slice).is_eq();
        let rows: Vec<StudyRow> = study.short.iter().filter(of_slice).cloned().collect();
        table(&mut text, &rows, true);
    }
    text
}

fn carries(duplex: bool) -> &'static str {
    if duplex {
        "both ways at once"
    } else {
        "one way at a time"
    }
}

/// Workloads and shares of these runs.
fn columns(rows: &[StudyRow]) -> Vec<(&'static str, u64)> {
    let mut columns: Vec<(&str, u64)> = rows.iter().map(|row| (row.workload, row.share)).collect();
    let order = |name: &str| super::workload::NAMES.iter().position(|other| *other == name);
    columns.sort_by_key(|(name, share)| (order(name), *share));
    columns.dedup();
    columns
}

fn table(text: &mut String, rows: &[StudyRow], duplex: bool) {
    let columns = columns(rows);
    let _ = write!(text, "{:<20}", "");
    for (workload, share) in &columns {
        let _ = write!(text, " {:>12}", format!("{workload} {share}"));
    }
    text.push('\n');
    for contender in super::contender::ALL {
        let of = |figures: &MachineFigures| figures.efficiency * 100.0;
        row(text, rows, contender.name(), (contender, duplex), 2, of);
    }
}

/// A figure of a contender for every workload and share, unless there is none.
fn row(
    text: &mut String,
    rows: &[StudyRow],
    name: &str,
    (contender, duplex): (Contender, bool),
    digits: usize,
    what: impl Fn(&MachineFigures) -> f64,
) {
    let values: Vec<Option<f64>> = columns(rows)
        .iter()
        .map(|(workload, share)| mean(rows, &[workload], *share, duplex, contender, &what))
        .collect();
    if values.iter().all(Option::is_none) {
        return;
    }
    let _ = write!(text, "{name:<20}");
    for value in values {
        let shown = value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
        let _ = write!(text, " {shown:>12}");
    }
    text.push('\n');
}

fn at_the_default(text: &mut String, study: &Study) {
    let rows = &study.defaults;
    if rows.is_empty() {
        return;
    }
    for duplex in [true, false] {
        let _ = writeln!(
            text,
            "\nPer cent in turns of a broker without options (stock's and MSched's as long as weft's); the link carries {}:",
            carries(duplex)
        );
        table(text, rows, duplex);
        let weft = (Contender::Weft, duplex);
        row(text, rows, "weft: turn, ms", weft, 0, |figures| figures.turn_ms);
        row(text, rows, "weft: out, said, ms", weft, 0, |figures| figures.said_ms);
        row(text, rows, "weft: out, ms", weft, 0, |figures| figures.away_ms);
    }
}

fn bounded(text: &mut String, study: &Study) {
    if study.bounds.is_empty() {
        return;
    }
    text.push_str(
        "\nweft by the bound on being swapped out, several decoders, beside what no planner with equal turns exceeds:\n",
    );
    text.push_str(
        "  share  link       bound, ms   throughput    no more   swapped out, ms   turn, ms   between words, ms\n",
    );
    for one in &study.bounds {
        let (row, figures) = (&one.row, &one.row.figures);
        let bound = match row.turns {
            TurnsBy::Lengthened(ms) => format!("{} or {ms}", TurnsBy::Default.bound_ms()),
            turns => turns.bound_ms().to_string(),
        };
        let _ = writeln!(
            text,
            "  {:>4} %  {:<8} {bound:>12}   {:>8.1} %  {:>7.1} % {:>17.0}  {:>9.0} {:>19.0}",
            row.share,
            if row.duplex { "duplex" } else { "one way" },
            figures.efficiency * 100.0,
            one.bound * 100.0,
            figures.away_ms,
            figures.turn_ms,
            figures.gap_ms,
        );
    }
    text.push_str("What exceeds the device takes the link so long; no planner has so much at a shorter bound:\n");
    let mut said: Vec<(u64, bool)> = Vec::new();
    for one in &study.bounds {
        let key = (one.row.share, one.row.duplex);
        if said.contains(&key) {
            continue;
        }
        said.push(key);
        let _ = writeln!(
            text,
            "  {:>4} %  {:<8} {:>7.0} ms; {:.0} % at {:.0} ms",
            one.row.share,
            if one.row.duplex { "duplex" } else { "one way" },
            one.excess_ms,
            super::aims::at_the_default(one.row.share) * 100.0,
            one.needs_ms,
        );
    }
}
