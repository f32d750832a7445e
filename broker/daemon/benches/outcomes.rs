// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cost of outcomes and metrics on the scheduler's thread, at 1,000 launches a millisecond.
//!
//! ```console
//! $ cargo bench -p weft-daemon --bench outcomes
//! ```
//!
//! The daemon's own scheduler reads real lanes in virtual time. The benchmark plays seconds with
//! two snapshots and seconds without, in turns: the outcome thread takes one snapshot each second,
//! and a scrape of the metrics takes another. It reports processor time of the scheduler's thread:
//! for a second without snapshots, for the snapshots, and for the tallies of each launch. It exits
//! with 1 if snapshots and tallies take 1 % or more of the thread's time. It also reports the cost
//! of metrics on their own thread. The history's thread writes a row when a job ends, without work
//! on the scheduler's thread.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weft_api::outcome::Outcome;
use weft_api::status::{BrokerStatus, ClientStatus, DeviceStatus, Status};
use weft_daemon::metrics::{MetricsAudience, MetricsCache, MetricsFormat};
use weft_daemon::test_driver::{FakeClient, FakeClients, TestDriver};
use weft_protocol::lane::{Kind, LaneRecord};
use weft_protocol::transport::map::SharedLane;
use weft_scheduler::{Client, Config, RoleTally};

/// Virtual time, ns.
static NOW: AtomicU64 = AtomicU64::new(1_000_000_000);

/// Jobs: a foreground job and background jobs.
const CLIENTS: usize = 8;

/// Virtual time between two iterations of the scheduler, ns: about the length of its naps.
const STEP_NS: u64 = 50_000;

/// Launches in each step: 1,000 a millisecond.
const LAUNCHES: usize = 50;

/// Iterations of the scheduler in one call of [`play`].
const ITERATIONS: usize = 20_000;

/// Rounds of each arm.
const ROUNDS: usize = 15;

fn now() -> u64 {
    NOW.load(Ordering::Relaxed)
}

/// Processor time of this thread, ns.
fn used() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn launch(lane: &SharedLane, kernel: u64, at: u64) {
    lane.record(LaneRecord {
        kind: Kind::Launch,
        thread: 1,
        at,
        kernel,
        a: 900,
        b: 0,
    });
}

/// Plays some iterations; returns the scheduler's processor time, ns.
fn play(driver: &mut TestDriver, lanes: &[std::sync::Arc<SharedLane>], iterations: usize) -> u64 {
    let mut took = 0;
    for step in 0..iterations {
        let begin = NOW.fetch_add(STEP_NS, Ordering::Relaxed);
        for at in 0..LAUNCHES {
            // Half of the launches are the foreground job's.
            let lane = if at % 2 == 0 { 0 } else { 1 + at / 2 % (lanes.len() - 1) };
            if let Some(lane) = lanes.get(lane) {
                launch(lane, 1 + (at % 16) as u64, begin + at as u64);
            }
        }
        if step % 20 == 0
            && let Some(first) = lanes.first()
        {
            first.become_idle(begin + STEP_NS - 1);
        }
        let before = used();
        black_box(driver.turn());
        took += used() - before;
    }
    took
}

/// Processor time of a snapshot, ns.
fn look(driver: &mut TestDriver, clients: &FakeClients) -> u64 {
    let answer = clients.look();
    let before = used();
    driver.turn();
    let took = used() - before;
    let views = answer.try_recv().expect("a look was taken");
    assert!(!views.is_empty(), "no device was looked at");
    took
}

