//! Stage 1.

use std::sync::atomic::Ordering;

use weft_broker::protocol::lane::{Kind, Mode, NO_GAP, flags};

use super::super::state::Session;
use super::super::{Synced, clock};
use super::{Broker, attached, fake, kernel};

/// A launch whose kernel runs `time` on a device that was idle for `gap` before.
fn run(session: &Session, hash: u64, stream: usize, now: &mut u64, gap: u64, time: u64) {
    *now += gap;
    fake::set_time(*now);
    let step = session.before_launch(&kernel(hash, stream));
    *now += time;
    fake::set_time(*now);
    session.after_launch(step, 0);
}

fn profiled() -> (&'static Session, Broker) {
    let (session, broker) = attached(Mode::Alone);
    broker.lane.orders.flags.store(flags::PROFILE, Ordering::Release);
    fake::at_once(true);
    (session, broker)
}

fn spin(ns: u64) {
    let begin = clock::now();
    while clock::now() - begin < ns {
        std::hint::spin_loop();
    }
}

#[test]
fn every_identity_is_sampled_and_the_times_are_right() {
    let (session, mut broker) = profiled();
    let mut now = 1_000_000;
    for _step in 0..40 {
        // Ten big kernels in a row, then a small one, then the host thinks.
        for hash in 1..=10 {
            run(session, hash, 0xd000, &mut now, 0, 100_000 * hash);
        }
        run(session, 11, 0xd000, &mut now, 0, 30_000);
        session.synced(Synced::Context);
        now += 5_000_000;
        spin(300_000);
    }
    session.synced(Synced::Context);
    let samples: Vec<_> = broker
        .records()
        .into_iter()
        .filter(|record| record.kind == Kind::Sample)
        .collect();
    for hash in 1..=11u64 {
        let times: Vec<u64> = samples
            .iter()
            .filter(|record| record.kernel == hash)
            .map(|record| record.a)
            .collect();
        assert!(times.len() >= 4, "kernel {hash} has {} samples", times.len());
        let expected = if hash == 11 { 30_000 } else { 100_000 * hash };
        let near = times
            .iter()
            .filter(|time| time.abs_diff(expected) <= expected / 5 + 2_000)
            .count();
        assert!(near * 4 >= times.len() * 3, "kernel {hash}: {times:?}");
    }
    // After the last kernel of a step comes the big gap, and it was seen.
    let gaps = |hash: u64| {
        let of = samples
            .iter()
            .filter(move |record| record.kernel == hash && record.b != NO_GAP);
        of.map(|record| record.b).collect::<Vec<u64>>()
    };
    assert!(
        gaps(11).iter().any(|gap| gap.abs_diff(5_000_000) < 500_000),
        "{:?}",
        gaps(11)
    );
    assert!(gaps(3).iter().all(|gap| *gap < 500_000), "{:?}", gaps(3));
}

#[test]
fn no_call_is_made_while_something_captures() {
    let (session, mut broker) = profiled();
    session.captures.store(1, Ordering::Release);
    let calls = fake::calls();
    let mut now = 0;
    for hash in 1..100 {
        run(session, hash, 0xd100, &mut now, 0, 1_000);
        session.synced(Synced::Context);
    }
    assert_eq!(fake::calls(), calls);
    assert_eq!(broker.records(), []);
}

#[test]
fn a_context_that_ends_takes_its_events_along() {
    let (session, mut broker) = profiled();
    let mut now = 0;
    for hash in 1..20 {
        run(session, hash, 0xd200, &mut now, 0, 1_000);
    }
    session.context_ending();
    let calls = fake::calls();
    session.synced(Synced::Context);
    assert_eq!(fake::calls(), calls, "nothing of the old context is asked");
    broker.records();
    fake::set_context(0xc1);
    for _ in 0..20 {
        for hash in 1..20 {
            run(session, hash, 0xd200, &mut now, 0, 50_000);
        }
        spin(300_000);
        session.synced(Synced::Context);
    }
    assert!(broker.records().iter().any(|record| record.kind == Kind::Sample));
}

#[test]
fn a_device_that_never_gets_there_costs_a_bounded_number_of_events() {
    let (session, mut broker) = profiled();
    fake::at_once(false);
    let mut now = 0;
    for round in 0..200 {
        for hash in 0..100 {
            run(session, 1 + round * 100 + hash, 0xd300, &mut now, 0, 1_000);
        }
        spin(100_000);
    }
    assert_eq!(broker.records(), []);
    assert!(fake::calls() < 200_000);
}
