// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of stage 1, in played time.

use std::sync::atomic::Ordering;

use weft_protocol::lane::{Kind, Mode, NO_GAP, flags};

use super::super::session::Session;
use super::super::session::Synced;
use super::{Broker, LONG, attached, fake, kernel};
use crate::client::clock;
use crate::client::clock::played::{self, Played};

/// A launch whose kernel runs for `time` device ns.
fn run(session: &Session, hash: u64, stream: usize, time: u64) {
    let step = session.before_launch(kernel(hash, stream));
    fake::work(time);
    session.after_launch(step, stream, 0);
}

fn profiled() -> (&'static Session, Broker, Played) {
    let (session, broker) = attached(Mode::Alone);
    let time = played::begin();
    broker.lane.orders.flags.store(flags::PROFILE, Ordering::Release);
    fake::at_once(true);
    fake::live();
    (session, broker, time)
}

/// Steps of ten big kernels and a small one, after which the host pauses.
#[test]
fn every_identity_is_sampled_and_the_times_are_right() {
    const PAUSE_NS: u64 = 500_000;
    let (session, mut broker, _time) = profiled();
    for _step in 0..60 {
        for hash in 1..=10 {
            run(session, hash, 0xd000, 10_000 * hash);
        }
        run(session, 11, 0xd000, 3_000);
        fake::catch_up();
        session.synced(Synced::Context, 0);
        played::pass(PAUSE_NS);
    }
    session.synced(Synced::Context, 0);
    let samples: Vec<_> = broker
        .records()
        .into_iter()
        .filter(|record| record.kind == Kind::Sample)
        .collect();
    let of = |hash: u64| {
        samples
            .iter()
            .filter(move |record| record.kernel == hash)
            .collect::<Vec<_>>()
    };
    for hash in 1..=11u64 {
        let times: Vec<u64> = of(hash).iter().map(|record| record.a).collect();
        assert!(times.len() >= 4, "kernel {hash} has {} samples", times.len());
        let expected = if hash == 11 { 3_000 } else { 10_000 * hash };
        let near = times
            .iter()
            .filter(|time| time.abs_diff(expected) <= expected / 5 + 2_000)
            .count();
        assert!(
            near * 4 >= times.len() * 3,
            "kernel {hash}, expected {expected}: {times:?}"
        );
    }
    // The big gap after a step's last kernel was seen.
    let gaps = |hash: u64| {
        let known = of(hash).into_iter().filter(|record| record.b != NO_GAP);
        known.map(|record| record.b).collect::<Vec<u64>>()
    };
    let after_last = gaps(11);
    assert!(!after_last.is_empty());
    assert!(
        after_last.iter().all(|gap| *gap > PAUSE_NS - PAUSE_NS / 10),
        "{after_last:?}"
    );
    let mut within = gaps(3);
    within.sort_unstable();
    assert!(
        within.get(within.len() / 2).is_some_and(|gap| *gap < PAUSE_NS / 10),
        "{within:?}"
    );
}

/// The device has ended each kernel before the host records the event after it.
#[test]
fn times_that_a_slow_host_hides_have_an_error_that_covers_them() {
    const KERNEL_NS: u64 = 2_000;
    const HOST_NS: u64 = 30_000;
    let (session, mut broker, _time) = profiled();
    for hash in (1..=4).cycle().take(400) {
        let step = session.before_launch(kernel(hash, 0xd050));
        fake::work(KERNEL_NS);
        played::pass(HOST_NS);
        session.after_launch(step, 0xd050, 0);
        fake::catch_up();
        session.synced(Synced::Context, 0);
    }
    let records = broker.records();
    let of = |kind| records.iter().filter(move |record| record.kind == kind);
    assert!(of(Kind::SampleError).count() > 0);
    for sample in of(Kind::Sample) {
        let error = of(Kind::SampleError).find(|error| error.at == sample.at);
        let (over, short) = error.map_or((0, 0), |error| (error.a, error.b));
        let bounds = sample.a.saturating_sub(over)..=sample.a + short;
        assert!(bounds.contains(&KERNEL_NS), "{sample:?} {error:?}");
    }
}

#[test]
fn no_call_is_made_while_something_captures() {
    let (session, mut broker, _time) = profiled();
    session.completion.capture_began();
    let calls = fake::calls();
    for hash in 1..100 {
        run(session, hash, 0xd100, 1_000);
        session.synced(Synced::Context, 0);
    }
    assert_eq!(fake::calls(), calls);
    assert_eq!(broker.records(), []);
}

#[test]
fn a_context_that_ends_takes_its_events_along() {
    let (session, mut broker, _time) = profiled();
    for hash in 1..20 {
        run(session, hash, 0xd200, 1_000);
    }
    session.context_ended(0);
    let calls = fake::calls();
    session.synced(Synced::Context, 0);
    assert_eq!(fake::calls(), calls, "nothing of the old context is asked");
    broker.records();
    fake::set_context(0xc1);
    let deadline = clock::now() + LONG;
    while !broker.records().iter().any(|record| record.kind == Kind::Sample) {
        assert!(clock::now() < deadline, "no samples in the new context");
        for hash in 1..20 {
            run(session, hash, 0xd200, 50_000);
        }
        played::pass(300_000);
        session.synced(Synced::Context, 0);
    }
}

