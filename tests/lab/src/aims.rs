// SPDX-License-Identifier: MIT OR Apache-2.0
//! The aims of the project, and whether a run meets them. The code next to each aim measures it.
#![forbid(unsafe_code)]

mod promises;

use std::collections::BTreeMap;

use serde::Serialize;
use weft_profiles::predictor::Evaluation;

use crate::foresight::GapForesight;
use crate::pairs::CaseRow;
use crate::seeds::{OverSeeds, geometric};
use crate::speed::Speed;

/// An aim.
#[derive(Debug, Clone, Serialize)]
pub struct Aim {
    /// The condition.
    pub aim: String,
    /// Whether it was judged and is met.
    pub met: bool,
    /// In how many cases it held, and the number of cases.
    pub held: (usize, usize),
    /// The figures; if it failed, the worst.
    pub said: Vec<String>,
}

impl Aim {
    /// Whether any case was run for it. An aim without cases is neither met nor missed.
    pub fn is_judged(&self) -> bool {
        self.held.1 > 0
    }
}

/// The most failed cases that are listed for an aim.
const TOLD: usize = 5;

/// Collects one aim's cases.
struct Judge {
    aim: String,
    held: usize,
    cases: usize,
    /// The part of the cases in which it must hold.
    share: f64,
    /// How bad, and the text about it.
    misses: Vec<(f64, String)>,
}

impl Judge {
    fn new(aim: &str) -> Judge {
        Judge {
            aim: aim.to_string(),
            held: 0,
            cases: 0,
            share: 1.0,
            misses: Vec::new(),
        }
    }

    /// Counts a case: `value` must be at most `limit`.
    fn at_most(&mut self, value: f64, limit: f64, said: impl FnOnce() -> String) {
        self.cases += 1;
        if value <= limit {
            self.held += 1;
        } else {
            self.misses.push((value / limit.max(1e-9), said()));
        }
    }

    fn done(mut self) -> Aim {
        self.misses.sort_by(|one, other| other.0.total_cmp(&one.0));
        Aim {
            met: self.cases > 0 && self.held as f64 >= self.share * self.cases as f64,
            aim: self.aim,
            held: (self.held, self.cases),
            said: self.misses.into_iter().take(TOLD).map(|(_, said)| said).collect(),
        }
    }
}

/// One case under the rules that aims compare.
struct Together<'a> {
    /// The kind of case; `pair` also if it ran as a case of the table.
    kind: &'static str,
    weft: &'a CaseRow,
    fikit: Option<&'a CaseRow>,
    /// Under every other rule, fikit too.
    others: Vec<&'a CaseRow>,
}

fn name(row: &CaseRow) -> String {
    name_as(row, row.kind)
}

/// The name of a case, as if it were of this kind.
fn name_as(row: &CaseRow, kind: &str) -> String {
    format!("{} {kind}: {}, seed {}", row.device, row.jobs(), row.figures.seed)
}

fn together(rows: &[CaseRow]) -> Vec<Together<'_>> {
    let mut cases: BTreeMap<String, (&'static str, Vec<&CaseRow>)> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.is_apart()) {
        // A case of the table is a pair under more rules. If both were run, it counts once.
        let kind = if row.kind == "table" { "pair" } else { row.kind };
        let case = cases.entry(name_as(row, kind)).or_insert((kind, Vec::new()));
        case.1.push(row);
    }
    let mut out = Vec::new();
    for (kind, rows) in cases.values() {
        let find = |rule: &str| rows.iter().find(|row| row.figures.rule == rule).copied();
        if let Some(weft) = find("weft") {
            out.push(Together {
                kind,
                weft,
                fikit: find("fikit"),
                others: rows
                    .iter()
                    .filter(|row| row.figures.rule.split(' ').next() != Some("weft"))
                    .copied()
                    .collect(),
            });
        }
    }
    out
}

