// SPDX-License-Identifier: MIT OR Apache-2.0
//! Aims on promises to users: a slowdown, an SLO, the time of a token while finetuning runs.
#![forbid(unsafe_code)]

use super::{Aim, Judge, batch_of, interval, mean_of, name};
use crate::pairs::{CaseRow, LOADS, SLOWDOWNS};
use crate::rule::Rule;
use crate::seeds::geometric;

/// Part of the cases in which a slowdown must be kept.
const KEPT: f64 = 0.99;

/// Batch work, as a part of that in a solo run, at each of [`SLOWDOWNS`].
const DIAL_BATCH: [f64; 3] = [0.85, 0.90, 0.93];

/// Part of the requests that must be within the SLO.
const ATTAINED: f64 = 0.999;

/// Batch work under an SLO, over that under the device's own sharing with the same requests.
const SLO_BATCH: f64 = 0.70;

/// TPOT over that of the solo run.
const TPOT: f64 = 1.02;

/// Finetuning's work over that under time slicing.
const FINETUNE: f64 = 1.5;

/// Rows of one kind.
fn of<'a>(rows: &'a [CaseRow], kind: &str) -> Vec<&'a CaseRow> {
    rows.iter().filter(|row| row.kind == kind).collect()
}

/// The rows under one rule.
fn under<'a>(rows: &[&'a CaseRow], rule: Rule) -> Vec<&'a CaseRow> {
    let rule = rule.to_string();
    rows.iter().filter(|row| row.figures.rule == rule).copied().collect()
}

/// Whether two rows have the same jobs, seed and host.
fn same_jobs(one: &CaseRow, other: &CaseRow) -> bool {
    one.jobs() == other.jobs() && one.figures.seed == other.figures.seed
}

/// Judges all of these aims.
pub(super) fn judge(rows: &[CaseRow], aims: &mut Vec<Aim>) {
    dial(&of(rows, "dial"), aims);
    slo(&of(rows, "slo"), aims);
    llm(&of(rows, "llm"), aims);
}

fn dial(rows: &[&CaseRow], aims: &mut Vec<Aim>) {
    let plain = under(rows, Rule::WEFT);
    for (percent, least) in SLOWDOWNS.into_iter().zip(DIAL_BATCH) {
        let mut kept = Judge::new(&format!(
            "--slowdown {percent} %: mean latency within it in 99 % of the cases"
        ));
        kept.share = KEPT;
        let mut batch = Judge::new(&format!(
            "--slowdown {percent} %: batch work at least {least:.2} of alone"
        ));
        let rows = under(rows, Rule::Slowdown(percent));
        for row in &rows {
            let limit = 1.0 + f64::from(percent) / 100.0;
            kept.at_most(mean_of(row), limit, || format!("{}: {:.3}", name(row), mean_of(row)));
        }
        if !rows.is_empty() {
            let reached = geometric(rows.iter().map(|row| batch_of(row)));
            batch.at_most(least, reached, String::new);
            aims.push(kept.done());
            let mut batch = batch.done();
            batch.said = [("with it", &rows), ("without, 1 %", &plain)]
                .into_iter()
                .map(|(what, rows)| told(what, rows))
                .collect();
            aims.push(batch);
        } else {
            aims.extend([kept.done(), batch.done()]);
        }
    }
}

/// The geometric means and the worst case of some rows, as text.
fn told(what: &str, rows: &[&CaseRow]) -> String {
    let over = |value: fn(&CaseRow) -> f64| geometric(rows.iter().map(|row| value(row)));
    let worst = rows.iter().map(|row| mean_of(row)).fold(0.0, f64::max);
    format!(
        "{what}: {} cases, mean {:.3}, worst {worst:.3}, p99 {:.3}, batch {:.3}{}",
        rows.len(),
        over(mean_of),
        over(super::p99_of),
        over(batch_of),
        interval(rows)
    )
}

