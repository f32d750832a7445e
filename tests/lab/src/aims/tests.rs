// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each aim can be met and can be missed: figures of a real run, altered.

use std::sync::Arc;

use weft_engine::{Mode, Settings};
use weft_player::{Hosts, PlayedJob, Program, TokenTime};

use super::*;
use crate::calibrated::LabSetting;
use crate::compare::{CaseFigures, Fixture};
use crate::pairs::{LOADS, SLOWDOWNS};
use crate::promise::{SloFigures, TokenFigures};
use crate::rule::Rule;
use crate::{MS, US, generate, pairs};

/// A small case as it runs, under the three rules that the aims name.
fn run() -> Vec<CaseRow> {
    let job = |name: &str, priority, trace| {
        PlayedJob::new(name, priority, Arc::new(Program::of(&trace).expect("a sound trace")))
    };
    let jobs = [
        job("service", 0, generate::service(20, 80 * US, 8 * MS)),
        job("training", 5, generate::training(&[30 * US, 90 * US], 2 * US, 200 * US)),
    ];
    let bench = Fixture {
        device: Settings {
            mode: Mode::Mps,
            ..Settings::default()
        },
        hosts: Hosts::default(),
        seed: 1,
        requests: 25,
        warmup: 3,
        tuning: Default::default(),
    };
    let known = bench.know_all(&jobs);
    let (service, batch) = pairs::names(&jobs);
    [Rule::WEFT, Rule::FIKIT, Rule::Default]
        .into_iter()
        .map(|rule| CaseRow {
            setting: LabSetting {
                calibration: "a100-like".into(),
                queue: None,
            },
            kind: "pair",
            device: "mps",
            service: service.clone(),
            batch: batch.clone(),
            closed: true,
            host_time: 1.0,
            figures: bench.compare(&known, rule),
        })
        .collect()
}

/// The same rows, altered so that every group of every aim is met: weft, fikit, the device's own
/// rule; then the same with a model held back.
fn good() -> Vec<CaseRow> {
    let mut rows = run();
    for row in &mut rows {
        let figures = &mut row.figures;
        figures.finished = true;
        figures.latency = figures.alone;
        figures.gate_own_us = 0.0;
        figures.batch_sum = 0.9;
    }
    let slower = |row: &mut CaseRow, times: f64| row.figures.latency.mean *= times;
    slower(&mut rows[1], 1.2);
    slower(&mut rows[2], 2.0);
    rows[1].figures.batch_sum = 0.7;
    let promised = promised(&rows[0]);
    let rows = &rows;
    let names = ["service", "gpt2"];
    let groups = names.iter().flat_map(|name| GROUPS.map(|group| (*name, group)));
    groups
        .flat_map(|(name, group)| {
            rows.iter().map(move |row| CaseRow {
                kind: group.kind,
                device: group.device,
                service: name.to_string(),
                ..row.clone()
            })
        })
        .chain(promised)
        .collect()
}

/// Cases of promises to users that meet every aim.
fn promised(row: &CaseRow) -> Vec<CaseRow> {
    let of = |kind, device, rule: Rule, batch| {
        let mut row = CaseRow {
            kind,
            device,
            ..row.clone()
        };
        row.figures.rule = rule.to_string();
        row.figures.batch_sum = batch;
        row
    };
    let slowdowns = || SLOWDOWNS.map(Rule::Slowdown);
    let mut rows = vec![of("dial", "mps-shared", Rule::WEFT, 0.8)];
    rows.extend(slowdowns().map(|rule| of("dial", "mps-shared", rule, 0.95)));
    for device in ["mps", "mps-shared"] {
        for (load, rule, batch) in LOADS
            .map(|load| [(load, Rule::WEFT, 0.7), (load, Rule::Default, 0.99)])
            .concat()
        {
            let mut row = of("slo", device, rule, batch);
            row.service = format!("service at {load} %");
            row.figures.slo = Some(SloFigures {
                limit: 1,
                attained: 1.0,
                alone: 1.0,
                kept: 1.0,
            });
            rows.push(row);
        }
        let rules = [Rule::Slowdown(2), Rule::WEFT, Rule::Default];
        rows.extend(rules.map(|rule| of("llm", device, rule, 0.8)));
    }
    rows.push(of("llm", "time-sliced", Rule::Default, 0.5));
    let tokens = TokenTime {
        request: 0,
        time: 1_000,
    };
    for row in rows.iter_mut().filter(|row| row.kind == "llm") {
        row.figures.tokens = TokenFigures::of(&[tokens], &[tokens], 0);
    }
    rows
}