/// All aims with their figures, also those without cases. With several values of host time, only
/// the rows of the first are judged.
pub fn judge(rows: &[CaseRow], foresight: &[GapForesight], speed: &[Speed]) -> Vec<Aim> {
    let host = rows.iter().find(|row| row.kind != "hosts").map(|row| row.host_time);
    let judged: Vec<CaseRow> = rows.iter().filter(|row| Some(row.host_time) == host).cloned().collect();
    let rows = &judged[..];
    let cases = together(rows);
    let mut aims = Vec::new();
    answered(rows, &mut aims);
    groups(&cases, &mut aims);
    dominated(&cases, &mut aims);
    latencies(&cases, &mut aims);
    held_back(&cases, &mut aims);
    gate(&cases, &mut aims);
    against_fikit(&cases, &mut aims);
    promises::judge(rows, &mut aims);
    predictor(foresight, &mut aims);
    let mut fast = Judge::new("the core takes at least 2 million events a second with 1,000 clients");
    for speed in speed.iter().filter(|speed| speed.clients >= 1_000) {
        let said = || format!("{}: {:.2} million", speed.policy, speed.million_events_a_second);
        fast.at_most(2.0, speed.million_events_a_second, said);
    }
    let mut fast = fast.done();
    fast.said = speed
        .iter()
        .map(|speed| {
            format!(
                "{}, {} clients: {:.2} million, memory grew by {} KiB",
                speed.policy, speed.clients, speed.million_events_a_second, speed.growth_kib
            )
        })
        .collect();
    aims.push(fast);
    aims
}

/// The verdict on all aims of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AimVerdict {
    /// Every judged aim is met.
    Met,
    /// An aim is missed.
    Missed,
    /// No aim was judged: no case was run for any of them.
    Nothing,
}

impl AimVerdict {
    /// The verdict on these aims.
    pub fn of(aims: &[Aim]) -> AimVerdict {
        let judged: Vec<&Aim> = aims.iter().filter(|aim| aim.is_judged()).collect();
        match judged.iter().all(|aim| aim.met) {
            _ if judged.is_empty() => AimVerdict::Nothing,
            true => AimVerdict::Met,
            false => AimVerdict::Missed,
        }
    }
}

/// The figures of a run that was broken off rest on fewer requests than requested. Every kind is
/// judged but frontiers, whose swept rules may break off.
fn answered(rows: &[CaseRow], aims: &mut Vec<Aim>) {
    let mut all = Judge::new("every request is answered");
    let ours = |row: &&CaseRow| row.kind != "frontier" && row.figures.rule.split(' ').next() == Some("weft");
    for row in rows.iter().filter(ours) {
        all.at_most(f64::from(!row.figures.finished), 0.0, || {
            format!("{}: {} were", name(row), row.figures.latency.count)
        });
    }
    aims.push(all.done());
}

/// The aim for one kind of case on one device: geometric means over the solo runs.
struct GroupAim {
    device: &'static str,
    kind: &'static str,
    /// Least batch work, as a part of that in the solo run.
    batch: f64,
}

/// The groups. Random arrivals come first: they are the usual load of services.
const GROUPS: [GroupAim; 8] = {
    const fn of(device: &'static str, kind: &'static str, batch: f64) -> GroupAim {
        GroupAim { device, kind, batch }
    }
    [
        of("mps", "poisson", 0.80),
        of("time-sliced", "poisson", 0.80),
        of("mps", "bursts", 0.80),
        of("time-sliced", "bursts", 0.80),
        of("mps", "pair", 0.75),
        of("time-sliced", "pair", 0.70),
        of("mps", "several", 0.75),
        of("time-sliced", "several", 0.75),
    ]
};

/// The most that a group may cost its services, over the solo run: the mean and the p99, each over
/// the group and for the worst case.
const GROUP_COSTS: [(&str, f64); 4] = [("mean", 1.01), ("p99", 1.02), ("worst mean", 1.03), ("worst p99", 1.08)];

/// Rows of weft of this kind on this device.
fn rows_of<'a>(cases: &[Together<'a>], device: &str, kind: &str) -> Vec<&'a CaseRow> {
    let of = |case: &&Together<'_>| (case.weft.device, case.kind) == (device, kind);
    cases.iter().filter(of).map(|case| case.weft).collect()
}