fn slo(rows: &[&CaseRow], aims: &mut Vec<Aim>) {
    let mut devices: Vec<&str> = Vec::new();
    for row in rows {
        if !devices.contains(&row.device) {
            devices.push(row.device);
        }
    }
    // Without rows, the aims are listed but not judged.
    if devices.is_empty() {
        devices = vec!["mps", "mps-shared"];
    }
    for device in devices {
        for load in LOADS {
            let mut judge = Judge::new(&format!(
                "{device}, --slo 1.2 times alone's p99 at {load} % load: {:.1} % of the requests within it, batch work at least {SLO_BATCH:.2} of the device's own",
                100.0 * ATTAINED
            ));
            let ours = |row: &&&CaseRow| row.device == device && row.service.ends_with(&format!(" at {load} %"));
            let rows: Vec<&CaseRow> = rows.iter().filter(ours).copied().collect();
            let (with, plain) = (under(&rows, Rule::WEFT), under(&rows, Rule::Default));
            let attained = Attained::of(&with);
            if with.is_empty() || attained.requests == 0 {
                aims.push(judge.done());
                continue;
            }
            judge.at_most(ATTAINED, attained.with, || format!("attained {:.5}", attained.with));
            let shares: Vec<f64> = with
                .iter()
                .filter_map(|row| {
                    let plain = plain.iter().find(|plain| same_jobs(row, plain))?;
                    Some(batch_of(row) / batch_of(plain).max(1e-9))
                })
                .collect();
            let share = geometric(shares.iter().copied());
            if !shares.is_empty() {
                judge.at_most(SLO_BATCH, share, || {
                    format!("batch work {share:.3} of the device's own")
                });
            }
            let mut aim = judge.done();
            let device_own = Attained::of(&plain);
            aim.said.insert(
                0,
                format!(
                    "{} cases, {} requests: attained {:.5} (alone {:.5}; of those that alone attains {:.5}; device's own {:.5}); batch {:.3}, {share:.3} of the device's own; mean {:.3}",
                    with.len(),
                    attained.requests,
                    attained.with,
                    attained.alone,
                    attained.kept,
                    device_own.with,
                    geometric(with.iter().map(|row| batch_of(row))),
                    geometric(with.iter().map(|row| mean_of(row))),
                ),
            );
            aims.push(aim);
        }
    }
}

/// An SLO over all requests of some rows.
struct Attained {
    requests: usize,
    with: f64,
    alone: f64,
    kept: f64,
}

impl Attained {
    fn of(rows: &[&CaseRow]) -> Attained {
        let (mut requests, mut with, mut alone, mut kept) = (0.0, 0.0, 0.0, 0.0);
        for row in rows {
            let Some(slo) = row.figures.slo else { continue };
            let count = row.figures.latency.count as f64;
            requests += count;
            with += slo.attained * count;
            alone += slo.alone * count;
            kept += slo.kept * slo.alone * count;
        }
        Attained {
            requests: requests as usize,
            with: with / f64::max(requests, 1.0),
            alone: alone / f64::max(requests, 1.0),
            kept: kept / f64::max(alone, 1.0),
        }
    }
}

fn llm(rows: &[&CaseRow], aims: &mut Vec<Aim>) {
    let sliced: Vec<&CaseRow> = under(rows, Rule::Default)
        .into_iter()
        .filter(|row| row.device == "time-sliced")
        .collect();
    let with = |rule, device: &str| -> Vec<&CaseRow> {
        let rows = under(rows, rule).into_iter();
        rows.filter(|row| row.device == device).collect()
    };
    let finetune = |row: &CaseRow| {
        let sliced = sliced.iter().find(|sliced| same_jobs(row, sliced))?;
        Some(batch_of(row) / batch_of(sliced).max(1e-9))
    };
    let tpot = |row: &CaseRow| row.figures.tokens.map_or(f64::NAN, |tokens| tokens.slowdown());
    for device in ["mps", "mps-shared"] {
        let mut judge = Judge::new(&format!(
            "{device}, language model beside finetuning, --slowdown 2 %: TPOT at most {TPOT} of alone, finetuning at least {FINETUNE} times what time slicing gives"
        ));
        let told = |rule: Rule| {
            let rows = with(rule, device);
            let finetunes: Vec<f64> = rows.iter().filter_map(|row| finetune(row)).collect();
            format!(
                "{rule}: {} cases, TPOT {:.3} of alone, finetuning {:.3} of alone, {:.2} times time slicing's",
                rows.len(),
                geometric(rows.iter().map(|row| tpot(row))),
                geometric(rows.iter().map(|row| batch_of(row))),
                geometric(finetunes)
            )
        };
        for row in with(Rule::Slowdown(2), device) {
            let Some(finetune) = finetune(row) else { continue };
            judge.at_most(tpot(row), TPOT, || format!("{}: TPOT {:.3}", name(row), tpot(row)));
            judge.at_most(FINETUNE, finetune, || {
                format!("{}: finetuning {finetune:.2}", name(row))
            });
        }
        let mut aim = judge.done();
        if aim.is_judged() {
            let rules = [Rule::Slowdown(2), Rule::WEFT, Rule::Default];
            aim.said.splice(0..0, rules.map(told));
            let plain = sliced.iter().map(|row| tpot(row));
            aim.said.push(format!(
                "time slicing: TPOT {:.3} of alone, finetuning {:.3} of alone; where kernels run one at a time the device's time allows {:.3} of alone at no added latency",
                geometric(plain),
                geometric(sliced.iter().map(|row| batch_of(row))),
                geometric(sliced.iter().filter_map(|row| row.figures.bound)),
            ));
        }
        aims.push(aim);
    }
}