#[test]
fn every_launch_is_counted_once_alone_and_beside_others() {
    for mode in [Mode::Alone, Mode::Foreground] {
        let (session, mut broker, _time) = profiled();
        broker.order(mode);
        let mut counted = std::collections::HashMap::<u64, u64>::new();
        let mut others = 0;
        let mut read = |broker: &mut Broker| {
            for record in broker.records() {
                match record.kind {
                    Kind::Counted => *counted.entry(record.kernel).or_default() += record.a,
                    Kind::Launch | Kind::Idle => others += 1,
                    _ => {}
                }
            }
        };
        for step in 0..50u64 {
            for hash in 1..=10 {
                run(session, 0x100 * hash, 0xd600, 2_000);
            }
            run(session, 7 + step, 0xd600, 2_000);
            fake::catch_up();
            session.synced(Synced::Context, 0);
            if step % 9 == 0 {
                session.tell_launches();
            }
            read(&mut broker);
        }
        session.tell_launches();
        session.tell_launches();
        read(&mut broker);
        assert_eq!(counted.len(), 60, "{mode:?}");
        assert!(
            (1..=10).all(|hash| counted.get(&(0x100 * hash)) == Some(&50)),
            "{mode:?}: {counted:?}"
        );
        assert_eq!(counted.values().sum::<u64>(), 550);
        assert_eq!(others, if mode == Mode::Alone { 0 } else { 550 + 50 }, "{mode:?}");
    }
}

#[test]
fn a_device_that_never_gets_there_costs_a_bounded_number_of_events() {
    let (session, mut broker, _time) = profiled();
    fake::at_once(false);
    for round in 0..200 {
        for hash in 0..100 {
            run(session, 1 + round * 100 + hash, 0xd300, 1_000);
        }
        played::pass(100_000);
    }
    assert_eq!(broker.records(), []);
    assert!(fake::calls() < 200_000);
}

#[test]
fn a_job_that_serves_is_sampled_now_and_then() {
    for mode in [Mode::Foreground, Mode::Background] {
        let (session, mut broker, _time) = profiled();
        broker.order(mode);
        broker.grant(i64::MAX / 2);
        // Without the order nothing is sampled.
        broker.lane.orders.flags.store(0, Ordering::Release);
        for _ in 0..2_000 {
            run(session, 7, 0xd500, 20_000);
        }
        let samples = |broker: &mut Broker| {
            let records = broker.records().into_iter();
            records.filter(|record| record.kind == Kind::Sample).collect::<Vec<_>>()
        };
        assert_eq!(samples(&mut broker), [], "{mode:?}");
        broker.lane.orders.flags.store(flags::SAMPLE, Ordering::Release);
        let (begin, mut seen) = (clock::now(), Vec::new());
        let mut launches = 0;
        while seen.len() < 20 {
            assert!(clock::now() < begin + LONG, "{mode:?}: {} samples", seen.len());
            run(session, 7, 0xd500, 20_000);
            launches += 1;
            fake::catch_up();
            session.synced(Synced::Stream(0xd500), 0);
            if launches % 100 == 0 {
                seen.extend(samples(&mut broker));
            }
        }
        assert!(seen.len() * 3 < launches, "{mode:?}: {} of {launches}", seen.len());
        let times: Vec<u64> = seen.iter().map(|record| record.a).collect();
        assert!(
            times.iter().all(|time| (14_000..26_000).contains(time)),
            "{mode:?}: {times:?}"
        );
        assert_eq!(broker.lane.reports.waiting.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn the_only_launch_of_a_job_that_serves_is_a_sample_at_its_wait() {
    let (session, mut broker, _time) = profiled();
    broker.order(Mode::Background);
    broker.grant(i64::MAX / 2);
    broker.lane.orders.flags.store(flags::SAMPLE, Ordering::Release);
    run(session, 7, 0xd500, 60_000_000);
    fake::catch_up();
    session.synced(Synced::Stream(0xd500), 0);
    let records = broker.records().into_iter();
    let samples: Vec<_> = records.filter(|record| record.kind == Kind::Sample).collect();
    assert_eq!(samples.len(), 1);
    assert!(samples[0].a.abs_diff(60_000_000) < 6_000_000, "{samples:?}");
}

#[test]
fn a_kernel_that_waited_without_a_charge_is_sampled_next() {
    const WAITS: u64 = 20;
    let (session, mut broker, _time) = profiled();
    broker.order(Mode::Background);
    session.link.costs.set(7, 1_000);
    broker.lane.orders.flags.store(flags::SAMPLE, Ordering::Release);
    broker.grant(i64::MAX / 2);
    let one = |hash: u64| {
        let mut step = session.before_launch(kernel(hash, 0xd700));
        if step.waits() {
            step = session.deferred(kernel(hash, 0xd700));
        }
        fake::work(20_000);
        session.after_launch(step, 0xd700, 0);
        fake::catch_up();
        session.synced(Synced::Stream(0xd700), 0);
    };
    // Samples are rare after a while.
    (0..5_000).for_each(|_| one(7));
    broker.records();
    broker.lane.orders.credit.store(0, Ordering::Release);
    broker.lane.orders.longest_wait.store(2_000_000, Ordering::Relaxed);
    (0..WAITS).for_each(|_| one(8));
    assert_eq!(broker.lane.counters.waits_expired.load(Ordering::Relaxed), WAITS);
    let records = broker.records().into_iter();
    // Much of a launch's time may be that of a busy host.
    let timed = [Kind::Sample, Kind::Between];
    let sampled = records.filter(|record| timed.contains(&record.kind) && record.kernel == 8);
    assert!(sampled.count() >= 3);
}
