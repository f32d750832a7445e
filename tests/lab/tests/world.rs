// SPDX-License-Identifier: MIT OR Apache-2.0
//! The world: its effect on jobs, and that it repeats exactly.
#![forbid(unsafe_code)]

use std::sync::Arc;

use weft_engine::{Mode, Settings};
use weft_lab::compare::{CaseFigures, Fixture, KnownJob};
use weft_lab::generate;
use weft_lab::rule::Rule;
use weft_lab::{MS, US};
use weft_player::{ArrivalPattern, Hosts, Jitter, LaunchControl, MachineRun, MachineSetup, PlayedJob, Program};
use weft_trace_format::Trace;

fn program(trace: &Trace) -> Arc<Program> {
    Arc::new(Program::of(trace).expect("a sound trace"))
}

fn service() -> PlayedJob {
    PlayedJob::new("service", 0, program(&generate::service(60, 80 * US, 12 * MS)))
}

fn training() -> PlayedJob {
    let times = [30 * US, 120 * US, 400 * US, 60 * US].repeat(10);
    PlayedJob::new("training", 5, program(&generate::training(&times, 2 * US, 500 * US)))
}

fn device(mode: Mode) -> Settings {
    Settings {
        mode,
        ..Settings::default()
    }
}

fn bench(mode: Mode) -> Fixture {
    Fixture {
        device: device(mode),
        hosts: Hosts::default(),
        seed: 1,
        requests: 150,
        warmup: 20,
        tuning: Default::default(),
    }
}

fn known(bench: &Fixture, jobs: &[PlayedJob]) -> Vec<KnownJob> {
    let know = |(place, job): (usize, &PlayedJob)| bench.know(job, place, place == 0);
    jobs.iter().enumerate().map(know).collect()
}

fn compare(mode: Mode, jobs: &[PlayedJob], rule: Rule) -> CaseFigures {
    let bench = bench(mode);
    bench.compare(&known(&bench, jobs), rule)
}

fn plain(jobs: Vec<PlayedJob>, device: Settings, requests: u64) -> MachineRun {
    MachineSetup {
        requests,
        longest: 100_000 * MS,
        ..MachineSetup::new(device, LaunchControl::Plain, jobs, 3)
    }
    .play()
    .expect("jobs that can be played")
}

#[test]
fn a_job_alone_takes_what_its_trace_says() {
    let mut job = service();
    job.jitter = Jitter { device: 0.0, host: 0.0 };
    let run = plain(vec![job], device(Mode::Mps), 10);
    assert!(run.finished);
    // The input: 2 us before, 5 us latency, 30 us; sixty kernels of 80 us behind it; 2 us to
    // return.
    let expected = 2 * US + 5 * US + 30 * US + 60 * 80 * US + 2 * US;
    assert_eq!(run.jobs[0].latencies, vec![expected; 10]);
    assert_eq!(run.pieces.len(), 600);
}

#[test]
fn a_host_is_only_so_far_ahead() {
    let mut trace = generate::training(&[MS; 3_000], 0, 0);
    trace.steps.truncate(1);
    let job = PlayedJob::new("long", 0, program(&trace));
    let run = plain(vec![job], device(Mode::Mps), 1);
    assert!(run.finished);
    assert_eq!(run.pieces.len(), 3_000);
}

#[test]
fn the_same_seed_is_the_same_run_and_another_is_not() {
    for rule in Rule::ALL.into_iter().filter(|rule| rule.least() == 0) {
        let figures = |seed| {
            let bench = Fixture {
                seed,
                requests: 40,
                ..bench(Mode::TimeSlice)
            };
            let known = known(&bench, &[service(), training()]);
            serde_json::to_string(&bench.compare(&known, rule)).expect("figures are JSON")
        };
        assert_eq!(figures(5), figures(5), "{rule}");
        assert_ne!(figures(5), figures(6), "{rule}");
    }
}

