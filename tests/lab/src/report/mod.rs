// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results as text for the terminal.
#![forbid(unsafe_code)]

pub mod causes;
mod summary;

use std::fmt::Write;

pub use summary::{SeedFigures, Summary};

use crate::Ns;
use crate::aims::Aim;
use crate::measure::{EDGES, Spent};
use crate::pairs::CaseRow;
use crate::seeds::OverSeeds;
use crate::seeds::geometric;

/// Requests that a figure is to rest on.
pub const ENOUGH: u64 = 1_000;

/// One line a rule.
pub fn text(rows: &[CaseRow]) -> String {
    let mut out = String::new();
    let mut last = String::new();
    for row in rows {
        let figures = &row.figures;
        let head = format!(
            "{}: {} beside {}, seed {}",
            row.device,
            row.service,
            row.batch.join(" + "),
            figures.seed
        );
        if head != last {
            let alone = &figures.alone;
            let _ = writeln!(
                out,
                "\n{head}\nalone: mean {:.3} ms, p50 {:.3}, p99 {:.3}, p99.9 {:.3}; floor {:.0} us a filled gap, p99 residual {:.0} us",
                alone.mean / 1e6,
                alone.p50 / 1e6,
                alone.p99 / 1e6,
                alone.p999 / 1e6,
                figures.floor.mean / 1e3,
                figures.floor.p99 / 1e3
            );
            let _ = writeln!(
                out,
                "{:14} {:>6} {:>6} {:>6} {:>6} {:>9} {:>9} {:>9} {:>9} {:>6} {:>6} {:>6} {:>7} {:>7} {:>7} {:>6} {:>7}",
                "policy",
                "mean",
                "p50",
                "p99",
                "p99.9",
                "added us",
                "worst us",
                "direct us",
                "worst us",
                "batch",
                "bound",
                "of it",
                "gap ms",
                "filled",
                "wasted",
                "eff.",
                "gate us"
            );
            last = head;
        }
        let (with, alone) = (&figures.latency, &figures.alone);
        let _ = writeln!(
            out,
            "{:14} {:>6.3} {:>6.3} {:>6.3} {:>6.3} {:>9.1} {:>9.0} {:>9.1} {:>9.0} {:>6.3} {:>6} {:>6} {:>7.0} {:>7.0} {:>7.0} {:>6} {:>7.1}{}",
            figures.rule,
            with.mean / alone.mean,
            with.p50 / alone.p50,
            with.p99 / alone.p99,
            with.p999 / alone.p999,
            figures.added_mean_us,
            figures.added_worst_us,
            figures.direct_per_gap_us,
            figures.direct_worst_us,
            figures.batch_sum,
            or_none(figures.bound),
            or_none(figures.share_of_bound()),
            figures.gap_ms,
            figures.filled_ms,
            figures.gap_ms - figures.filled_ms,
            packers(figures.efficiency),
            figures.gate_us,
            if figures.finished { "" } else { "  did not finish" }
        );
    }
    if rows.iter().any(|row| row.figures.efficiency.is_nan()) {
        out.push_str(NO_PACKER);
    }
    out
}

/// A figure, or a dash where there is none.
pub(crate) fn or_none(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.3}"))
}

/// The set in one line for each device, kind and rule.
pub fn text_of_set(rows: &[CaseRow]) -> String {
    let mut out = format!(
        "{:12} {:14} {:12} {:>5} {:>8} {:>8} {:>8} {:>9} {:>7} {:>7} {:>7} {:>7}\n",
        "device", "kind", "policy", "cases", "mean", "worst", "p99", "added us", "batch", "bound", "of it", "packer"
    );
    let summaries = Summary::of(rows);
    for group in &summaries {
        let _ = writeln!(
            out,
            "{:12} {:14} {:12} {:>5} {:>8.3} {:>8.3} {:>8.3} {:>9.1} {:>7.3} {:>7} {:>7} {:>7}",
            group.device,
            group.name(),
            group.rule,
            group.cases,
            group.slowdown,
            group.worst,
            group.p99,
            group.added_us,
            group.batch,
            or_none(group.bound),
            or_none(group.share),
            packers(group.efficiency)
        );
        if let Some(seeds) = &group.seeds {
            let of = |what: &str, over: &OverSeeds| format!("{what} {over} ({})", over.each());
            let _ = writeln!(
                out,
                "{:12} {}; {}; {}",
                "",
                of("mean", &seeds.slowdown),
                of("p99", &seeds.p99),
                of("batch", &seeds.batch)
            );
        }
    }
    if summaries.iter().any(|group| group.seeds.is_some()) {
        out.push_str(INTERVAL);
    }
    if rows.iter().any(|row| row.figures.efficiency.is_nan()) {
        out.push_str(NO_PACKER);
    }
    out
}

