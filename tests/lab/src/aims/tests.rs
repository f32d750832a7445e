//! Each aim can be met and can be missed: figures of a real run, altered.

use std::sync::Arc;

use simgpu_engine::Mode;

use super::*;
use crate::compare::Fixture;
use crate::job::{PlayedJob, Program};
use crate::rule::Rule;
use crate::world::Hosts;
use crate::{MS, US, generate, pairs};

/// A small case as it is run, under the three rules that aims speak of.
fn run() -> Vec<CaseRow> {
    let job =
        |name: &str, priority, trace| PlayedJob::new(name, priority, Arc::new(Program::of(&trace, 0, usize::MAX)));
    let jobs = [
        job("service", 0, generate::service(20, 80 * US, 8 * MS)),
        job("training", 5, generate::training(&[30 * US, 90 * US], 2 * US, 200 * US)),
    ];
    let bench = Fixture {
        device: pairs::device(Mode::Mps),
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
            kind: "pair",
            device: "mps",
            service: service.clone(),
            batch: batch.clone(),
            closed: true,
            figures: bench.compare(&known, rule),
        })
        .collect()
}

/// The same with nothing left to wish for: weft, fikit, the device alone.
fn good() -> Vec<CaseRow> {
    let mut rows = run();
    for row in &mut rows {
        let figures = &mut row.figures;
        figures.finished = true;
        figures.latency = figures.alone;
        figures.added_mean_us = 0.0;
        figures.direct_per_gap_us = 0.0;
        figures.efficiency = 1.0;
        figures.gate_own_us = 0.0;
        figures.batch_sum = 0.5;
        // Of a service whose requests take long, beside short kernels: all aims speak of it.
        figures.floor.mean = 0.001 * figures.alone.mean;
        figures.floor.p99 = 0.001 * figures.alone.p99;
        figures.foreseen.kept = Some(0.9);
        figures.foreseen.error = Some(0.1);
    }
    let slower = |row: &mut CaseRow, times: f64| row.figures.latency.mean *= times;
    slower(&mut rows[1], 1.2);
    slower(&mut rows[2], 2.0);
    rows[1].figures.batch_sum = 0.4;
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
    assert!(aims.len() >= 14 && aims.iter().all(|aim| !aim.met && !aim.is_judged()));
    assert_eq!(AimVerdict::of(&aims), AimVerdict::Nothing);
    // A frontier alone compares no rules that an aim speaks of.
    let mut rows = good();
    rows.iter_mut().for_each(|row| row.kind = "frontier");
    assert_eq!(AimVerdict::of(&judge(&rows, &[], &[])), AimVerdict::Nothing);
    // Without weft's own row as well.
    assert_eq!(AimVerdict::of(&judge(&good()[1..], &[], &[])), AimVerdict::Nothing);
}

#[test]
fn everything_is_judged_and_met_where_nothing_is_left_to_wish_for() {
    let aims = judge(&good(), &foresight(), &speed());
    assert_eq!(missed(&aims), Vec::<&str>::new());
    assert!(aims.iter().all(Aim::is_judged), "{aims:?}");
    assert_eq!(AimVerdict::of(&aims), AimVerdict::Met);
}

#[test]
fn every_aim_is_missed_by_figures_just_beyond_it() {
    type Alter = fn(&mut [CaseRow]);
    let alterations: [(&str, Alter); 10] = [
        ("every request is answered", |rows| rows[0].figures.finished = false),
        ("direct delay", |rows| {
            rows[0].figures.direct_per_gap_us = 1.26 * rows[0].figures.floor.mean / 1e3;
        }),
        ("added end to end", |rows| {
            rows[0].figures.added_mean_us = 0.0051 * rows[0].figures.alone.mean / 1e3;
        }),
        ("latency mean", |rows| rows[0].figures.latency.mean *= 1.021),
        ("latency p99", |rows| rows[0].figures.latency.p99 *= 1.051),
        ("speed-up", |rows| rows[0].figures.latency.mean /= 0.949),
        ("fill efficiency", |rows| rows[0].figures.efficiency = 0.899),
        ("gate time", |rows| {
            rows[0].figures.gate_own_us = 0.101 * rows[0].figures.floor.kernel / 1e3;
        }),
        ("against fikit: worse in both", |rows| {
            rows[1].figures.latency.mean = rows[0].figures.latency.mean / 1.006;
            rows[1].figures.batch_sum = rows[0].figures.batch_sum * 1.006;
        }),
        ("against fikit: at least 1.15 times", |rows| {
            rows[1].figures.batch_sum = rows[0].figures.batch_sum / 1.149;
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
