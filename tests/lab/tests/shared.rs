// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that share SMs: the time that the lab counts for them, and the time that it does not.
#![forbid(unsafe_code)]

use std::sync::Arc;

use weft_engine::{Mode, Settings, SmLimits};
use weft_lab::compare::{CaseFigures, Fixture, KnownJob};
use weft_lab::generate;
use weft_lab::rule::Rule;
use weft_lab::{MS, Ns, US};
use weft_player::{Hosts, Jitter, MachineRun, MachineSetup, PlayedJob, Program};
use weft_trace_format::{Source, Trace};

/// A job whose kernels have `blocks` blocks; an SM holds one.
fn job(name: &str, priority: u8, mut trace: Trace, blocks: u32) -> PlayedJob {
    trace.source = Source::Estimated;
    for kernel in &mut trace.kernels {
        kernel.id.grid = [blocks, 1, 1];
        kernel.id.block = [1_024, 1, 1];
    }
    PlayedJob {
        jitter: Jitter { device: 0.0, host: 0.0 },
        ..PlayedJob::new(name, priority, Arc::new(Program::of(&trace).expect("a sound trace")))
    }
}

/// Sixty kernels of 80 us on half of an A100.
fn service() -> PlayedJob {
    job("service", 0, generate::service(60, 80 * US, 12 * MS), 54)
}

/// Kernels of 100 us, launched ahead, of `blocks` blocks.
fn training(blocks: u32) -> PlayedJob {
    let times = [100 * US; 40];
    job("training", 5, generate::training(&times, 2 * US, 500 * US), blocks)
}

/// A device on which blocks take longer by `contention` thousandths while others' blocks run.
fn fixture(contention: u32) -> Fixture {
    Fixture {
        device: Settings {
            mode: Mode::MpsShared(SmLimits {
                contention,
                ..SmLimits::A100_LIKE
            }),
            ..Settings::default()
        },
        hosts: Hosts::default(),
        seed: 1,
        requests: 60,
        warmup: 5,
        tuning: Default::default(),
    }
}

fn figures(bench: &Fixture, jobs: &[PlayedJob], rule: Rule) -> CaseFigures {
    let know = |(place, job): (usize, &PlayedJob)| bench.know(job, place, place == 0);
    let known: Vec<KnownJob> = jobs.iter().enumerate().map(know).collect();
    bench.compare(&known, rule)
}

fn run(bench: &Fixture, jobs: &[PlayedJob], rule: Rule) -> MachineRun {
    MachineSetup {
        hosts: bench.hosts,
        requests: bench.requests,
        longest: 10_000 * MS,
        ..MachineSetup::new(
            bench.device,
            rule.control(&bench.device, 1.0),
            jobs.to_vec(),
            bench.seed,
        )
    }
    .play()
    .expect("jobs that can be played")
}

#[test]
fn halves_of_the_device_run_side_by_side() {
    let jobs = [service(), training(54)];
    let free = figures(&fixture(0), &jobs, Rule::Default);
    assert!((free.latency.mean - free.alone.mean).abs() < 1.0, "{free:?}");
    assert!(free.batch_sum > 0.99, "{}", free.batch_sum);
    // Each has half of the device: blocks take up to 15 % longer.
    let contended = figures(&fixture(300), &jobs, Rule::Default);
    let slower = contended.latency.mean / contended.alone.mean;
    assert!(slower > 1.01 && slower < 1.15, "{slower}");
    assert!(contended.batch_sum < free.batch_sum);
}

#[test]
fn kernels_that_fill_the_device_wait_for_each_other() {
    let full = figures(&fixture(0), &[service(), training(108)], Rule::Default);
    assert!(full.latency.mean > 1.5 * full.alone.mean, "{full:?}");
}

#[test]
fn work_is_what_kernels_take_alone() {
    let bench = fixture(300);
    let jobs = [service(), training(54)];
    for rule in [Rule::Default, Rule::MpsPriority, Rule::Tally, Rule::WEFT] {
        let run = run(&bench, &jobs, rule);
        assert!(run.finished, "{rule}");
        for (number, job) in run.jobs.iter().enumerate() {
            let pieces = || run.pieces.iter().filter(|piece| usize::from(piece.job) == number);
            let alone: Ns = pieces().map(|piece| piece.alone).sum();
            let there: Ns = pieces().map(|piece| piece.end - piece.start).sum();
            assert_eq!(alone, job.compute, "{rule}: {}", job.job.name);
            assert!(there >= alone, "{rule}");
            match rule {
                Rule::Default | Rule::MpsPriority => assert!(there > alone, "{rule}: shared"),
                // One job's kernels at a time.
                Rule::Tally => assert_eq!(there, alone),
                _ => {}
            }
        }
    }
}

#[test]
fn wefts_accounts_hold() {
    let run = run(&fixture(300), &[service(), training(54)], Rule::WEFT);
    let snapshot = run.snapshot.expect("weft's");
    for client in &snapshot.clients {
        let (granted, issued) = (client.granted as i64, client.issued as i64);
        assert_eq!(granted, issued + client.left + client.revoked, "{client:?}");
    }
    // All issued work has run, except the work in flight, and counts as its solo time.
    let (batch, ran) = (&snapshot.clients[1], run.jobs[1].compute);
    assert!(ran > 100 * MS && batch.written_off == 0, "{batch:?}");
    assert!(
        ran <= batch.issued && batch.issued <= ran + batch.outstanding,
        "{ran} {batch:?}"
    );
}

#[test]
fn rewritten_kernels_are_corrected_once() {
    // Each takes 100 us, so it runs in 130 / 31.6, that is five, pieces of 130 us together.
    let run = run(&fixture(300), &[service(), training(54)], Rule::Tally);
    let batch = &run.jobs[1];
    let kernels = batch.compute / (130 * US);
    assert!(kernels > 100, "{kernels}");
    // One may not be complete.
    let own = batch.compute - batch.rewritten;
    assert!(own.abs_diff(kernels * 100 * US) <= 130 * US, "{own} of {kernels}");
}

#[test]
fn the_causes_of_what_is_not_filled_add_up() {
    let bench = fixture(300);
    let mut second = training(108);
    second.name = "second".into();
    let jobs = [service(), training(30), second];
    for rule in [Rule::WEFT, Rule::FIKIT, Rule::Default, Rule::Tally, Rule::Xsched(16)] {
        let figures = figures(&bench, &jobs, rule);
        assert!(figures.finished, "{rule}");
        for (spent, causes) in figures.spent.iter().zip(&figures.why.0) {
            let why: u64 = causes.iter().sum();
            assert_eq!(spent.there, spent.filled + why, "{rule}: {causes:?}");
        }
        assert!(figures.filled_ms <= figures.gap_ms, "{rule}");
        // The packer runs one kernel at a time: it has no figures here.
        assert!(figures.efficiency.is_nan() && figures.oracle_ms.is_nan(), "{rule}");
    }
}
