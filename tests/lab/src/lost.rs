//! Gap time that a clairvoyant packer fills and a run did not, by cause.
#![forbid(unsafe_code)]

use crate::pairs::CaseRow;
use crate::why::{CAUSES, COUNT, GRANULARITY, HOST, PARTS};

/// A part in per cent of the whole; 0 if the whole is 0.
pub(crate) fn per_cent(part: f64, of: f64) -> f64 {
    if of == 0.0 { 0.0 } else { 100.0 * part / of }
}

/// The two largest causes of the time that the packer could have filled and the run did not.
pub(crate) fn mostly(row: &CaseRow) -> String {
    let figures = &row.figures;
    let lost = figures.oracle_ms - figures.filled_ms;
    if figures.oracle_ms.is_nan() || lost <= 0.02 * figures.oracle_ms {
        return "-".into();
    }
    let causes = lost_by_cause(row);
    let mut named: Vec<(f64, &str)> = causes.into_iter().zip(CAUSES.map(|(short, _)| short)).collect();
    named.sort_by(|one, other| other.0.total_cmp(&one.0));
    let said = named.iter().take(2).filter(|(time, _)| *time > 0.05 * lost);
    said.map(|(time, short)| format!("{short} {:.0} %", per_cent(*time, figures.oracle_ms)))
        .collect::<Vec<String>>()
        .join(", ")
}

/// The time that the packer could have filled and the run did not, in the parts that the aims name:
/// per cent of the time that the packer fills.
pub(crate) fn split(row: &CaseRow) -> String {
    if row.figures.oracle_ms.is_nan() {
        return "-".into();
    }
    let causes = lost_by_cause(row);
    let part = |places: &[usize]| per_cent(places.iter().map(|at| causes[*at]).sum(), row.figures.oracle_ms);
    PARTS
        .iter()
        .map(|(name, places)| format!("{name} {:.0} %", part(places)))
        .collect::<Vec<String>>()
        .join(", ")
}

/// Unfilled time by cause, ms, without the time that the packer leaves unfilled too. That part is
/// subtracted from the granularity first, then from the hosts', then from the rest in proportion.
fn lost_by_cause(row: &CaseRow) -> [f64; COUNT] {
    let figures = &row.figures;
    let mut causes = figures.why.sum().map(|time| time as f64 / 1e6);
    let mut nobodys = (figures.gap_ms - figures.oracle_ms).max(0.0);
    for at in [GRANULARITY, HOST] {
        let taken = causes[at].min(nobodys);
        causes[at] -= taken;
        nobodys -= taken;
    }
    let left: f64 = causes.iter().sum();
    let stays = if left > 0.0 {
        (1.0 - nobodys / left).max(0.0)
    } else {
        0.0
    };
    causes.map(|time| time * stays)
}
