// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures of all cases as text.
#![forbid(unsafe_code)]

use crate::calibrated::LabSetting;
use crate::pairs::CaseRow;
use crate::report;
use crate::seeds::geometric;

/// Cases that a line of the table stands for.
pub(super) type GroupKey<'a> = (&'a LabSetting, &'static str, &'static str, bool, u64, &'a str);

pub(super) fn group(row: &CaseRow) -> GroupKey<'_> {
    let figures = &row.figures;
    (
        &row.setting,
        row.device,
        row.kind,
        row.closed,
        row.host_time.to_bits(),
        &figures.rule,
    )
}

/// The limits within which a case counts as kept: mean and p99 over those of the solo run, and
/// batch work of that in a solo run.
pub(super) const KEPT: [f64; 3] = [1.01, 1.02, 0.75];

/// A line for each device, kind, arrival process, host and rule.
pub(super) fn text(rows: &[CaseRow]) -> String {
    use std::fmt::Write;
    let mut groups: Vec<GroupKey<'_>> = Vec::new();
    for row in rows {
        if !groups.contains(&group(row)) {
            groups.push(group(row));
        }
    }
    let mut out = format!(
        "{:12} {:22} {:13} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}  kept: mean, p99, batch; all\n",
        "device", "kind", "policy", "cases", "mean", "p99", "p99.9", "worst", "p99", "batch", "of it"
    );
    for wanted in &groups {
        let of: Vec<&CaseRow> = rows.iter().filter(|row| group(row) == *wanted).collect();
        let line = GroupFigures::of(&of);
        let (_, device, kind, closed, host, rule) = *wanted;
        let mut kind = kind.to_string();
        if !closed {
            kind += ", random";
        }
        if f64::from_bits(host) != 1.0 {
            let _ = write!(kind, ", hosts x{}", f64::from_bits(host));
        }
        let _ = writeln!(
            out,
            "{device:12} {kind:22} {rule:13} {:>5} {:>6.3} {:>6.3} {:>6.3} {:>6.3} {:>6.2} {:>6.3} {:>6}  {:?}; {}",
            of.len(),
            line.mean,
            line.p99,
            line.p999,
            line.worst_mean,
            line.worst_p99,
            line.batch,
            line.of_bound.map_or("-".into(), |share| format!("{share:.2}")),
            line.kept,
            line.kept_all
        );
    }
    out + "of it: batch work, of what the device's time allows at no added latency. kept: cases within 1.01, 1.02 and \
           .75; within all three\ntally cuts each kernel in pieces, which no kernel that waits for peers allows\n"
}

/// Figures over cases: geometric means, worst values, counts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GroupFigures {
    pub mean: f64,
    pub p99: f64,
    pub p999: f64,
    pub worst_mean: f64,
    pub worst_p99: f64,
    pub batch: f64,
    pub of_bound: Option<f64>,
    pub kept: [usize; 3],
    pub kept_all: usize,
}

impl GroupFigures {
    pub fn of(rows: &[&CaseRow]) -> GroupFigures {
        let geo = |value: fn(&CaseRow) -> f64| geometric(rows.iter().map(|row| value(row)));
        let worst = |value: fn(&CaseRow) -> f64| rows.iter().map(|row| value(row)).fold(0.0, f64::max);
        let mean = |row: &CaseRow| row.figures.slowdown();
        let p99 = |row: &CaseRow| row.figures.slowdown_p99();
        let kept = |row: &CaseRow| {
            [
                row.figures.slowdown() <= KEPT[0],
                row.figures.slowdown_p99() <= KEPT[1],
                row.figures.batch_sum >= KEPT[2],
            ]
        };
        // A bound of nothing has no shares.
        let shares: Option<Vec<f64>> = rows
            .iter()
            .filter(|row| row.figures.bound.is_none_or(|bound| bound > 0.0))
            .map(|row| row.figures.share_of_bound())
            .collect();
        GroupFigures {
            mean: geo(mean),
            p99: geo(p99),
            p999: geo(|row| row.figures.latency.p999 / row.figures.alone.p999.max(1.0)),
            worst_mean: worst(mean),
            worst_p99: worst(p99),
            batch: geo(|row| row.figures.batch_sum),
            of_bound: shares.filter(|shares| !shares.is_empty()).map(geometric),
            kept: [0, 1, 2].map(|at| rows.iter().filter(|row| kept(row)[at]).count()),
            kept_all: rows.iter().filter(|row| kept(row) == [true; 3]).count(),
        }
    }
}

/// A row in a line.
pub(super) fn told(row: &CaseRow) -> String {
    let figures = &row.figures;
    format!(
        "{} {}: {}{}, seed {}: mean {:.3}, p99 {:.3}, batch {:.3} of {}",
        row.device,
        row.kind,
        row.jobs(),
        if row.closed { "" } else { ", at random" },
        figures.seed,
        figures.slowdown(),
        figures.slowdown_p99(),
        figures.batch_sum,
        report::or_none(figures.bound)
    )
}

/// weft's cases with the worst p99, of each device and kind.
pub(super) fn worst(rows: &[CaseRow], count: usize) -> String {
    let mut out = String::new();
    let weft: Vec<&CaseRow> = rows.iter().filter(|row| row.figures.rule == "weft").collect();
    let mut groups: Vec<GroupKey<'_>> = Vec::new();
    for row in &weft {
        if !groups.contains(&group(row)) {
            groups.push(group(row));
        }
    }
    for wanted in groups {
        let mut of: Vec<&&CaseRow> = weft.iter().filter(|row| group(row) == wanted).collect();
        of.sort_by(|one, other| other.figures.slowdown_p99().total_cmp(&one.figures.slowdown_p99()));
        for row in of.into_iter().take(count) {
            out += &format!("  {}\n", told(row));
        }
    }
    out
}