fn groups(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    let [mean, p99, worst, worst_p99] = GROUP_COSTS.map(|(_, limit)| limit);
    for GroupAim { device, kind, batch } in GROUPS {
        let mut judge = Judge::new(&format!(
            "{device}, {kind}: batch work at least {batch:.2} of alone at mean {mean} and p99 {p99} (worst {worst}, {worst_p99})"
        ));
        let rows = rows_of(cases, device, kind);
        if rows.is_empty() {
            aims.push(judge.done());
            continue;
        }
        let over = |value: fn(&CaseRow) -> f64| geometric(rows.iter().map(|row| value(row)));
        let worst = |value: fn(&CaseRow) -> f64| {
            rows.iter()
                .max_by(|one, other| value(one).total_cmp(&value(other)))
                .map_or((0.0, String::new()), |row| (value(row), name(row)))
        };
        let ((worst_mean, slowest), (worst_p99, latest)) = (worst(mean_of), worst(p99_of));
        let reached = over(batch_of);
        judge.at_most(batch, reached, || format!("batch work {reached:.3}"));
        let of = [over(mean_of), over(p99_of), worst_mean, worst_p99];
        let who = ["", "", slowest.as_str(), latest.as_str()];
        for (((what, limit), value), who) in GROUP_COSTS.into_iter().zip(of).zip(who) {
            judge.at_most(value, limit, || format!("{what} {value:.3} {who}").trim().to_string());
        }
        let mut aim = judge.done();
        aim.said.insert(
            0,
            format!(
                "{} cases: mean {:.3}, p99 {:.3}, batch {reached:.3}{}; worst mean {worst_mean:.3}, p99 {worst_p99:.3}",
                rows.len(),
                of[0],
                of[1],
                interval(&rows),
            ),
        );
        aims.push(aim);
    }
}

fn mean_of(row: &CaseRow) -> f64 {
    row.figures.slowdown()
}

fn p99_of(row: &CaseRow) -> f64 {
    row.figures.slowdown_p99()
}

fn batch_of(row: &CaseRow) -> f64 {
    row.figures.batch_sum
}

/// The interval of batch work, if every case was run with several seeds.
fn interval(rows: &[&CaseRow]) -> String {
    OverSeeds::of(rows, batch_of).map_or_else(String::new, |over| {
        format!(" (+- {:.3} over {} seeds)", over.half_width, over.by_seed.len())
    })
}

fn latencies(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    let mut mean = Judge::new("all cases, no condition: latency mean within 1.02 of alone in 182 of 186");
    mean.share = 182.0 / 186.0;
    let mut tail = Judge::new("all cases, no condition: latency p99 within 1.05 of alone in 180 of 186");
    tail.share = 180.0 / 186.0;
    for Together { weft, .. } in cases {
        let said = |ratio: f64| format!("{}: {ratio:.3} of alone", name(weft));
        mean.at_most(mean_of(weft), 1.02, || said(mean_of(weft)));
        tail.at_most(p99_of(weft), 1.05, || said(p99_of(weft)));
    }
    aims.extend([mean.done(), tail.done()]);
}

/// No other rule gives a pair clearly more batch work for about the same latency, at any value of
/// its one parameter that was swept.
fn dominated(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    const MORE: f64 = 1.02;
    const SLOWER: f64 = 0.005;
    let mut judge = Judge::new("pairs in which no other rule has 2 % more batch at no more than +0.5 % mean");
    for case in cases
        .iter()
        .filter(|case| case.kind == "pair" && !case.others.is_empty())
    {
        let weft = case.weft;
        let better = case
            .others
            .iter()
            .filter(|row| mean_of(row) <= mean_of(weft) + SLOWER)
            .max_by(|one, other| batch_of(one).total_cmp(&batch_of(other)));
        let more = better.map_or(0.0, |row| batch_of(row) / batch_of(weft).max(1e-9));
        judge.at_most(more, MORE, || {
            let better = better.expect("more than nothing is some rule's");
            format!(
                "{}: {} has batch {:.3} at mean {:.3}, weft {:.3} at {:.3}",
                name(weft),
                better.figures.rule,
                batch_of(better),
                mean_of(better),
                batch_of(weft),
                mean_of(weft)
            )
        });
    }
    aims.push(judge.done());
}

/// Models that no constant was tuned on do as well as the others.
fn held_back(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    let mut judge = Judge::new("pairs with a model held back from tuning: batch work at least 0.9 of the others'");
    for device in ["mps", "time-sliced"] {
        let (held_back, others): (Vec<&CaseRow>, Vec<&CaseRow>) = rows_of(cases, device, "pair")
            .into_iter()
            .partition(|row| row.is_held_back());
        if held_back.is_empty() || others.is_empty() {
            continue;
        }
        let [held_back, others] = [held_back, others].map(|rows| geometric(rows.into_iter().map(batch_of)));
        judge.at_most(0.9 * others, held_back, || {
            format!("{device}: {held_back:.3}, others {others:.3}")
        });
    }
    aims.push(judge.done());
}

