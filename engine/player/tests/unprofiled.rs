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

/// Part of an MPS device that a training with these kernels in turn has next to a profiled service
/// of this many kernels of this time, with this time between requests.
fn part_next_to((launches, duration, think): (usize, Ns, Ns), kernels: &[Ns]) -> f64 {
    let mut training = trace("training", (1, 64), 5 * kernels.len(), kernels[0], 0);
    for number in 1..kernels.len() {
        let id = KernelId::new(1, "training", [number as u32 + 1, 1, 1], [64, 1, 1], 0);
        training.kernels.push(TracedKernel::of(id));
    }
    let mut at = 0;
    for operation in &mut training.steps[0].operations {
        if let Call::Launch { kernel, duration, .. } = &mut operation.call {
            (*kernel, *duration) = (at as u32, kernels[at]);
            at = (at + 1) % kernels.len();
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
    let service = small_job("service", 0, launches, duration, think);
    let setup = MachineSetup {
        requests: 300,
        ..MachineSetup::new(device, control, vec![service, training], 1)
    };
    let run = setup.play().expect("jobs that can be played");
    run.jobs[1].compute as f64 / run.span as f64
}

/// One kernel of the training is longer than the service's gaps, so the training has no more of the
/// device than its other kernels and the minimum share. Two kernels in turn: the device must time
/// both. Charged as an unknown kernel, the long one went in every gap, and had .81 of the device.
#[test]
fn of_two_kernels_in_turn_the_long_one_is_known() {
    let part = part_next_to((60, 80 * US, 12 * MS), &[3 * MS, 20 * MS]);
    assert!(part < 0.2, "the training has {part} of the device");
}

/// No time of the long kernel is certain: a part of each is the waiting service's. The shortest
/// time is the most that it takes. By its charge the minimum share came ten times too often, and
/// its job was let through as stuck while it ran. The training had .62 of the device.
#[test]
fn a_kernel_without_a_certain_time_has_the_minimum_share_only() {
    let kernels = [200 * US, 20 * MS, 200 * US, 3 * MS];
    let part = part_next_to((200, 20 * US, 1_500 * US), &kernels);
    assert!(part < 0.1, "the training has {part} of the device");
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
