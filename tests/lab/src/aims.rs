//! What is to be reached, and whether it was. The aims are the project's and stand here as they
//! were set; what they are measured by stands beside each.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use serde::Serialize;
use weft_profiles::predictor::Evaluation;

use crate::foresight::GapForesight;
use crate::lost;
use crate::pairs::CaseRow;
use crate::speed::Speed;

/// An aim.
#[derive(Debug, Clone, Serialize)]
pub struct Aim {
    /// What is to hold.
    pub aim: String,
    /// Whether it was looked at and did.
    pub met: bool,
    /// How often it held, of how many.
    pub held: (usize, usize),
    /// The figures; where it failed, the worst.
    pub said: Vec<String>,
}

impl Aim {
    /// Whether anything was run for it. What nothing was run for is neither met nor missed.
    pub fn is_judged(&self) -> bool {
        self.held.1 > 0
    }
}

/// Worst cases that are told of each aim.
const TOLD: usize = 5;

/// Collects one aim's cases.
struct Judge {
    aim: String,
    held: usize,
    cases: usize,
    /// How bad, what.
    misses: Vec<(f64, String)>,
}

impl Judge {
    fn new(aim: &str) -> Judge {
        Judge {
            aim: aim.to_string(),
            held: 0,
            cases: 0,
            misses: Vec::new(),
        }
    }

    /// `value` is to be at most `limit`.
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
            met: self.cases > 0 && self.held == self.cases,
            aim: self.aim,
            held: (self.held, self.cases),
            said: self.misses.into_iter().take(TOLD).map(|(_, said)| said).collect(),
        }
    }
}

/// One case under the rules that aims speak of.
struct Together<'a> {
    weft: &'a CaseRow,
    fikit: Option<&'a CaseRow>,
    default: Option<&'a CaseRow>,
}

fn name(row: &CaseRow) -> String {
    format!(
        "{} {}: {} beside {}, seed {}",
        row.device,
        row.kind,
        row.service,
        row.batch.join(" + "),
        row.figures.seed
    )
}

fn together(rows: &[CaseRow]) -> Vec<Together<'_>> {
    let mut cases: BTreeMap<String, Vec<&CaseRow>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.kind != "frontier") {
        cases.entry(name(row)).or_default().push(row);
    }
    let mut out = Vec::new();
    for rows in cases.values() {
        let find = |rule: &str| rows.iter().find(|row| row.figures.rule == rule).copied();
        if let Some(weft) = find("weft") {
            out.push(Together {
                weft,
                fikit: find("fikit"),
                default: find("default"),
            });
        }
    }
    out
}

/// The geometric mean. 1 of nothing.
pub fn geometric(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for value in values {
        sum += value.max(1e-9).ln();
        count += 1;
    }
    if count == 0 {
        1.0
    } else {
        (sum / f64::from(count)).exp()
    }
}

/// All aims, with what was found; those too that nothing was run for.
pub fn judge(rows: &[CaseRow], foresight: &[GapForesight], speed: &[Speed]) -> Vec<Aim> {
    let cases = together(rows);
    let mut aims = Vec::new();
    answered(&cases, &mut aims);
    delays(&cases, &mut aims);
    latencies(&cases, &mut aims);
    speed_up(&cases, &mut aims);
    efficiency(&cases, &mut aims);
    against_fikit(&cases, &mut aims);
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

/// What a run says of the aims in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AimVerdict {
    /// Every aim that was judged is met.
    Met,
    /// One is missed.
    Missed,
    /// No aim was judged: nothing was run for any of them, so nothing holds.
    Nothing,
}

impl AimVerdict {
    /// Of these aims.
    pub fn of(aims: &[Aim]) -> AimVerdict {
        let judged: Vec<&Aim> = aims.iter().filter(|aim| aim.is_judged()).collect();
        match judged.iter().all(|aim| aim.met) {
            _ if judged.is_empty() => AimVerdict::Nothing,
            true => AimVerdict::Met,
            false => AimVerdict::Missed,
        }
    }
}

/// Figures of a run that was broken off are of fewer requests than they say.
fn answered(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    let mut all = Judge::new("every request is answered");
    for case in cases {
        all.at_most(f64::from(!case.weft.figures.finished), 0.0, || {
            format!("{}: {} were", name(case.weft), case.weft.figures.latency.count)
        });
    }
    aims.push(all.done());
}