fn gate(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    let mut gate = Judge::new(
        "gate time (idle in a gap because the word was not there yet) under MPS: at most a tenth of a background kernel",
    );
    for case in cases.iter().filter(|case| case.weft.device == "mps") {
        let figures = &case.weft.figures;
        let kernel = figures.floor.kernel / 1e3;
        gate.at_most(figures.gate_own_us, 0.1 * kernel, || {
            format!(
                "{}: {:.1} us ({:.1} with what was held back for the foreground job's sake), mean kernel {kernel:.1} us",
                name(case.weft),
                figures.gate_own_us,
                figures.gate_us
            )
        });
    }
    aims.push(gate.done());
}

fn against_fikit(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    const TOLERANCE: f64 = 1.005;
    let mut both = Judge::new("against fikit: worse in both latency and batch throughput in no pair (tolerance 0.5 %)");
    // Number of cases that are worse in latency, and in batch throughput, whatever the other
    // figure.
    let mut one = [0, 0];
    let mut latency = Vec::new();
    let mut batch = Vec::new();
    for case in cases {
        let Some(fikit) = case.fikit else { continue };
        let (weft, fikit) = (&case.weft.figures, &fikit.figures);
        let slower = weft.latency.mean / fikit.latency.mean.max(1.0);
        let less = fikit.batch_sum / weft.batch_sum.max(1e-9);
        latency.push(1.0 / slower);
        if case.weft.device == "mps" {
            batch.push(1.0 / less);
        }
        both.at_most(slower.min(less), TOLERANCE, || {
            format!(
                "{}: latency {slower:.3} of fikit's, batch {:.3}",
                name(case.weft),
                1.0 / less
            )
        });
        one[0] += usize::from(slower > TOLERANCE);
        one[1] += usize::from(less > TOLERANCE);
    }
    let mut both = both.done();
    both.said.push(format!(
        "worse in latency in {} of {}, in batch throughput in {}",
        one[0], both.held.1, one[1]
    ));
    aims.push(both);
    let mut better = Judge::new("against fikit: clearly better in latency over all pairs");
    let gain = geometric(latency.iter().copied());
    if !latency.is_empty() {
        better.at_most(1.005, gain, String::new);
    }
    let mut aim = better.done();
    aim.said = vec![format!(
        "fikit's mean latency is {gain:.3} times weft's, geometric mean"
    )];
    aims.push(aim);
    let mut more = Judge::new("against fikit: at least 1.15 times its batch throughput under MPS");
    let gain = geometric(batch.iter().copied());
    if !batch.is_empty() {
        more.at_most(1.15, gain, String::new);
    }
    let mut aim = more.done();
    aim.said = vec![format!(
        "weft's batch throughput is {gain:.3} times fikit's, geometric mean"
    )];
    aims.push(aim);
}

fn predictor(foresight: &[GapForesight], aims: &mut Vec<Aim>) {
    let mut covered = Judge::new("gap predictor: the low quantile covers 90 +- 3 % on steps not trained on, per model");
    for one in foresight {
        if one.material > 0 {
            covered.at_most((one.covered - 0.9).abs(), 0.03, || {
                format!("{}: {:.1} %", one.trace, 100.0 * one.covered)
            });
        }
    }
    aims.push(covered.done());
    let mut error =
        Judge::new("gap predictor: mean absolute error at least 2 times below the mean by kernel, over the traces");
    let over = Evaluation::over(foresight.iter().map(|one| &one.found));
    let gain = if over.error > 0.0 { over.gain() } else { 0.0 };
    let own = geometric(foresight.iter().map(|one| one.found.gain()));
    if !foresight.is_empty() {
        error.at_most(2.0, gain, String::new);
    }
    let mut aim = error.done();
    aim.said = vec![format!(
        "{gain:.2} times below over all gaps ({:.2} us against {:.2} us); geometric mean of the traces' own {own:.2}; one that learns nothing of the judged steps, as the means do: \
         {:.2} times ({:.2} us), its low quantile covers {:.1} %",
        over.error / 1e3,
        over.error_of_means / 1e3,
        over.gain_frozen(),
        over.error_frozen / 1e3,
        100.0 * over.covered_frozen
    )];
    aims.push(aim);
}

#[cfg(test)]
mod tests;
