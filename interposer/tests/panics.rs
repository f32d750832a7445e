// SPDX-License-Identifier: MIT OR Apache-2.0
//! A panic inside weft does not reach the job. The call in which it happened still reaches the
//! driver; the panic is counted, and reported once.
//!
//! Debug builds of the library panic at the place that `WEFT_TEST_PANIC` names. So the panic is a
//! real one, raised below a hook that the C client called.
#![cfg(debug_assertions)]

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use support::{Said, run, stage, under_weft};
use weft_daemon::server::{Attached, Host, Incoming, Listener};
use weft_protocol::lane::{Mode, flags};

/// Number of times that the client makes each call.
const TIMES: i64 = 20;

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the client with a broker that the test plays, which gives it these orders.
fn worked(place: &str, mode: Mode, flags: u32) -> (Said, Attached) {
    let path = stage().folder.join(format!("{place}.sock"));
    let host = Host::make().unwrap();
    let mut listener = Listener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            run(under_weft(&stage().client)
                .arg("work")
                .arg(&stage().counting)
                .env("WEFT_SOCKET", &path)
                .env("WEFT_TEST_PANIC", place))
        });
        let begin = Instant::now();
        let broker = loop {
            assert!(begin.elapsed() < PATIENCE, "nobody came");
            if let Some(Incoming::Client(pending)) = listener.accept(Duration::from_millis(20)).unwrap() {
                let orders = |lane: &weft_protocol::lane::Lane| {
                    lane.orders.longest_wait.store(1_000_000, Ordering::Relaxed);
                    lane.orders.unknown_cost.store(200_000, Ordering::Relaxed);
                    lane.orders.credit.store(i64::MAX / 2, Ordering::Relaxed);
                    lane.orders.flags.store(flags, Ordering::Relaxed);
                    lane.orders.mode.store(mode as u32, Ordering::Release);
                };
                break pending.welcome(&host, 1, Vec::new(), orders).unwrap();
            }
        };
        (client.join().unwrap(), broker)
    })
}

/// Number of reports of weft's failure, and of the standard library's panics.
fn said(client: &Said) -> (usize, usize) {
    let lines = |text: &str| client.stderr.lines().filter(|line| line.contains(text)).count();
    (lines("a part of weft failed"), lines("panicked"))
}

#[test]
fn a_panic_in_any_part_of_a_call_is_not_the_jobs() {
    let cases = [
        ("foreground", Mode::Foreground, 0),
        ("background", Mode::Background, 0),
        ("mark", Mode::Background, 0),
        ("sample", Mode::Alone, flags::PROFILE),
        ("transfer", Mode::Background, 0),
        ("sync", Mode::Foreground, 0),
        ("sync", Mode::Background, 0),
    ];
    for (place, mode, flags) in cases {
        let (client, broker) = worked(place, mode, flags);
        assert!(client.success, "{place}: {client:#?}");
        assert_eq!(client.number("arrived"), TIMES, "{place}: {client:#?}");
        // Number of launches that had arrived at the last fill, plus one.
        assert_eq!(client.number("filled"), TIMES + 1, "{place}: {client:#?}");
        assert_eq!(client.number("wrong"), 0, "{place}: {client:#?}");
        assert!(client.number("waited") >= TIMES, "{place}: {client:#?}");
        assert_eq!(client.number("counter_troubles"), TIMES, "{place}: {client:#?}");
        let told = broker.lane.counters.troubles.load(Ordering::Relaxed);
        assert_eq!(told, TIMES as u64, "{place}: `weft status` shows it");
        assert_eq!(said(&client), (1, 0), "{place}: {client:#?}");
        assert!(
            client.stderr.contains(&format!("on purpose, in {place}")),
            "{client:#?}"
        );
    }
}

#[test]
fn a_panic_at_the_start_leaves_the_job_without_weft() {
    let client = run(under_weft(&stage().client)
        .arg("work")
        .arg(&stage().counting)
        .env("WEFT_TEST_PANIC", "begin"));
    assert!(client.success, "{client:#?}");
    assert_eq!(client.number("arrived"), TIMES);
    assert_eq!(client.number("wrong"), 0);
    assert_eq!(client.number("counter_troubles"), 1);
    assert_eq!(said(&client), (1, 0), "{client:#?}");
}