fn foresight() -> Vec<GapForesight> {
    let found = Evaluation {
        forecasts: 100,
        covered: 0.9,
        values: 100,
        error: 1_000.0,
        error_of_means: 3_000.0,
        error_frozen: 1_500.0,
        covered_frozen: 0.9,
        forecasts_frozen: 100,
    };
    vec![GapForesight {
        trace: "model-infer".into(),
        steps: (5, 5),
        gaps: found.values,
        material: found.forecasts,
        covered: found.covered,
        error_us: 1.0,
        means_us: 3.0,
        frozen_us: 1.5,
        frozen_covered: 0.9,
        found,
    }]
}

fn speed() -> Vec<Speed> {
    vec![Speed {
        policy: "weft".into(),
        clients: 1_000,
        million_events_a_second: 2.5,
        growth_kib: 0,
    }]
}

fn missed(aims: &[Aim]) -> Vec<&str> {
    let missed = aims.iter().filter(|aim| aim.is_judged() && !aim.met);
    missed.map(|aim| aim.aim.as_str()).collect()
}

#[test]
fn what_nothing_was_run_for_is_neither_met_nor_missed() {
    let aims = judge(&[], &[], &[]);
    assert!(aims.len() >= 18 && aims.iter().all(|aim| !aim.met && !aim.is_judged()));
    assert_eq!(AimVerdict::of(&aims), AimVerdict::Nothing);
    // Only frontier rows compare no rules that an aim names.
    let mut rows = good();
    rows.iter_mut().for_each(|row| row.kind = "frontier");
    assert_eq!(AimVerdict::of(&judge(&rows, &[], &[])), AimVerdict::Nothing);
    // The same without weft's own rows.
    let mut rows = good();
    rows.retain(|row| !row.figures.rule.starts_with("weft"));
    assert_eq!(AimVerdict::of(&judge(&rows, &[], &[])), AimVerdict::Nothing);
}

#[test]
fn everything_is_judged_and_met_where_nothing_is_left_to_wish_for() {
    let aims = judge(&good(), &foresight(), &speed());
    assert_eq!(missed(&aims), Vec::<&str>::new());
    assert!(aims.iter().all(Aim::is_judged), "{aims:?}");
    assert_eq!(AimVerdict::of(&aims), AimVerdict::Met);
}

/// Alters weft's rows of this kind.
fn weft(rows: &mut [CaseRow], kind: &str, alter: impl Fn(&mut CaseFigures)) {
    under(rows, kind, Rule::WEFT, alter);
}

/// Alters rows of this kind under a rule.
fn under(rows: &mut [CaseRow], kind: &str, rule: Rule, alter: impl Fn(&mut CaseFigures)) {
    let rule = rule.to_string();
    rows.iter_mut()
        .filter(|row| row.kind == kind && row.figures.rule == rule)
        .for_each(|row| alter(&mut row.figures));
}

