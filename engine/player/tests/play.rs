// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate as a user drives it: jobs that cannot be played, runs by time, ways of sharing.
mod common;

use common::{MS, US, job, trace};
use weft_engine::{Mode, Settings, SmLimits};
use weft_kernel_id::KernelId;
use weft_player::rule::MpsPriority;
use weft_player::{
    LaunchControl, MachineRun, MachineSetup, Ns, PROFILE_REQUESTS, PlayError, PlayedJob, ProfileSource, Program,
    solo_profile,
};
use weft_scheduler::Config;
use weft_trace_format::{Trace, TracedKernel};

/// Blocks and threads of a kernel that fills half of the device.
const SHAPE: (u32, u32) = (54, 1_024);

fn pair() -> Vec<PlayedJob> {
    let service = job(&trace("service", SHAPE, 20, 50 * US, 5 * MS), 0);
    vec![service, job(&trace("batch", SHAPE, 10, 200 * US, 0), 5)]
}

fn setup(jobs: Vec<PlayedJob>) -> MachineSetup {
    let setup = MachineSetup::new(Settings::default(), LaunchControl::Plain, jobs, 1);
    MachineSetup { requests: 50, ..setup }
}

fn refused(setup: MachineSetup) -> PlayError {
    setup.play().expect_err("no run")
}

#[test]
fn jobs_that_cannot_be_played_are_refused() {
    let one = |trace| refused(setup(vec![job(&trace, 0)]));
    let idle = trace("idle", SHAPE, 0, 0, MS);
    assert_eq!(one(idle), PlayError::NoWork("idle".into()));
    let mut empty = trace("empty", SHAPE, 1, MS, 0);
    empty.steps.clear();
    assert_eq!(one(empty), PlayError::NoWork("empty".into()));
    let mut timeless = trace("timeless", SHAPE, 1, 0, MS);
    timeless.launch_cost = 0;
    timeless.steps[0]
        .operations
        .iter_mut()
        .for_each(|op| op.host_before = 0);
    assert_eq!(one(timeless), PlayError::NoWork("timeless".into()));
    let endless = trace("endless", SHAPE, 2, Ns::MAX / 2, MS);
    assert_eq!(one(endless), PlayError::TooLong("endless".into()));
    assert_eq!(refused(setup(Vec::new())), PlayError::NoJobs);
    let mut jobs = pair();
    jobs[1].priority = 10;
    assert_eq!(refused(setup(jobs)), PlayError::Priority("batch".into(), 10));
    let nothing = MachineSetup {
        requests: 0,
        ..setup(pair())
    };
    assert_eq!(refused(nothing), PlayError::NoEnd);
    let mut unsound = trace("unsound", SHAPE, 1, MS, 0);
    unsound.kernels.clear();
    let error = Program::of(&unsound).expect_err("no kernel").to_string();
    assert_eq!(error, "trace \"unsound\": a launch of a kernel that is not listed");
}

#[test]
fn a_run_may_end_by_time() {
    let run = MachineSetup {
        requests: 0,
        least: 100 * MS,
        ..setup(pair())
    };
    let run = run.play().expect("a run");
    assert!(run.finished && (100 * MS..101 * MS).contains(&run.span), "{}", run.span);
    let cut = MachineSetup {
        requests: 1_000_000,
        longest: 100 * MS,
        ..setup(pair())
    };
    assert!(!cut.play().expect("a run").finished);
}

#[test]
fn a_profile_comes_from_a_solo_run_unless_there_is_one() {
    let device = Settings::default();
    let play = |profile: ProfileSource| -> MachineRun {
        let jobs = pair().into_iter().map(|job| PlayedJob {
            profile: profile.clone(),
            ..job
        });
        let device = Settings {
            mode: Mode::Mps,
            ..Settings::default()
        };
        let control = LaunchControl::weft(Config::default(), &device, 1.0);
        let run = MachineSetup {
            requests: 50,
            ..MachineSetup::new(device, control, jobs.collect(), 1)
        };
        run.play().expect("a run")
    };
    let batch = &pair()[1];
    let made = solo_profile(batch, 1, device, Default::default(), 1, PROFILE_REQUESTS).expect("a profile");
    let [(_, mean)] = made.mean_costs()[..] else {
        panic!("{made:?}: one kernel");
    };
    assert!((195 * US..205 * US).contains(&mean), "{mean}");
    let (solo, absent) = (play(ProfileSource::Solo), play(ProfileSource::Absent));
    assert_ne!(solo.jobs[0].latencies, absent.jobs[0].latencies);
    assert_eq!(solo.jobs[0].latencies, play(ProfileSource::Solo).jobs[0].latencies);
}

#[test]
fn jobs_share_as_the_device_lets_them() {
    let mean = |mode, control| {
        let device = Settings {
            mode,
            ..Settings::default()
        };
        let run = MachineSetup {
            requests: 50,
            ..MachineSetup::new(device, control, pair(), 1)
        };
        let run = run.play().expect("a run");
        run.jobs[0].latencies.iter().sum::<Ns>() / 50
    };
    let slices = mean(Mode::TimeSlice, LaunchControl::Plain);
    let turns = mean(Mode::Mps, LaunchControl::Plain);
    let priorities = mean(Mode::Mps, LaunchControl::Own(Box::new(MpsPriority)));
    // Each job's kernels fill half of the SMs.
    let shared = mean(Mode::MpsShared(SmLimits::A100_LIKE), LaunchControl::Plain);
    // Alone it takes a millisecond. By turns, each kernel of 50 us waits for one of 200 us.
    assert!(slices > 3 * MS / 2, "{slices}");
    assert!((4 * MS..6 * MS).contains(&turns), "{turns}");
    assert!(priorities < 3 * MS / 2, "{priorities}");
    assert!(shared < 3 * MS / 2, "{shared}");
}

