// SPDX-License-Identifier: MIT OR Apache-2.0
//! The aims on measured traces, and whether weft's rows reach them.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::table::{GroupFigures, told};
use crate::MS;
use crate::aims::Aim;
use crate::pairs::{self, CaseRow};

/// A limit for a group of weft's cases.
pub(super) struct Limit {
    device: &'static str,
    kinds: &'static [&'static str],
    closed: bool,
    mean: f64,
    p99: f64,
    /// Least batch work, of a solo run or of the bound.
    batch: BatchLimit,
}

/// Least batch work.
#[derive(Debug, Clone, Copy)]
pub(super) enum BatchLimit {
    OfAlone(f64),
    OfBound(f64),
}

/// One GPU generation in each pair.
pub(super) const PAIRED: &[&str] = &["measured", "distributed"];

/// The limits that weft must keep.
pub(super) const LIMITS: [Limit; 5] = [
    Limit {
        device: "mps",
        kinds: PAIRED,
        closed: true,
        mean: 1.01,
        p99: 1.03,
        batch: BatchLimit::OfBound(0.70),
    },
    Limit {
        device: "time-sliced",
        kinds: PAIRED,
        closed: true,
        mean: 1.01,
        p99: 1.03,
        batch: BatchLimit::OfBound(0.50),
    },
    Limit {
        device: "mps-shared",
        kinds: PAIRED,
        closed: true,
        mean: 1.01,
        p99: 1.03,
        batch: BatchLimit::OfAlone(0.50),
    },
    Limit {
        device: "mps",
        kinds: PAIRED,
        closed: false,
        mean: 1.01,
        p99: 1.02,
        batch: BatchLimit::OfAlone(0.55),
    },
    Limit {
        device: "mps",
        kinds: &["crossed"],
        closed: true,
        mean: 1.01,
        p99: 1.02,
        batch: BatchLimit::OfBound(0.82),
    },
];

/// Whether weft's rows keep the limits.
pub(super) fn judge(rows: &[CaseRow]) -> Vec<Aim> {
    let weft: Vec<&CaseRow> = rows.iter().filter(|row| row.figures.rule == "weft").collect();
    let mut aims: Vec<Aim> = LIMITS.iter().flat_map(|limit| limit.judge(&weft)).collect();
    aims.push(at_most(
        "p99 with 1 to 50 ms between requests, mps",
        1.08,
        &weft,
        |row| (row.kind == "think" && row.device == "mps").then(|| row.figures.slowdown_p99()),
    ));
    for kind in ["no-wait", "lag", "differ"] {
        aims.push(changed(kind, &weft));
    }
    aims.push(dominated(rows));
    aims
}

impl Limit {
    fn judge(&self, weft: &[&CaseRow]) -> [Aim; 3] {
        let of: Vec<&CaseRow> = weft
            .iter()
            .copied()
            .filter(|row| {
                row.device == self.device
                    && self.kinds.contains(&row.kind)
                    && row.closed == self.closed
                    && row.host_time == 1.0
            })
            .collect();
        let line = GroupFigures::of(&of);
        let arrivals = if self.closed { "closed" } else { "random" };
        let about = format!("{} {}, {arrivals}", self.device, self.kinds.join(" and "));
        let aim = |what: String, met: bool, value: f64| Aim {
            aim: format!("{about}: {what}"),
            met: !of.is_empty() && met,
            held: (usize::from(met), usize::from(!of.is_empty())),
            said: vec![format!("{value:.3} over {} cases", of.len())],
        };
        let batch = match self.batch {
            BatchLimit::OfAlone(least) => (format!("batch work of alone >= {least}"), line.batch, least),
            BatchLimit::OfBound(least) => (
                format!("batch work of the bound >= {least}"),
                line.of_bound.unwrap_or(f64::NAN),
                least,
            ),
        };
        [
            aim(
                format!("mean latency <= {}", self.mean),
                line.mean <= self.mean,
                line.mean,
            ),
            aim(format!("p99 latency <= {}", self.p99), line.p99 <= self.p99, line.p99),
            aim(batch.0, batch.1 >= batch.2, batch.1),
        ]
    }
}

/// The most cases that a missed aim lists.
pub(super) const LISTED: usize = 5;

