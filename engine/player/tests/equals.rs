// SPDX-License-Identifier: MIT OR Apache-2.0
//! Background jobs of equal priority under MPS have equal parts of the device.
mod common;

use common::{MS, US, job, trace};
use weft_engine::{Mode, Settings};
use weft_player::{LaunchControl, MachineSetup, Ns, PlayedJob};
use weft_scheduler::Config;
use weft_trace_format::Trace;

/// A job of one small kernel.
fn small_job(name: &str, priority: u8, launches: usize, duration: Ns, think: Ns) -> PlayedJob {
    let trace = Trace {
        launch_cost: 2 * US,
        ..trace(name, (1, 64), launches, duration, think)
    };
    job(&trace, priority)
}

/// Parts of the device that two equals have, next to a service.
fn parts(jobs: [PlayedJob; 2]) -> [f64; 2] {
    let device = Settings {
        mode: Mode::Mps,
        ..Settings::default()
    };
    let control = LaunchControl::weft(Config::default(), &device, 1.0);
    let [one, other] = jobs;
    let jobs = vec![small_job("service", 0, 24, 120 * US, 20 * MS), one, other];
    let run = MachineSetup {
        requests: 100,
        ..MachineSetup::new(device, control, jobs, 1)
    }
    .play()
    .expect("jobs that can be played");
    [1, 2].map(|job| run.jobs[job].compute as f64 / run.span as f64)
}

#[test]
fn equals_with_kernels_of_different_lengths_have_equal_parts() {
    for (short, long) in [(20 * US, 40 * US), (20 * US, 200 * US), (40 * US, 400 * US)] {
        let training = |length: Ns| {
            let between_waits = (40 * MS / length) as usize;
            small_job("training", 5, between_waits, length, 0)
        };
        let [one, other] = parts([training(short), training(long)]);
        let lengths = format!("{} and {} us", short / US, long / US);
        assert!((0.8..1.25).contains(&(one / other)), "{lengths}: {one} and {other}");
        assert!(one + other > 0.7, "{lengths}: {one} and {other}");
    }
}

#[test]
fn time_that_an_equal_cannot_use_is_the_others() {
    let slow = small_job("slow", 5, 1, 20 * US, 180 * US);
    let [slow, other] = parts([slow, small_job("training", 5, 200, 200 * US, 0)]);
    assert!(slow > 0.02 && other > 0.5, "{slow} and {other}");
}