#[test]
fn a_collective_passes_the_gate_and_leaves_the_device_to_the_service() {
    let played = |name: &str| {
        let mut jobs = pair();
        let batch = trace("batch", SHAPE, 4, 20 * MS, 0);
        let kernels = vec![TracedKernel::of(KernelId::new(1, name, [16, 1, 1], [512, 1, 1], 0))];
        jobs[1] = job(&Trace { kernels, ..batch }, 5);
        let device = Settings {
            mode: Mode::Mps,
            ..Settings::default()
        };
        let control = LaunchControl::weft(Config::default(), &device, 1.0);
        let setup = MachineSetup::new(device, control, jobs, 1);
        MachineSetup { requests: 500, ..setup }.play().expect("a run")
    };
    let longest = |run: &MachineRun| run.jobs[0].latencies.iter().copied().max().unwrap_or(0);
    // A kernel of 20 ms fits no gap of 5 ms. It is let through now and then, and delays requests.
    let plain = played("gemm");
    assert!(longest(&plain) > 5 * MS, "{}", longest(&plain));
    let collective = played("ncclDevKernel_AllReduce_Sum_f32_RING_LL");
    assert!(longest(&collective) < 2 * MS, "{}", longest(&collective));
    assert!(collective.jobs[1].latencies.len() > 2 * plain.jobs[1].latencies.len());
}

/// A service without gaps leaves a batch job its guaranteed part, whatever its kernels take.
#[test]
fn a_batch_job_has_at_least_its_part() {
    let part = |mode, kernel, at_least| {
        let device = Settings {
            mode,
            ..Settings::default()
        };
        let service = job(&trace("service", (16, 512), 40, 50 * US, 0), 0);
        let batch = PlayedJob {
            at_least,
            ..job(&trace("batch", (16, 512), 10, kernel, 0), 5)
        };
        let control = LaunchControl::weft(Config::default(), &device, 1.0);
        let run = MachineSetup {
            requests: 4_000,
            ..MachineSetup::new(device, control, vec![service, batch], 1)
        };
        let run = run.play().expect("a run");
        run.jobs[1].compute as f64 / run.span as f64
    };
    for mode in [Mode::TimeSlice, Mode::Mps] {
        for kernel in [50 * US, 400 * US, 4 * MS] {
            let (without, with) = (part(mode, kernel, None), part(mode, kernel, Some(0.3)));
            assert!(without < 0.05, "{mode:?}, {kernel}: {without}");
            assert!((0.24..0.32).contains(&with), "{mode:?}, {kernel}: {with}");
        }
    }
}

/// A batch job that is idle costs its equal nothing.
#[test]
fn an_idle_batch_job_takes_no_part() {
    let work = |mode, idle: bool| {
        let device = Settings {
            mode,
            ..Settings::default()
        };
        let service = job(&trace("service", (16, 512), 20, 50 * US, 3 * MS), 0);
        let mut jobs = vec![service, job(&trace("batch", (16, 512), 10, 40 * US, 0), 5)];
        if idle {
            jobs.push(job(&trace("idle", (16, 512), 10, 40 * US, 60_000 * MS), 5));
        }
        let control = LaunchControl::weft(Config::default(), &device, 1.0);
        let run = MachineSetup {
            requests: 500,
            ..MachineSetup::new(device, control, jobs, 1)
        };
        let run = run.play().expect("a run");
        run.jobs[1].compute as f64 / run.span as f64
    };
    for mode in [Mode::TimeSlice, Mode::Mps] {
        let (without, with) = (work(mode, false), work(mode, true));
        assert!(with > 0.99 * without, "{mode:?}: {without}, {with}");
    }
}

/// Batch jobs with equal parts have equal time, also if weft knows no kernel of theirs.
#[test]
fn equal_parts_are_equal() {
    for mode in [Mode::TimeSlice, Mode::Mps] {
        let device = Settings {
            mode,
            ..Settings::default()
        };
        let service = job(&trace("service", (16, 512), 40, 50 * US, 0), 0);
        let batch = |name| PlayedJob {
            at_least: Some(0.3),
            profile: ProfileSource::Absent,
            ..job(&trace(name, (16, 512), 50, 200 * US, 0), 5)
        };
        let control = LaunchControl::weft(Config::default(), &device, 1.0);
        let jobs = vec![service, batch("one"), batch("other")];
        let run = MachineSetup {
            requests: 2_000,
            ..MachineSetup::new(device, control, jobs, 1)
        };
        let run = run.play().expect("a run");
        let part = |at: usize| run.jobs[at].compute as f64 / run.span as f64;
        let (one, other) = (part(1), part(2));
        assert!(one > 0.2 && other > 0.2, "{mode:?}: {one}, {other}");
        assert!((one - other).abs() < 0.03, "{mode:?}: {one}, {other}");
    }
}