/// Processor time to make a scrape's text from the status, ns: it is spent on another thread.
fn scrape(driver: &TestDriver) -> u64 {
    let client = |number| ClientStatus {
        client: number,
        command: "python train.py".to_string(),
        outcome: Some(Outcome::default()),
        ..ClientStatus::default()
    };
    let read = || Status {
        schema: weft_api::status::SCHEMA,
        broker: BrokerStatus {
            devices: vec![DeviceStatus {
                core: serde_json::to_value(driver.core().snapshot()).unwrap_or_default(),
                ..DeviceStatus::default()
            }],
            ..BrokerStatus::default()
        },
        clients: (1..=CLIENTS as u64).map(client).collect(),
        ended: Vec::new(),
        warnings: Vec::new(),
    };
    let before = used();
    let text = MetricsCache::default().text(MetricsFormat::OpenMetrics, MetricsAudience::Owner, read);
    let took = used() - before;
    assert_eq!(text.matches("weft_job_info{").count(), CLIENTS);
    took
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// Mean processor time of a call for one launch, ps.
fn each(mut call: impl FnMut(u64, u64)) -> u64 {
    const LAUNCHES_TIMED: u64 = (u32::MAX >> 12) as u64;
    let before = used();
    for kernel in 0..LAUNCHES_TIMED {
        call(black_box(kernel % 16), black_box(900 + kernel % 7));
    }
    (used() - before) * 1_000 / LAUNCHES_TIMED
}

/// Time of a launch's tally, ns: the median time of a loop with it minus that of a loop without it.
fn tally() -> f64 {
    let (mut tally, mut nothing) = (RoleTally::default(), RoleTally::default());
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(each(|kernel, time| {
            black_box(&mut tally).launched(kernel, time, black_box(500_000));
        }));
        without.push(each(|_, _| {
            black_box(&mut nothing);
            black_box(500_000);
        }));
    }
    median(with).saturating_sub(median(without)) as f64 / 1e3
}

fn main() {
    let config = Config::default();
    let (mut driver, clients): (TestDriver, FakeClients) =
        TestDriver::new(config, false, now, Box::new(|_| {})).expect("shared memory");
    let lanes: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = FakeClient {
                priority: if number == 0 { 0 } else { 5 },
                longest_wait: Duration::from_secs(1),
                ..FakeClient::default()
            };
            let (_, lane): (Client, _) = clients.attach(client).expect("attached");
            lane
        })
        .collect();
    driver.turn();
    play(&mut driver, &lanes, ITERATIONS);
    let (mut without, mut outcomes, mut metrics, mut texts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.push(play(&mut driver, &lanes, ITERATIONS));
        play(&mut driver, &lanes, ITERATIONS / 2);
        metrics.push(look(&mut driver, &clients));
        play(&mut driver, &lanes, ITERATIONS / 2);
        outcomes.push(look(&mut driver, &clients));
        texts.push(scrape(&driver));
    }
    let [second, outcomes, metrics, texts] = [without, outcomes, metrics, texts].map(median);
    let launches = (ITERATIONS * LAUNCHES) as u64;
    // Each launch is tallied once, by the core or by its policy.
    let a_launch = tally();
    let tallies = a_launch * launches as f64;
    let part = |ns: f64| 100.0 * ns / second as f64;
    println!("{CLIENTS} jobs, 1,000 launches a ms, medians of {ROUNDS} rounds, processor time:");
    println!(
        "  scheduler, a second:    {:8.1} ms ({:.0} ns a launch)",
        second as f64 / 1e6,
        second as f64 / launches as f64
    );
    for (what, look) in [("outcomes' look:     ", outcomes), ("a scrape's look:    ", metrics)] {
        println!("  {what}    {:8.3} ms ({:.3} %)", look as f64 / 1e6, part(look as f64));
    }
    println!(
        "  tallies of its launches:{:8.3} ms ({:.3} %; {a_launch:.1} ns a launch)",
        tallies / 1e6,
        part(tallies)
    );
    let all = part((outcomes + metrics) as f64 + tallies);
    println!("  in all:                            {all:.3} %");
    println!("  a scrape's text, on another thread: {:.3} ms", texts as f64 / 1e6);
    if all >= 1.0 {
        println!("missed: outcomes and metrics take 1 % or more of the scheduler's time");
        std::process::exit(1);
    }
}
