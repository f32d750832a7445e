//! Where the time of gaps went that was not filled, by cause.
#![forbid(unsafe_code)]

use std::fmt::Write;

use super::length_name;
use crate::measure::Spent;
use crate::pairs::Row;
use crate::why::{CAUSES, Causes, Why};

/// Sums over cases of one device and rule.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) device: &'static str,
    pub(crate) rule: String,
    pub(crate) cases: usize,
    pub(crate) spent: Vec<Spent>,
    pub(crate) why: Why,
    pub(crate) gap_ms: f64,
    pub(crate) filled_ms: f64,
    pub(crate) packer_ms: f64,
    pub(crate) gated_ms: f64,
}

impl Group {
    fn new(name: String, row: &Row) -> Group {
        Group {
            name,
            device: row.device,
            rule: row.figures.rule.clone(),
            cases: 0,
            spent: vec![Spent::default(); row.figures.spent.len()],
            why: Why::default(),
            gap_ms: 0.0,
            filled_ms: 0.0,
            packer_ms: 0.0,
            gated_ms: 0.0,
        }
    }

    fn add(&mut self, row: &Row) {
        let figures = &row.figures;
        self.cases += 1;
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
pub(crate) fn groups(rows: &[Row], name: impl Fn(&Row) -> Option<String>) -> Vec<Group> {
    let mut out: Vec<Group> = Vec::new();
    for row in rows {
        let Some(name) = name(row) else { continue };
        let found = out
            .iter()
            .position(|group| (group.device, &group.rule, &group.name) == (row.device, &row.figures.rule, &name));
        let at = found.unwrap_or_else(|| {
            out.push(Group::new(name, row));
            out.len() - 1
        });
        out[at].add(row);
    }
    out
}

/// For the terminal: parts of the gap time, in per cent.
pub fn text(rows: &[Row]) -> String {
    let name = |row: &Row| {
        (row.kind != "frontier").then(|| match row.kind {
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
        "  {:12} what a packer fills that knows everything in advance; `gated`: the same if hosts may run ahead in gaps only",
        "packer"
    );
    let mut last = String::new();
    for group in groups(rows, name) {
        let head = format!("{}: {}", group.device, group.name);
        if head != last {
            let _ = write!(
                out,
                "\n{head}\n{:14} {:>10} {:>9} {:>7} {:>7} {:>7}",
                "policy", "gaps", "ms", "filled", "packer", "gated"
            );
            for (short, _) in CAUSES {
                let _ = write!(out, " {:>7}", &short[..short.len().min(7)]);
            }
            out.push('\n');
            last = head;
        }
        let _ = write!(
            out,
            "{:14} {:>10} {:>9.0} {:>7.1} {:>7.1} {:>7.1}",
            group.rule,
            "all",
            group.gap_ms,
            per_cent(group.filled_ms, group.gap_ms),
            per_cent(group.packer_ms, group.gap_ms),
            per_cent(group.gated_ms, group.gap_ms)
        );
        line(&mut out, &group.why.sum(), group.gap_ms * 1e6);
        for (at, (spent, causes)) in group.spent.iter().zip(&group.why.0).enumerate() {
            let there = spent.there as f64;
            if spent.there == 0 {
                continue;
            }
            let _ = write!(
                out,
                "{:14} {:>10} {:>9.0} {:>7.1} {:>7.1} {:>7}",
                "",
                length_name(at),
                there / 1e6,
                per_cent(spent.filled as f64, there),
                per_cent(spent.packer as f64, there),
                ""
            );
            line(&mut out, causes, there);
        }
    }
    out
}

fn line(out: &mut String, causes: &Causes, of: f64) {
    for time in causes {
        let _ = write!(out, " {:>7.1}", per_cent(*time as f64, of));
    }
    out.push('\n');
}

/// So many per cent.
pub(crate) fn per_cent(part: f64, of: f64) -> f64 {
    if of == 0.0 { 0.0 } else { 100.0 * part / of }
}
