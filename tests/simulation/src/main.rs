// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft-simulation`: the broker among clients that die, stall, lie and fork, for a given time.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use weft_scheduler::PolicyName;
use weft_simulation::campaign::{self, CampaignSums, FailedSeed};
use weft_simulation::{FaultScenario, Manner};

/// Runs random scenarios against the broker's scheduler in virtual time and checks invariants after
/// every event.
///
/// The last line is `N scenarios, N events, N failures`; the exit code is 1 if anything failed. A
/// failure prints its seed, the smallest scenario found that fails in the same way, and the last
/// events.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  weft-simulation --minutes 15                      a quarter of an hour, one thread, seeds from 1
  weft-simulation --minutes 120 --jobs 2 --seed 1000000
  weft-simulation --minutes 15 --scenarios 5000      seeds 1 to 5000, or as many of them as there is time for
  weft-simulation --seed 4711 --policy weft         one seed again
  weft-simulation --seed 4711 --verbose             with everything that happens, on stderr")]
struct CampaignOptions {
    /// Minutes to run; without it one seed is run
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// At most this number of scenarios, however much time is left
    #[arg(long, value_name = "N", requires = "minutes")]
    scenarios: Option<u64>,
    /// Threads
    #[arg(long, default_value_t = 1, value_name = "J")]
    jobs: usize,
    /// The first seed
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Only this policy: weft or fikit; otherwise each seed chooses
    #[arg(long, value_name = "P")]
    policy: Option<PolicyName>,
    /// Logs all events (of one seed)
    #[arg(long)]
    verbose: bool,
    /// Ends after this number of failures
    #[arg(long, default_value_t = 1, value_name = "N")]
    failures: u64,
}

/// Interval of progress reports.
const PERIOD: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let options = CampaignOptions::parse();
    let (sums, failures) = match options.minutes {
        None => single(&options),
        Some(minutes) => many(&options, Duration::from_secs_f64((minutes * 60.0).max(0.0))),
    };
    for (what, count) in &sums.counts {
        eprintln!("  {count:>12} {what}");
    }
    for failure in &failures {
        show(failure, options.policy);
    }
    println!(
        "{} scenarios, {} events, {} failures",
        sums.scenarios,
        sums.events,
        failures.len()
    );
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn single(options: &CampaignOptions) -> (CampaignSums, Vec<FailedSeed>) {
    let mut sums = CampaignSums::default();
    if options.verbose {
        let scenario = FaultScenario::of(options.seed, options.policy);
        eprint!("{scenario}");
        campaign::guarded(
            &scenario,
            Manner {
                log: true,
                verbose: true,
            },
        );
    }
    let failure = campaign::one(options.seed, options.policy, &mut sums).err();
    (sums, failure.map(|failure| *failure).into_iter().collect())
}

fn many(options: &CampaignOptions, time: Duration) -> (CampaignSums, Vec<FailedSeed>) {
    let begin = Instant::now();
    let next = AtomicU64::new(options.seed);
    let end = options
        .scenarios
        .map_or(u64::MAX, |count| options.seed.saturating_add(count));
    let stop = AtomicBool::new(false);
    let failures = Mutex::new(Vec::new());
    let sums = Mutex::new(CampaignSums::default());
    let lock = || sums.lock().unwrap_or_else(PoisonError::into_inner);
    let failed = || failures.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..options.jobs.max(1) {
            threads.push(scope.spawn(|| {
                while begin.elapsed() < time && !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let mut own = CampaignSums::default();
                    let result = campaign::one(seed, options.policy, &mut own);
                    lock().merge(&own);
                    if let Err(failure) = result {
                        eprintln!("seed {seed}: {}", failure.broken.what);
                        let mut failed = failed();
                        failed.push(*failure);
                        stop.fetch_or(failed.len() as u64 >= options.failures, Ordering::Relaxed);
                    }
                }
                stop.store(true, Ordering::Relaxed);
            }));
        }
        let mut told = Instant::now();
        while !threads.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(100));
            if told.elapsed() >= PERIOD {
                told = Instant::now();
                let sums = lock();
                eprintln!(
                    "{:.0} s: {} scenarios, {} events, {} failures",
                    begin.elapsed().as_secs_f64(),
                    sums.scenarios,
                    sums.events,
                    failed().len()
                );
            }
        }
    });
    (
        sums.into_inner().unwrap_or_else(PoisonError::into_inner),
        failures.into_inner().unwrap_or_else(PoisonError::into_inner),
    )
}

fn show(failure: &FailedSeed, policy: Option<PolicyName>) {
    println!("\n{}: {}", failure.broken.what, failure.broken.how);
    print!("{}", failure.scenario);
    for line in &failure.log {
        println!("{line}");
    }
    let policy = policy.map_or_else(String::new, |policy| format!(" --policy {policy}"));
    println!(
        "again: weft-simulation --seed {}{policy} --verbose",
        failure.scenario.seed
    );
}