#[test]
fn plain_sharing_hurts_and_exclusive_does_not() {
    for mode in [Mode::Mps, Mode::TimeSlice] {
        let jobs = [service(), training()];
        let [plain, exclusive] = [Rule::Default, Rule::ALL[7]].map(|rule| compare(mode, &jobs, rule));
        assert!(plain.finished && exclusive.finished);
        assert!(plain.slowdown() > 1.4, "{mode:?}: {}", plain.slowdown());
        assert!(exclusive.slowdown() < 1.3, "{mode:?}: {}", exclusive.slowdown());
        assert!(plain.batch_sum > exclusive.batch_sum, "{mode:?}");
    }
}

#[test]
fn weft_wins_back_what_plain_sharing_costs() {
    for mode in [Mode::Mps, Mode::TimeSlice] {
        let jobs = [service(), training()];
        for rule in Rule::ALL.into_iter().filter(|rule| rule.least() == 0) {
            let figures = compare(mode, &jobs, rule);
            println!(
                "{mode:?} {rule:10} slowdown {:.3} p99 {:.3} added {:.0} us direct {:.0} us a gap (floor {:.0}) worst {:.0} batch {:.3} filled {:.2} efficiency {:.3} gate {:.1} events {}",
                figures.slowdown(),
                figures.latency.p99 / figures.alone.p99,
                figures.added_mean_us,
                figures.direct_per_gap_us,
                figures.floor.mean / 1e3,
                figures.direct_worst_us,
                figures.batch_sum,
                figures.filled_share(),
                figures.efficiency,
                figures.gate_us,
                figures.events,
            );
        }
        let [plain, weft] = [Rule::Default, Rule::WEFT].map(|rule| compare(mode, &jobs, rule));
        assert!(weft.slowdown() < plain.slowdown());
        assert!(weft.batch_sum > 0.4, "{}", weft.batch_sum);
    }
}

#[test]
fn requests_that_come_by_themselves_queue() {
    let mut job = service();
    let alone = plain(vec![job.clone()], device(Mode::Mps), 50);
    job.arrivals = ArrivalPattern::Poisson { mean: 6 * MS };
    let queued = plain(vec![job.clone()], device(Mode::Mps), 400);
    let mean = |run: &MachineRun| run.jobs[0].latencies.iter().sum::<u64>() / run.jobs[0].latencies.len() as u64;
    assert!(
        mean(&queued) > mean(&alone) * 3 / 2,
        "{} {}",
        mean(&queued),
        mean(&alone)
    );
    job.arrivals = ArrivalPattern::Bursts {
        size: 5,
        mean: 100 * MS,
    };
    let bursts = plain(vec![job], device(Mode::Mps), 100);
    // The fifth of a burst waits for four others.
    assert!(bursts.jobs[0].latencies.iter().max() > Some(&(4 * mean(&alone))));
}

#[test]
fn the_causes_of_what_is_not_filled_add_up() {
    for mode in [Mode::Mps, Mode::TimeSlice] {
        let mut second = training();
        second.name = "second".into();
        let jobs = [service(), training(), second];
        for rule in [Rule::WEFT, Rule::FIKIT, Rule::Default, Rule::Xsched(16)] {
            let figures = compare(mode, &jobs, rule);
            for (spent, causes) in figures.spent.iter().zip(&figures.why.0) {
                let why: u64 = causes.iter().sum();
                assert_eq!(spent.there, spent.filled + why, "{mode:?} {rule}: {causes:?}");
            }
            let sum = figures.why.sum();
            let of = |name: &str| {
                let at = weft_lab::why::CAUSES.iter().position(|(short, _)| *short == name);
                sum[at.expect("a cause")]
            };
            // Without launch control no launch is held back, and weft's order takes its time.
            let held = of("bound") + of("busy") + of("unseen") + of("short") + of("granularity");
            match rule {
                Rule::Default => assert_eq!(held + of("rule") + of("order"), 0, "{mode:?}"),
                Rule::Xsched(_) => assert!(of("rule") > 0 && of("order") == 0, "{mode:?}"),
                _ => assert!(held > 0 && of("order") > 0 && of("rule") == 0, "{mode:?} {rule}"),
            }
            assert_eq!(of("switch") > 0, mode == Mode::TimeSlice, "{mode:?} {rule}");
        }
    }
}
