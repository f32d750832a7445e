// SPDX-License-Identifier: MIT OR Apache-2.0
//! The aims for memory beyond the device, and whether a run meets them.
#![forbid(unsafe_code)]

use super::contender::Contender;
use super::study::{BoundRow, Study, TurnsBy, mean};
use super::workload::NAMES;
use crate::aims::Aim;

/// MSched over demand paging at 150, 200, 300 %: mixes (mean), and several decoders.
const OVER_STOCK: [(u64, f64, f64); 3] = [(150, 11.05, 57.88), (200, 9.35, 44.79), (300, 7.52, 33.60)];
/// Several decoders, share of the throughput when all fits: per cent of the device, duplex, one
/// way.
const OF_IDEAL: [(u64, f64, f64); 3] = [(150, 0.80, 0.75), (200, 0.65, 0.60), (300, 0.50, 0.45)];
/// The same at the broker's default bound on being swapped out, both links.
const AT_THE_DEFAULT: [(u64, f64); 2] = [(200, 0.95), (300, 0.60)];
/// The most throughput that may be lost when everything fits.
const LOST: f64 = 0.006;

/// The share of throughput that decoders at this share of the device must keep at the default.
pub(super) fn at_the_default(share: u64) -> f64 {
    let found = AT_THE_DEFAULT.iter().find(|(of, _)| *of >= share);
    found.map_or(0.0, |(_, aim)| *aim)
}

pub(super) fn link(duplex: bool) -> &'static str {
    if duplex { "duplex" } else { "one way" }
}

/// One aim over cases: (case, value, limit); the value must be at least the limit.
pub(super) fn at_least(aim: &str, cases: Vec<(String, Option<f64>, f64)>) -> Aim {
    let holds = |(_, value, limit): &&(String, Option<f64>, f64)| value.is_some_and(|value| value >= *limit);
    let held = cases.iter().filter(holds).count();
    Aim {
        aim: aim.to_owned(),
        met: held == cases.len() && held > 0,
        held: (held, cases.len()),
        said: cases
            .iter()
            .map(|(what, value, limit)| match value {
                Some(value) => {
                    let verdict = if value >= limit { "" } else { " MISSED" };
                    format!("{what}: {value:.3}, aim {limit}{verdict}")
                }
                None => format!("{what}: not run"),
            })
            .collect(),
    }
}

/// Judges a study.
pub fn judge(study: &Study) -> Vec<Aim> {
    let mixes: Vec<&str> = NAMES.into_iter().filter(|name| *name != "decoders").collect();
    let ran = |share: u64| study.rows.iter().any(|row| row.share == share);
    let efficiency = |workloads: &[&str], share, duplex, contender| {
        study.mean(workloads, share, duplex, contender, |figures| figures.efficiency)
    };
    let ratio = |workloads: &[&str], share, duplex| {
        // The mean of each mix's ratio, as in the paper.
        let each: Vec<f64> = workloads
            .iter()
            .filter_map(|workload| {
                let of = |contender| efficiency(&[workload], share, duplex, contender);
                Some(of(Contender::Weft)? / of(Contender::Stock)?)
            })
            .collect();
        (!each.is_empty()).then(|| each.iter().sum::<f64>() / each.len() as f64)
    };
    let both = [true, false];
    let cases = |body: &dyn Fn(bool) -> Vec<(String, Option<f64>, f64)>| both.into_iter().flat_map(body).collect();
    let over = |workloads: &[&str], decoders: bool| {
        cases(&|duplex| {
            let shares = OVER_STOCK.into_iter().filter(|(share, ..)| ran(*share));
            let case = |(share, of_mixes, of_decoders)| {
                let limit = if decoders { of_decoders } else { of_mixes };
                (
                    format!("{share} %, {}", link(duplex)),
                    ratio(workloads, share, duplex),
                    limit,
                )
            };
            shares.map(case).collect()
        })
    };
    vec![
        at_least(
            "mixes: throughput over the stock driver's demand paging (mean of mixes)",
            over(&mixes, false),
        ),
        at_least(
            "decoders: throughput over the stock driver's demand paging",
            over(&["decoders"], true),
        ),
        at_least(
            "decoders: share of the throughput when all fits",
            cases(&|duplex| {
                let shares = OF_IDEAL.into_iter().filter(|(share, ..)| ran(*share));
                let case = |(share, of_duplex, of_one_way)| {
                    let value = efficiency(&["decoders"], share, duplex, Contender::Weft);
                    let limit = if duplex { of_duplex } else { of_one_way };
                    (format!("{share} %, {}", link(duplex)), value, limit)
                };
                shares.map(case).collect()
            }),
        ),
        at_least(
            "where everything fits (100 %): share of the throughput kept",
            cases(&|duplex| {
                let ran = |name: &&str| study.rows.iter().any(|row| row.workload == *name);
                let case = |name: &str| {
                    let value = efficiency(&[name], 100, duplex, Contender::Weft);
                    (format!("{name}, {}", link(duplex)), value, 1.0 - LOST)
                };
                NAMES.into_iter().filter(ran).map(case).collect()
            }),
        ),
        at_least(
            "decoders at the default bound on being swapped out: share of the throughput when all fits",
            cases(&|duplex| {
                let value = |share| {
                    mean(
                        &study.defaults,
                        &["decoders"],
                        share,
                        duplex,
                        Contender::Weft,
                        |figures| figures.efficiency,
                    )
                };
                let ran = |(share, _): &(u64, f64)| study.defaults.iter().any(|row| row.share == *share);
                let reach = |share| {
                    let of = |one: &&BoundRow| {
                        let row = &one.row;
                        (row.share, row.duplex, row.turns) == (share, duplex, TurnsBy::Default)
                    };
                    let bound = study.bounds.iter().find(of).map_or(1.0, |one| one.bound);
                    format!("no planner with equal turns has more than {bound:.3}")
                };
                let case = |(share, limit)| {
                    let what = format!("{share} %, {} ({})", link(duplex), reach(share));
                    (what, value(share), limit)
                };
                AT_THE_DEFAULT.into_iter().filter(ran).map(case).collect()
            }),
        ),
        at_least(
            "decoders: the bound on being swapped out, over the longest time that one was",
            {
                let case = |bounded: &BoundRow| {
                    let row = &bounded.row;
                    let bound = row.turns.bound_ms();
                    let what = format!("{} %, {}, {bound} ms, seed {}", row.share, link(row.duplex), row.seed);
                    (what, Some(bound / row.figures.away_ms.max(1e-9)), 1.0)
                };
                study.bounds.iter().map(case).collect()
            },
        ),
        at_least("the device is never fuller than it is (1: never)", {
            let rows = study.rows.iter().chain(&study.defaults).chain(&study.short);
            let fullest = rows.map(|row| row.figures.fullest).fold(0.0, f64::max);
            vec![("all runs".to_owned(), Some(f64::from(fullest <= 1.0)), 1.0)]
        }),
    ]
}
