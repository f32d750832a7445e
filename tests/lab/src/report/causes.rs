// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the time of gaps went that was not filled, by cause.
#![forbid(unsafe_code)]

use std::fmt::Write;

use super::{length_name, packed};
use crate::measure::Spent;
use crate::pairs::CaseRow;
use crate::seeds::geometric;
use crate::why::{CAUSES, Causes, UnfilledCauses};

/// A part in per cent of the whole; 0 if the whole is 0.
fn per_cent(part: f64, of: f64) -> f64 {
    if of == 0.0 { 0.0 } else { 100.0 * part / of }
}

/// Sums over cases of one device and rule.
#[derive(Debug, Clone)]
pub(crate) struct CauseGroup {
    pub(crate) name: String,
    pub(crate) device: &'static str,
    pub(crate) rule: String,
    pub(crate) cases: usize,
    pub(crate) spent: Vec<Spent>,
    pub(crate) why: UnfilledCauses,
    /// Each case's batch work, of alone.
    pub(crate) batch: Vec<f64>,
    pub(crate) gap_ms: f64,
    pub(crate) filled_ms: f64,
    pub(crate) packer_ms: f64,
    pub(crate) gated_ms: f64,
}

impl CauseGroup {
    fn new(name: String, row: &CaseRow) -> CauseGroup {
        CauseGroup {
            name,
            device: row.device,
            rule: row.figures.rule.clone(),
            cases: 0,
            spent: vec![Spent::default(); row.figures.spent.len()],
            why: UnfilledCauses::default(),
            batch: Vec::new(),
            gap_ms: 0.0,
            filled_ms: 0.0,
            packer_ms: 0.0,
            gated_ms: 0.0,
        }
    }

    fn add(&mut self, row: &CaseRow) {
        let figures = &row.figures;
        self.cases += 1;
        self.batch.push(figures.batch_sum);
        for (sum, spent) in self.spent.iter_mut().zip(&figures.spent) {
            sum.add(spent);
        }
        self.why.add(&figures.why);
        self.gap_ms += figures.gap_ms;
        self.filled_ms += figures.filled_ms;
        self.packer_ms += figures.oracle_ms;
        self.gated_ms += figures.gated_ms;
    }
}

/// By device and rule, over the cases of a kind (all but the frontier where none is named).
pub(crate) fn groups(rows: &[CaseRow], name: impl Fn(&CaseRow) -> Option<String>) -> Vec<CauseGroup> {
    let mut out: Vec<CauseGroup> = Vec::new();
    for row in rows {
        let Some(name) = name(row) else { continue };
        let found = out
            .iter()
            .position(|group| (group.device, &group.rule, &group.name) == (row.device, &row.figures.rule, &name));
        let at = found.unwrap_or_else(|| {
            out.push(CauseGroup::new(name, row));
            out.len() - 1
        });
        out[at].add(row);
    }
    out
}

/// For the terminal: parts of the gap time, in per cent.
pub fn text(rows: &[CaseRow]) -> String {
    let name = |row: &CaseRow| {
        (!row.is_apart()).then(|| match row.kind {
            "scenario" => format!(
                "{} beside {}, seed {}",
                row.service,
                row.batch.join(" + "),
                row.figures.seed
            ),
            kind => kind.to_string(),
        })
    };
    let mut out = String::from(
        "\nWhy gap time was not filled, in per cent of it (`scripts/lab --help-all` has the causes in full):\n",
    );
    for (short, what) in CAUSES {
        let _ = writeln!(out, "  {short:12} {what}");
    }
    let _ = writeln!(
        out,
        "  {:12} what a packer fills that knows everything in advance and never lets a kernel outlast a gap; `gated`: the same if hosts may run ahead in gaps only",
        "packer"
    );
    let mut last = String::new();
    for group in groups(rows, name) {
        let head = format!("{}: {}", group.device, group.name);
        if head != last {
            let _ = write!(
                out,
                "\n{head}\n{:14} {:>7} {:>10} {:>9} {:>7} {:>7} {:>7}",
                "policy", "batch", "gaps", "ms", "filled", "packer", "gated"
            );
            for (short, _) in CAUSES {
                let _ = write!(out, " {:>7}", &short[..short.len().min(7)]);
            }
            out.push('\n');
            last = head;
        }
        let _ = write!(
            out,
            "{:14} {:>7.3} {:>10} {:>9.0} {:>7.1} {:>7} {:>7}",
            group.rule,
            geometric(group.batch.iter().copied()),
            "all",
            group.gap_ms,
            per_cent(group.filled_ms, group.gap_ms),
            packers_part(group.device, group.packer_ms, group.gap_ms),
            packers_part(group.device, group.gated_ms, group.gap_ms)
        );
        line(&mut out, &group.why.sum(), group.gap_ms * 1e6);
        for (at, (spent, causes)) in group.spent.iter().zip(&group.why.0).enumerate() {
            let there = spent.there as f64;
            if spent.there == 0 {
                continue;
            }
            let _ = write!(
                out,
                "{:14} {:>7} {:>10} {:>9.0} {:>7.1} {:>7} {:>7}",
                "",
                "",
                length_name(at),
                there / 1e6,
                per_cent(spent.filled as f64, there),
                packers_part(group.device, spent.packer as f64, there),
                ""
            );
            line(&mut out, causes, there);
        }
    }
    out
}

/// What the packer fills, in per cent.
fn packers_part(device: &str, part: f64, of: f64) -> String {
    match packed(device, per_cent(part, of)) {
        none if none.is_nan() => "-".into(),
        part => format!("{part:.1}"),
    }
}

fn line(out: &mut String, causes: &Causes, of: f64) {
    for time in causes {
        let _ = write!(out, " {:>7.1}", per_cent(*time as f64, of));
    }
    out.push('\n');
}
