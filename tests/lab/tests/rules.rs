//! Rules of other projects in the world: what they hold back, and what they must not.
#![forbid(unsafe_code)]

use std::sync::Arc;

use simgpu_engine::{Mode, Settings};
use weft_lab::compare::{CaseFigures, Fixture, KnownJob, Tuning};
use weft_lab::generate::{self, Builder};
use weft_lab::job::{Jitter, PlayedJob, Program};
use weft_lab::rule::Rule;
use weft_lab::world::{Hosts, LabMachine, MachineRun, MachineSetup};
use weft_lab::{MS, US};
use weft_trace_format::{Call, Direction, Operation, Trace};

fn job(name: &str, priority: u8, trace: &Trace) -> PlayedJob {
    PlayedJob {
        jitter: Jitter { device: 0.0, host: 0.0 },
        ..PlayedJob::new(name, priority, Arc::new(Program::of(trace, 0, usize::MAX)))
    }
}

/// Sixty kernels of 80 us, launched ahead.
fn service() -> PlayedJob {
    job("service", 0, &generate::service(60, 80 * US, 12 * MS))
}

/// A batch job whose kernels and host take about the same.
fn eager() -> PlayedJob {
    job("eager", 5, &generate::training(&[60 * US; 40], 60 * US, 500 * US))
}

fn device() -> Settings {
    Settings {
        mode: Mode::Mps,
        ..Settings::default()
    }
}

fn figures(jobs: &[PlayedJob], rule: Rule, tuning: Tuning) -> CaseFigures {
    let bench = Fixture {
        device: device(),
        hosts: Hosts::default(),
        seed: 1,
        requests: 60,
        warmup: 5,
        tuning,
    };
    let know = |(place, job): (usize, &PlayedJob)| bench.know(job, place, place == 0);
    let known: Vec<KnownJob> = jobs.iter().enumerate().map(know).collect();
    bench.compare(&known, rule)
}

fn run(jobs: Vec<PlayedJob>, rule: Rule, requests: u64) -> MachineRun {
    let device = device();
    LabMachine::new(MachineSetup {
        device,
        hosts: Hosts::default(),
        control: rule.control(&device),
        jobs: jobs.into_iter().map(|job| (job, None)).collect(),
        seed: 3,
        requests,
        least: 0,
        longest: 10_000 * MS,
    })
    .run()
}

#[test]
fn background_hosts_go_on_at_a_closed_gate_under_others_rules_too() {
    let jobs = [service(), eager()];
    // Of 40 kernels of 60 us with as much of the host before each, some come while the gate is
    // closed.
    let [off, on] = [Some(0), None].map(|queue| {
        let tuning = Tuning {
            queue,
            ..Tuning::default()
        };
        figures(&jobs, Rule::Count(4), tuning)
    });
    assert!(
        on.batch_sum > 1.03 * off.batch_sum,
        "{} {}",
        on.batch_sum,
        off.batch_sum
    );
}

#[test]
fn a_window_never_holds_the_foreground_jobs_host() {
    // The host launches sixty kernels and works for 4 ms, while they run. A host that waits for the
    // forty-fourth to end works too late.
    let mut builder = Builder::new("ahead");
    builder.step(2 * MS);
    for kernel in 0..60 {
        builder.launch(kernel, 0, 80 * US);
    }
    builder.launch(60, 4 * MS, 20 * US).sync();
    let ahead = job("ahead", 0, &builder.done());
    let slowest = |rule| {
        let run = run(vec![ahead.clone()], rule, 8);
        assert!(run.finished);
        let waits = run.jobs[0].waits.len();
        (*run.jobs[0].latencies.iter().max().expect("requests"), waits)
    };
    let (alone, _) = slowest(Rule::Default);
    let (with, waits) = slowest(Rule::Xsched(16));
    assert!(waits > 0, "the worker waits for its window");
    // Two sleeping threads are woken: the worker at the first call, the host at its wait.
    assert!(with <= alone + 2 * 65 * US + 20 * US, "{with} {alone}");
}

/// A step of four kernels, a copy of half a millisecond, an event behind it, and a kernel of
/// another stream that waits for that event.
fn across_streams() -> Trace {
    let mut builder = Builder::new("across");
    builder.step(MS);
    for kernel in 0..4 {
        builder.launch(kernel, 0, 50 * US);
    }
    builder.launch(9, 0, 20 * US).sync();
    let mut trace = builder.done();
    let operations = &mut trace.steps[0].operations;
    let behind = operations.split_off(4);
    let call = |call| Operation {
        call,
        thread: 0,
        handed_over: false,
        host_before: US,
    };
    operations.push(call(Call::Copy {
        direction: Direction::HostToDevice,
        bytes: 1 << 20,
        stream: 0,
        waits: false,
        duration: 500 * US,
    }));
    operations.push(call(Call::Record { event: 0, stream: 0 }));
    operations.push(call(Call::Wait { event: 0, stream: 1 }));
    operations.extend(behind);
    let Call::Launch { stream, .. } = &mut operations[7].call else {
        panic!("the last kernel");
    };
    *stream = 1;
    trace
}

#[test]
fn records_and_waits_stay_in_their_order_in_a_queue() {
    for rule in [Rule::Default, Rule::Xsched(4), Rule::Xsched(16)] {
        let run = run(vec![job("across", 0, &across_streams())], rule, 3);
        assert!(run.finished, "{rule}");
        for step in run.pieces.chunks(5) {
            // The copy begins when the fourth kernel has ended.
            let copied = step[3].end + 500 * US;
            assert!(step[4].start >= copied, "{rule}: {} {copied}", step[4].start);
            assert!(step[4].start <= copied + 10 * US, "{rule}: {} {copied}", step[4].start);
        }
    }
}