pub(super) fn at_most(about: &str, limit: f64, rows: &[&CaseRow], value: impl Fn(&CaseRow) -> Option<f64>) -> Aim {
    let mut values: Vec<(f64, &CaseRow)> = rows.iter().filter_map(|row| Some((value(row)?, *row))).collect();
    values.sort_by(|one, other| other.0.total_cmp(&one.0));
    let held = values.iter().filter(|(value, _)| *value <= limit).count();
    Aim {
        aim: format!("{about} <= {limit}"),
        met: !values.is_empty() && held == values.len(),
        held: (held, values.len()),
        said: values
            .iter()
            .take_while(|(value, _)| *value > limit)
            .take(LISTED)
            .map(|(_, row)| told(row))
            .collect(),
    }
}

/// Batch work beside changed recordings, of that beside the recordings as they are.
pub(super) fn changed(kind: &'static str, weft: &[&CaseRow]) -> Aim {
    /// The least part.
    const LEAST: f64 = 0.9;
    let usual: HashMap<(String, &str, u64), f64> = weft
        .iter()
        .filter(|row| row.kind == "think")
        .filter_map(|row| {
            let name = row
                .service
                .strip_suffix(&format!(" every {} ms", pairs::THINK_NS / MS))?;
            Some(((name.to_string(), row.device, row.figures.seed), row.figures.batch_sum))
        })
        .collect();
    let part = |row: &CaseRow| {
        let name = row.service.strip_suffix(&format!(" {kind}"))?;
        let usual = usual.get(&(name.to_string(), row.device, row.figures.seed))?;
        Some(row.figures.batch_sum / usual.max(1e-9))
    };
    let parts: Vec<(f64, &CaseRow)> = weft
        .iter()
        .filter(|row| row.kind == kind)
        .filter_map(|row| Some((part(row)?, *row)))
        .collect();
    let held = parts.iter().filter(|(part, _)| *part >= LEAST).count();
    Aim {
        aim: format!("batch work of kind {kind}, of that beside the same requests with a wait, >= {LEAST}"),
        met: !parts.is_empty() && held == parts.len(),
        held: (held, parts.len()),
        said: parts
            .iter()
            .filter(|(part, _)| *part < LEAST)
            .take(LISTED)
            .map(|(part, row)| format!("{part:.2}: {}", told(row)))
            .collect(),
    }
}

/// Pairs in which another rule does more batch work at no more latency.
pub(super) fn dominated(rows: &[CaseRow]) -> Aim {
    /// More batch work by this factor counts.
    const MORE: f64 = 1.02;
    /// The part of all cases in which another rule may be better.
    const MOST: f64 = 0.10;
    let case = |row: &CaseRow| {
        let names = (row.kind, row.device, row.service.clone(), row.batch.clone());
        (names, row.closed, row.host_time.to_bits(), row.figures.seed)
    };
    let mut others: HashMap<_, Vec<&CaseRow>> = HashMap::new();
    for row in rows.iter().filter(|row| !row.figures.rule.starts_with("weft")) {
        others.entry(case(row)).or_default().push(row);
    }
    let (mut held, mut all, mut said) = (0, 0, Vec::new());
    for weft in rows.iter().filter(|row| row.figures.rule == "weft") {
        let Some(others) = others.get(&case(weft)) else {
            continue;
        };
        all += 1;
        let better = others.iter().find(|other| {
            other.figures.batch_sum >= MORE * weft.figures.batch_sum
                && other.figures.slowdown() <= weft.figures.slowdown()
                && other.figures.slowdown_p99() <= weft.figures.slowdown_p99()
        });
        match better {
            None => held += 1,
            Some(other) => said.push((
                other.figures.batch_sum / weft.figures.batch_sum.max(1e-9),
                format!(
                    "{} has {:.3}: {}",
                    other.figures.rule,
                    other.figures.batch_sum,
                    told(weft)
                ),
            )),
        }
    }
    said.sort_by(|one, other| other.0.total_cmp(&one.0));
    Aim {
        aim: format!("in {MOST} of the cases at most another rule does {MORE} times the batch work at no more latency"),
        met: all > 0 && held as f64 >= (1.0 - MOST) * all as f64,
        held: (held, all),
        said: said.into_iter().take(LISTED).map(|(_, said)| said).collect(),
    }
}