fn delays(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    let mut direct = Judge::new("direct delay at most 1.25 times the floor per filled gap");
    let mut added = Judge::new("added end to end at most max(1.25 x floor, 0.5 % of alone) in the mean");
    for case in cases {
        let figures = &case.weft.figures;
        let floor = figures.floor.mean / 1e3;
        direct.at_most(figures.direct_per_gap_us, 1.25 * floor, || {
            format!(
                "{}: {:.0} us a filled gap, floor {floor:.0} us ({:.0} us without what fills no gap: the minimum share; background jobs were let through {} times for it)",
                name(case.weft),
                figures.direct_per_gap_us,
                figures.direct_filling_us,
                figures.let_through
            )
        });
        let limit = (1.25 * floor).max(0.005 * figures.alone.mean / 1e3);
        added.at_most(figures.added_mean_us, limit, || {
            format!(
                "{}: {:.0} us added, limit {limit:.0} us",
                name(case.weft),
                figures.added_mean_us
            )
        });
    }
    aims.extend([direct.done(), added.done()]);
}

fn latencies(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    let mut mean = Judge::new("latency mean within 1.02 of alone wherever the floor is under 2 % of it");
    let mut tail =
        Judge::new("latency p99 within 1.05 of alone wherever the background job's p99 residual is under 5 % of it");
    for case in cases {
        let figures = &case.weft.figures;
        if figures.floor.mean < 0.02 * figures.alone.mean {
            mean.at_most(figures.slowdown(), 1.02, || {
                format!("{}: {:.3} of alone", name(case.weft), figures.slowdown())
            });
        }
        if figures.floor.p99 < 0.05 * figures.alone.p99 {
            let ratio = figures.latency.p99 / figures.alone.p99;
            tail.at_most(ratio, 1.05, || format!("{}: {ratio:.3} of alone", name(case.weft)));
        }
    }
    aims.extend([mean.done(), tail.done()]);
}

fn speed_up(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    let mut judge =
        Judge::new("speed-up against default sharing at least 0.95 of its ceiling in every closed-loop pair");
    let mut range: Vec<f64> = Vec::new();
    for case in cases.iter().filter(|case| case.weft.closed) {
        let Some(default) = case.default else { continue };
        let weft = &case.weft.figures;
        let ceiling = default.figures.latency.mean / weft.alone.mean.max(1.0);
        let reached = default.figures.latency.mean / weft.latency.mean.max(1.0);
        range.push(reached);
        judge.at_most(0.95, reached / ceiling, || {
            format!("{}: {reached:.2} of {ceiling:.2}", name(case.weft))
        });
    }
    let mut aim = judge.done();
    range.sort_by(f64::total_cmp);
    if let (Some(least), Some(most)) = (range.first(), range.last()) {
        aim.said.insert(
            0,
            format!(
                "{least:.2}x to {most:.2}x, middle {:.2}x (FIKIT's paper: 1.32x to 16.41x, on its machine)",
                range[range.len() / 2]
            ),
        );
    }
    aims.push(aim);
}

fn efficiency(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    let mut filled = Judge::new(
        "fill efficiency at least 0.90 under MPS for predictable jobs (closed loop; gaps foreseen to 20 % in the mean)",
    );
    let mut gate = Judge::new(
        "gate time (idle in a gap because the word was not there yet) at most a tenth of the background job's mean kernel under MPS",
    );
    let mut others = Vec::new();
    for case in cases.iter().filter(|case| case.weft.device == "mps") {
        let figures = &case.weft.figures;
        let kernel = figures.floor.kernel / 1e3;
        if case.weft.closed && figures.foreseen.is_good() {
            filled.at_most(0.90, figures.efficiency, || {
                format!(
                    "{}: {:.3} (lost of what the packer fills: {}); {:.2} of the gap time filled, direct delay {:.0} us a gap, gaps foreseen {}",
                    name(case.weft),
                    figures.efficiency,
                    lost::split(case.weft),
                    figures.filled_share(),
                    figures.direct_per_gap_us,
                    figures.foreseen,
                )
            });
        } else if case.weft.closed {
            others.push(figures.efficiency);
        }
        gate.at_most(figures.gate_own_us, 0.1 * kernel, || {
            format!(
                "{}: {:.1} us ({:.1} with what was held back for the foreground job's sake), mean kernel {kernel:.1} us",
                name(case.weft),
                figures.gate_own_us,
                figures.gate_us
            )
        });
    }
    let mut filled = filled.done();
    if !others.is_empty() {
        let count = others.len();
        let mean = others.iter().sum::<f64>() / count as f64;
        let reached = others.iter().filter(|efficiency| **efficiency >= 0.90).count();
        filled.said.push(format!(
            "{count} other cases are not predictable by that rule: {mean:.3} in the mean, {reached} of them at 0.90"
        ));
    }
    aims.extend([filled, gate.done()]);
}

fn against_fikit(cases: &[Together<'_>], aims: &mut Vec<Aim>) {
    const TOLERANCE: f64 = 1.005;
    let mut both = Judge::new("against fikit: worse in both latency and batch throughput in no pair (tolerance 0.5 %)");
    // Cases that are worse in latency, and in batch throughput, whatever the other.
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