/// The same cases in several settings, one beside the other: a group of lines for each device, kind
/// and rule. Empty if there is one setting only.
pub fn text_of_settings(summaries: &[Summary]) -> String {
    let Some(first) = summaries.first().filter(|_| summaries.len() > 1) else {
        return String::new();
    };
    let own = summaries.iter().filter(|one| one.setting == first.setting);
    if own.clone().count() == summaries.len() {
        return String::new();
    }
    let width = summaries.iter().map(|one| one.setting.to_string().len()).max();
    let width = width.unwrap_or_default();
    let mut out = format!(
        "\n{:12} {:14} {:12} {:width$} {:>5} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7}\n",
        "device", "kind", "policy", "setting", "cases", "mean", "worst", "p99", "batch", "bound", "of it"
    );
    for one in own {
        let same = |other: &&Summary| {
            (other.device, other.kind, other.host_time, &other.rule) == (one.device, one.kind, one.host_time, &one.rule)
        };
        for group in summaries.iter().filter(same) {
            let _ = writeln!(
                out,
                "{:12} {:14} {:12} {:width$} {:>5} {:>8.3} {:>8.3} {:>8.3} {:>7.3} {:>7} {:>7}",
                group.device,
                group.name(),
                group.rule,
                group.setting.to_string(),
                group.cases,
                group.slowdown,
                group.worst,
                group.p99,
                group.batch,
                or_none(group.bound),
                or_none(group.share)
            );
        }
    }
    out
}

/// Said of figures over several seeds.
const INTERVAL: &str = "+-: half-width of the 95 % interval of the mean over seeds, by Student's t; in brackets the geometric mean over the cases of each seed\n";

/// Said where kernels share SMs.
const NO_PACKER: &str = "-: the packer runs one kernel at a time, and bounds nothing where kernels share SMs\n";

/// A figure of the packer's; there is none where kernels share SMs.
pub(crate) fn packers(value: f64) -> String {
    or_none((!value.is_nan()).then_some(value))
}

/// Where the time of gaps went, by device, policy and length of gap: parts of the gap time of that
/// length.
pub fn text_of_gaps(rows: &[CaseRow]) -> String {
    let mut out = format!(
        "{:12} {:9} {:>7} {:>9} {:>8} {:>9} {:>7} {:>7} {:>7} {:>8} {:>7} {:>7}\n",
        "device", "policy", "batch", "gaps", "number", "ms", "filled", "head", "between", "tail", "unused", "packer"
    );
    for (device, rule, spent) in gaps_by_rule(rows) {
        let batch = batch_over(rows, device, &rule);
        for (at, spent) in spent.iter().enumerate().filter(|(_, spent)| spent.there > 0) {
            let part = |time: Ns| time as f64 / spent.there as f64;
            let _ = writeln!(
                out,
                "{device:12} {rule:9} {batch:>7.3} {:>9} {:>8} {:>9.1} {:>7.3} {:>7.3} {:>7.3} {:>8.3} {:>7.3} {:>7}",
                length_name(at),
                spent.gaps,
                spent.there as f64 / 1e6,
                part(spent.filled),
                part(spent.head),
                part(spent.between),
                part(spent.tail),
                part(spent.unused),
                packers(packed(device, part(spent.packer)))
            );
        }
    }
    out
}

/// What the packer fills on a device of this name.
pub(crate) fn packed(device: &str, part: f64) -> f64 {
    match device.starts_with("mps-shared") {
        true => f64::NAN,
        false => part,
    }
}

/// Up to what length, for people.
pub(crate) fn length_name(at: usize) -> String {
    match EDGES.get(at) {
        Some(edge) => format!("<= {} us", edge / 1_000),
        None => "longer".into(),
    }
}

/// Sums over all cases of a device and a rule.
pub(crate) fn gaps_by_rule(rows: &[CaseRow]) -> Vec<(&'static str, String, Vec<Spent>)> {
    let mut out: Vec<(&'static str, String, Vec<Spent>)> = Vec::new();
    for row in rows.iter().filter(|row| !row.is_apart()) {
        let found = out
            .iter()
            .position(|(device, rule, _)| *device == row.device && *rule == row.figures.rule);
        let at = found.unwrap_or_else(|| {
            out.push((
                row.device,
                row.figures.rule.clone(),
                vec![Spent::default(); EDGES.len() + 1],
            ));
            out.len() - 1
        });
        for (sum, spent) in out[at].2.iter_mut().zip(&row.figures.spent) {
            sum.add(spent);
        }
    }
    out
}

/// Batch work under a rule over all cases of a device that stand together: geometric mean of that
/// of alone.
pub(crate) fn batch_over(rows: &[CaseRow], device: &str, rule: &str) -> f64 {
    let ours = |row: &&CaseRow| !row.is_apart() && row.device == device && row.figures.rule == rule;
    geometric(rows.iter().filter(ours).map(|row| row.figures.batch_sum))
}

/// Aims: those met, those that nothing was run for, and last those missed.
pub fn text_of_aims(aims: &[Aim]) -> String {
    let mut out = String::new();
    let mut sorted: Vec<&Aim> = aims.iter().collect();
    sorted.sort_by_key(|aim| (aim.is_judged() && !aim.met, !aim.met));
    for aim in sorted {
        if !aim.is_judged() {
            let _ = writeln!(out, "not judged {}", aim.aim);
            continue;
        }
        let word = if aim.met { "met   " } else { "MISSED" };
        let _ = writeln!(out, "{word} {} ({} of {})", aim.aim, aim.held.0, aim.held.1);
        for said in &aim.said {
            let _ = writeln!(out, "         {said}");
        }
    }
    out
}