#[test]
fn every_aim_is_missed_by_figures_just_beyond_it() {
    type Alter = fn(&mut [CaseRow]);
    let alterations: [(&str, Alter); 20] = [
        ("every request is answered", |rows| rows[0].figures.finished = false),
        ("mps, poisson", |rows| weft(rows, "poisson", |it| it.batch_sum = 0.799)),
        ("time-sliced, bursts", |rows| {
            weft(rows, "bursts", |it| it.latency.mean *= 1.011)
        }),
        ("mps, pair", |rows| weft(rows, "pair", |it| it.batch_sum = 0.749)),
        ("time-sliced, pair", |rows| {
            weft(rows, "pair", |it| it.latency.p99 *= 1.021)
        }),
        ("mps, several", |rows| rows[18].figures.latency.mean *= 1.031),
        ("time-sliced, several", |rows| rows[21].figures.latency.p99 *= 1.081),
        ("pairs in which no other rule", |rows| {
            // The device's own rule, in the first pair.
            rows[14].figures.latency.mean = rows[12].figures.latency.mean * 1.004;
            rows[14].figures.batch_sum = rows[12].figures.batch_sum * 1.021;
        }),
        ("all cases, no condition: latency mean", |rows| {
            rows[0].figures.latency.mean *= 1.021
        }),
        ("all cases, no condition: latency p99", |rows| {
            rows[0].figures.latency.p99 *= 1.051
        }),
        ("pairs with a model held back", |rows| {
            let held_back = rows
                .iter_mut()
                .filter(|row| row.service == "gpt2" && row.kind == "pair");
            held_back.for_each(|row| row.figures.batch_sum *= 0.899);
        }),
        ("gate time", |rows| {
            rows[0].figures.gate_own_us = 0.101 * rows[0].figures.floor.kernel / 1e3;
        }),
        ("against fikit: worse in both", |rows| {
            rows[1].figures.latency.mean = rows[0].figures.latency.mean / 1.006;
            rows[1].figures.batch_sum = rows[0].figures.batch_sum * 1.006;
        }),
        ("--slowdown 5 %: mean latency", |rows| {
            under(rows, "dial", Rule::Slowdown(5), |it| it.latency.mean *= 1.051);
        }),
        ("--slowdown 10 %: batch work", |rows| {
            under(rows, "dial", Rule::Slowdown(10), |it| it.batch_sum = 0.929);
        }),
        ("mps, --slo 1.2 times alone's p99 at 40 %", |rows| {
            weft(rows, "slo", |it| {
                it.slo = it.slo.map(|slo| SloFigures {
                    attained: 0.9989,
                    ..slo
                });
            });
        }),
        ("mps-shared, --slo 1.2 times alone's p99 at 70 %", |rows| {
            weft(rows, "slo", |it| it.batch_sum = 0.69);
        }),
        ("mps, language model", |rows| {
            under(rows, "llm", Rule::Slowdown(2), |it| it.batch_sum = 0.749);
        }),
        ("mps-shared, language model", |rows| {
            under(rows, "llm", Rule::Slowdown(2), |it| {
                let mut tokens = it.tokens.expect("tokens");
                tokens.with.mean *= 1.021;
                it.tokens = Some(tokens);
            });
        }),
        ("against fikit: at least 1.15 times", |rows| {
            let fikit = rows.iter_mut().filter(|row| row.figures.rule == "fikit");
            fikit.for_each(|row| row.figures.batch_sum = 0.9 / 1.149);
        }),
    ];
    for (aim, alter) in alterations {
        let mut rows = good();
        alter(&mut rows);
        let aims = judge(&rows, &foresight(), &speed());
        let missed = missed(&aims);
        assert!(missed.iter().any(|missed| missed.starts_with(aim)), "{aim}: {missed:?}");
        assert_eq!(AimVerdict::of(&aims), AimVerdict::Missed);
    }
}

#[test]
fn a_case_of_the_table_is_the_same_pair() {
    let mut rows = good();
    let cases = together(&rows).len();
    let pair = |row: &&CaseRow| (row.kind, row.device) == ("pair", "mps");
    let mut table: Vec<CaseRow> = rows.iter().filter(pair).cloned().collect();
    table.iter_mut().for_each(|row| row.kind = "table");
    rows.extend(table);
    assert_eq!(together(&rows).len(), cases);
    // Without the pair's own row it is judged as a pair.
    rows.retain(|row| row.kind == "table");
    let aims = judge(&rows, &[], &[]);
    let judged = |begin: &str| aims.iter().any(|aim| aim.aim.starts_with(begin) && aim.is_judged());
    assert!(judged("mps, pair") && judged("pairs in which no other") && judged("pairs with a model held"));
}

#[test]
fn an_interval_needs_every_case_with_each_seed() {
    let mut rows = good();
    rows.truncate(3);
    for (seed, row) in (1..).zip(&mut rows) {
        row.figures.seed = seed;
        row.figures.batch_sum = 0.70 + 0.01 * seed as f64;
    }
    let mut more = rows[0].clone();
    more.service = "another".into();
    let rows: Vec<&CaseRow> = rows.iter().collect();
    assert_eq!(interval(&rows), " (+- 0.025 over 3 seeds)");
    assert_eq!(interval(&rows[1..2]), "");
    // Another case, with only one seed.
    assert_eq!(interval(&[&rows[..], &[&more]].concat()), "");
}

#[test]
fn predictor_and_core_are_judged_by_their_own_figures() {
    let bad = |foresight: &[GapForesight], speed: &[Speed], aim: &str| {
        let aims = judge(&good(), foresight, speed);
        assert!(
            missed(&aims).iter().any(|missed| missed.contains(aim)),
            "{aim}: {aims:?}"
        );
    };
    for covered in [0.86, 0.94] {
        let mut foresight = foresight();
        foresight[0].covered = covered;
        bad(&foresight, &speed(), "covers 90 +- 3 %");
    }
    let mut inexact = foresight();
    inexact[0].found.error = 1_501.0;
    bad(&inexact, &speed(), "mean absolute error");
    let mut slow = speed();
    slow[0].million_events_a_second = 1.99;
    bad(&foresight(), &slow, "2 million events");
}
