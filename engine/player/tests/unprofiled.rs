// SPDX-License-Identifier: MIT OR Apache-2.0
//! A background job without a profile: weft learns its kernel times while it runs.
//!
//! The service and the training are those of `scripts/bench readme` (`scripts/workloads/light`),
//! which plays them on the simulated GPU with the real library and broker. There the training
//! without a profile has 0.79 or more of its speed with one in all 28 cases (`docs/benchmarks.md`).
mod common;

use common::{MS, US, job, trace};
use weft_engine::{Mode, Settings};
use weft_kernel_id::KernelId;
use weft_player::{LaunchControl, MachineRun, MachineSetup, Ns, PlayedJob, ProfileSource};
use weft_scheduler::Config;
use weft_trace_format::{Call, Trace, TracedKernel};

/// A job of one small kernel.
fn small_job(name: &str, priority: u8, launches: usize, duration: Ns, think: Ns) -> PlayedJob {
    let trace = Trace {
        launch_cost: 2 * US,
        ..trace(name, (1, 64), launches, duration, think)
    };
    job(&trace, priority)
}

/// The service, which is profiled, with a training with kernels of this time.
fn play(mode: Mode, length: Ns, profile: ProfileSource) -> MachineRun {
    let between_waits = (40 * MS / length).clamp(10, 1_000) as usize;
    let training = PlayedJob {
        profile,
        ..small_job("training", 5, between_waits, length, 0)
    };
    let device = Settings {
        mode,
        ..Settings::default()
    };
    let control = LaunchControl::weft(Config::default(), &device, 1.0);
    let jobs = vec![small_job("service", 0, 24, 120 * US, 20 * MS), training];
    MachineSetup {
        requests: 100,
        ..MachineSetup::new(device, control, jobs, 1)
    }
    .play()
    .expect("jobs that can be played")
}

#[test]
fn a_training_without_a_profile_is_about_as_fast_as_with_one() {
    for (mode, length) in [
        (Mode::Mps, 40 * US),
        (Mode::Mps, 400 * US),
        (Mode::Mps, 4 * MS),
        (Mode::TimeSlice, 40 * US),
        (Mode::TimeSlice, 400 * US),
        (Mode::TimeSlice, 4 * MS),
    ] {
        let [with, without] = [ProfileSource::Solo, ProfileSource::Absent].map(|profile| {
            let run = play(mode, length, profile);
            run.jobs[1].compute as f64 / run.span as f64
        });
        assert!(with > 0.3, "{mode:?}, {} us: {with}", length / US);
        assert!(
            (0.7..1.3).contains(&(without / with)),
            "{mode:?}, {} us: {without} of the device, {with} with a profile",
            length / US
        );
    }
}

/// A launch that waited is booked with the charge that it waited for: the credit that the core
/// counts as left is the word's.
#[test]
fn the_books_hold_when_a_charge_changes_during_a_wait() {
    let run = play(Mode::Mps, 40 * US, ProfileSource::Absent);
    let snapshot = run.snapshot.expect("weft ran");
    let training = &snapshot.clients[1];
    assert_eq!(training.left, run.credit[1], "{training:?}");
}

/// Every second kernel of the training is longer than the service's gaps. The device must time it
/// too: charged as an unknown kernel, it went in every gap, and the service took 3.3 times as long.
#[test]
fn of_two_kernels_in_turn_both_are_timed() {
    let mut training = trace("training", (1, 64), 20, 3 * MS, 0);
    let long = KernelId::new(1, "long", [2, 1, 1], [64, 1, 1], 0);
    training.kernels.push(TracedKernel::of(long));
    for operation in training.steps[0].operations.iter_mut().skip(1).step_by(2) {
        if let Call::Launch { kernel, duration, .. } = &mut operation.call {
            (*kernel, *duration) = (1, 20 * MS);
        }
    }
    let training = PlayedJob {
        profile: ProfileSource::Absent,
        ..job(&training, 5)
    };
    let device = Settings {
        mode: Mode::Mps,
        ..Settings::default()
    };
    let control = LaunchControl::weft(Config::default(), &device, 1.0);
    let service = small_job("service", 0, 60, 80 * US, 12 * MS);
    let setup = MachineSetup {
        requests: 300,
        ..MachineSetup::new(device, control, vec![service, training], 1)
    };
    let run = setup.play().expect("jobs that can be played");
    let part = run.jobs[1].compute as f64 / run.span as f64;
    assert!(part < 0.2, "the training has {part} of the device");
}

/// Next to a busy service hardly a kernel of the job has the device for itself. A time may contain
/// a switch.
#[test]
fn what_is_reported_next_to_a_busy_service_is_true() {
    for (mode, think, length) in [
        (Mode::Mps, 0, 50 * US),
        (Mode::Mps, 0, 400 * US),
        (Mode::Mps, 500 * US, 4 * MS),
        (Mode::TimeSlice, 0, 50 * US),
        (Mode::TimeSlice, 500 * US, 400 * US),
        (Mode::TimeSlice, 500 * US, 4 * MS),
    ] {
        let batch = PlayedJob {
            at_least: Some(0.3),
            profile: ProfileSource::Absent,
            ..job(&trace("training", (16, 512), 10, length, 0), 5)
        };
        let device = Settings {
            mode,
            ..Settings::default()
        };
        let control = LaunchControl::weft(Config::default(), &device, 1.0);
        let service = job(&trace("service", (16, 512), 40, 50 * US, think), 0);
        let setup = MachineSetup::new(device, control, vec![service, batch], 1);
        let run = setup.play().expect("jobs that can be played");
        let client = &run.snapshot.as_ref().expect("weft ran").clients[1];
        let (tally, real) = (client.background, run.jobs[1].compute as f64);
        let least = tally.gpu.saturating_sub(tally.at_most) as f64;
        let most = tally.gpu.saturating_add(tally.uncounted) as f64;
        let case = format!("{mode:?}, {} us: {real} ns, {tally:?}", length / US);
        assert!(least < 1.3 * real && most > 0.9 * real, "{case}");
        let long = tally.over_bound as f64 / client.launches as f64;
        assert!(length > Config::default().delay_bound || long < 0.01, "{case}");
    }
}
