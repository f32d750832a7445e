// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules of other projects in the world: the launches that they hold back, and those that they must
//! not.
#![forbid(unsafe_code)]

use std::sync::Arc;

use weft_engine::{Mode, Settings};
use weft_lab::compare::{CaseFigures, Fixture, KnownJob, Tuning};
use weft_lab::generate::{self, Builder};
use weft_lab::rule::Rule;
use weft_lab::{MS, US};
use weft_player::{Hosts, Jitter, MachineRun, MachineSetup, PlayedJob, ProfileSource, Program};
use weft_trace_format::{Call, Direction, Operation, Trace};

fn job(name: &str, priority: u8, trace: &Trace) -> PlayedJob {
    PlayedJob {
        jitter: Jitter { device: 0.0, host: 0.0 },
        ..PlayedJob::new(name, priority, Arc::new(Program::of(trace).expect("a sound trace")))
    }
}

/// Sixty kernels of 80 us, launched ahead.
fn service() -> PlayedJob {
    job("service", 0, &generate::service(60, 80 * US, 12 * MS))
}

/// A batch job whose kernels and host take about the same time.
fn eager() -> PlayedJob {
    job("eager", 5, &generate::training(&[60 * US; 40], 60 * US, 500 * US))
}

fn device() -> Settings {
    Settings {
        mode: Mode::Mps,
        ..Settings::default()
    }
}

fn fixture(tuning: Tuning) -> Fixture {
    Fixture {
        device: device(),
        hosts: Hosts::default(),
        seed: 1,
        requests: 60,
        warmup: 5,
        tuning,
    }
}

fn figures(jobs: &[PlayedJob], rule: Rule, tuning: Tuning) -> CaseFigures {
    let bench = fixture(tuning);
    let know = |(place, job): (usize, &PlayedJob)| bench.know(job, place, place == 0);
    let known: Vec<KnownJob> = jobs.iter().enumerate().map(know).collect();
    bench.compare(&known, rule)
}

fn run(jobs: Vec<PlayedJob>, rule: Rule, requests: u64) -> MachineRun {
    let device = device();
    MachineSetup {
        requests,
        longest: 10_000 * MS,
        ..MachineSetup::new(device, rule.control(&device, 1.0), jobs, 3)
    }
    .play()
    .expect("jobs that can be played")
}

#[test]
fn background_hosts_go_on_at_a_closed_gate_under_others_rules_too() {
    let jobs = [service(), eager()];
    // Of 40 kernels of 60 us with the same host time before each, some come while the gate is
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

/// A batch job of kernels of 30 to 400 us, launched ahead.
fn training() -> PlayedJob {
    let times = [30 * US, 120 * US, 400 * US, 60 * US].repeat(10);
    let mut trace = generate::training(&times, 2 * US, 500 * US);
    for kernel in &mut trace.kernels {
        kernel.id.grid = [1_000, 1, 1];
    }
    job("training", 5, &trace)
}

/// The longest time that a kernel of the service could have run and did not, us; slowdown; batch.
fn felt(rule: Rule) -> (f64, f64, f64) {
    let figures = figures(&[service(), training()], rule, Tuning::default());
    (figures.direct_worst_us, figures.slowdown(), figures.batch_sum)
}

#[test]
fn device_priorities_cost_the_rest_of_one_kernel() {
    let (worst, slowdown, batch) = felt(Rule::MpsPriority);
    let (_, plain, plain_batch) = felt(Rule::Default);
    assert!(worst <= 400.0, "{worst}");
    assert!(slowdown < 1.15 && plain > 1.4, "{slowdown} {plain}");
    // No job is gated: the batch job loses only the service's time.
    assert!(batch > 0.6 && batch <= plain_batch, "{batch} {plain_batch}");
    let run = run(vec![service(), training()], Rule::MpsPriority, 5);
    assert!(run.jobs.iter().all(|job| job.waits.is_empty()));
}

#[test]
fn one_at_a_time_is_felt_less_than_four() {
    let (one, one_slowdown, one_batch) = felt(Rule::One);
    let (_, four_slowdown, four_batch) = felt(Rule::Count(4));
    // The rest of the longest kernel.
    assert!(one <= 400.0, "{one}");
    assert!(one_slowdown < four_slowdown, "{one_slowdown} {four_slowdown}");
    // One after another, with the latency of a launch between them.
    assert!(one_batch < four_batch, "{one_batch} {four_batch}");
}

/// Twenty kernels of 60 us with a wait after each, and 200 us of host time before each.
fn chatty() -> PlayedJob {
    job("chatty", 0, &generate::chatty(20, 60 * US, 200 * US, 5 * MS))
}

#[test]
fn reef_and_orion_leave_a_request_to_the_service() {
    // Kernels on the device or on their way when the request came: REEF allows two. Orion's are
    // bounded by their time, 2.5 % of a request of 5 ms, which one kernel may exceed. All kernels
    // are of one class.
    for (rule, most) in [(Rule::Reef, 2), (Rule::Orion, 4)] {
        let run = run(vec![chatty(), training()], rule, 40);
        assert!(run.finished);
        for (arrived, latency) in run.jobs[0].arrivals.iter().zip(&run.jobs[0].latencies) {
            let within = |at| at > *arrived && at < arrived + latency;
            let begun = run.pieces.iter().filter(|piece| piece.job == 1 && within(piece.start));
            let begun = begun.count();
            assert!(begun <= most, "{rule}: {begun} from {arrived} on");
        }
        assert!(run.jobs[1].compute > 20 * MS, "{rule}: it runs between requests");
    }
}

#[test]
fn orion_fills_between_requests_and_its_depth_bounds_what_is_felt() {
    let (worst, slowdown, batch) = felt(Rule::Orion);
    // One kernel may exceed 2.5 % of a request of 5 ms.
    assert!(worst <= 130.0 + 400.0, "{worst}");
    assert!(slowdown < 1.15, "{slowdown}");
    assert!(batch > 0.3, "{batch}");
}

#[test]
fn tally_stops_kernels_and_pays_for_it() {
    let (worst, slowdown, batch) = felt(Rule::Tally);
    let (_, _, one_batch) = felt(Rule::One);
    // The pieces end while the service's input is copied.
    assert!(worst <= 1.0 && slowdown <= 1.001, "{worst} {slowdown}");
    // Without a copy the service waits for a piece, or for a kernel below the bound.
    let chatty = figures(&[chatty(), training()], Rule::Tally, Tuning::default());
    let worst = chatty.direct_worst_us;
    assert!(worst > 10.0 && worst <= 32.0, "{worst}");
    assert!(batch < one_batch, "{batch} {one_batch}");
    let job = |profile| {
        let training = PlayedJob { profile, ..training() };
        let mut run = run(vec![service(), training], Rule::Tally, 20);
        run.jobs.remove(1)
    };
    // 0.3 of the time of the cut kernels: all but those of 30 us.
    let with = job(ProfileSource::Solo);
    let part = with.rewritten as f64 / with.compute as f64;
    assert!((0.2..0.231).contains(&part), "{part}");
    assert_eq!(
        job(ProfileSource::Absent).rewritten,
        0,
        "without a profile nothing is cut"
    );
}
