// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of reading lanes, and of untrusted content.

use super::*;
use crate::clients::registry::NewEntry;
use weft_protocol::lane::FOUND_IDLE;
use weft_protocol::transport::map::SharedLane;

fn watch() -> LaneWatch {
    LaneWatch::new(Arc::new(Entry::new(NewEntry {
        client: 1,
        pid: 2,
        command: String::new(),
        profile: None,
        loaded: None,
        trouble: None,
        profiling: true,
        priority: 5,
        lane: Arc::new(SharedLane::lane().expect("a lane")),
    })))
}

type Drained = (Result<LaneRead, LaneFault>, Vec<(Ns, Event)>, Vec<Observation>);

fn drain(watch: &mut LaneWatch, now: Ns) -> Drained {
    let (mut events, mut seen) = (Vec::new(), Vec::new());
    let found = watch.drain(now, &mut events, &mut seen, &mut Trace::none());
    (found, events, seen)
}

fn record(kind: Kind, at: Ns) -> LaneRecord {
    LaneRecord {
        kind,
        thread: 1,
        at,
        kernel: 42,
        a: 100,
        b: NO_GAP,
    }
}

#[test]
fn records_become_events_in_their_order() {
    let mut watch = watch();
    let lane = Arc::clone(&watch.entry.lane);
    lane.record(record(Kind::Launch, 10));
    lane.record(record(Kind::Sample, 11));
    lane.become_idle(12);
    lane.record(record(Kind::Counted, 13));
    let (found, events, seen) = drain(&mut watch, 20);
    assert_eq!(found.expect("honest").records, 4);
    assert!(matches!(
        events[0].1,
        Event::Launched {
            kernel: 42,
            cost: 100,
            at: 10,
            ..
        }
    ));
    assert!(matches!(
        events[1].1,
        Event::Sampled {
            kernel: 42,
            time: 100,
            ..
        }
    ));
    assert!(matches!(events[2].1, Event::Idle(Client(1), 12)));
    assert_eq!(events.len(), 3);
    assert_eq!(
        seen,
        [Observation::Sample(42, 100, None), Observation::Launches(42, 100)]
    );
    assert!(!drain(&mut watch, 21).0.expect("honest").news);
    lane.become_idle(22 | FOUND_IDLE);
    let (_, events, _) = drain(&mut watch, 23);
    assert!(matches!(events[0].1, Event::FoundIdle(Client(1), 22)));
}

#[test]
fn a_wait_for_a_part_has_its_begin_and_what_it_covers() {
    let mut watch = watch();
    let lane = Arc::clone(&watch.entry.lane);
    for (covers, waited) in [(10, 15), (90, u64::MAX)] {
        lane.record(LaneRecord {
            kernel: covers,
            a: waited,
            ..record(Kind::PartialWait, 40)
        });
    }
    let (_, events, _) = drain(&mut watch, 50);
    let part = |index: usize| match events[index].1 {
        Event::PartialWait { covers, since, at, .. } => (covers, since, at),
        _ => panic!("{events:?}"),
    };
    assert_eq!((part(0), part(1)), ((10, 25, 40), (40, 0, 40)));
}

#[test]
fn of_a_lane_that_was_written_too_fast_the_newest_are_read() {
    let mut watch = watch();
    let lane = Arc::clone(&watch.entry.lane);
    let now = 10 * RECORDS as Ns;
    (0..2 * RECORDS as Ns).for_each(|at| lane.record(record(Kind::Launch, at)));
    let (found, events, _) = drain(&mut watch, now);
    let records = found.expect("honest").records;
    assert!(records <= OF_A_FAST_LANE + 1, "{records}");
    assert_eq!(events.last().expect("some").0, 2 * RECORDS as Ns - 1);
    let lost = watch.entry.figures.lost.load(Ordering::Relaxed);
    assert_eq!(lost as usize + records, 2 * RECORDS);
    // All records are read from a lane that is read in time.
    (0..RECORDS as Ns - 1).for_each(|at| lane.record(record(Kind::Launch, now + at)));
    assert_eq!(drain(&mut watch, 2 * now).0.expect("honest").records, RECORDS - 1);
}

#[test]
fn times_out_of_this_world_are_brought_back() {
    let mut watch = watch();
    let lane = Arc::clone(&watch.entry.lane);
    let now = 10 * OLDEST_RECORD_NS;
    for at in [0, u64::MAX, now] {
        lane.record(record(Kind::Launch, at));
    }
    let (_, events, _) = drain(&mut watch, now);
    let times: Vec<Ns> = events.iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [now - OLDEST_RECORD_NS, now, now]);
}

#[test]
fn a_wait_is_told_when_it_begins_changes_and_ends() {
    let mut watch = watch();
    let lane = Arc::clone(&watch.entry.lane);
    lane.reports.wanted_kernel.store(7, Ordering::Relaxed);
    lane.reports.wanted_cost.store(u64::MAX, Ordering::Relaxed);
    lane.reports.waiting.store(1, Ordering::Release);
    let (found, events, _) = drain(&mut watch, 5);
    assert!(found.expect("honest").waits);
    // The event with the rest of its credit is first.
    assert!(matches!(events[0].1, Event::Holds { left: 0, .. }));
    assert!(matches!(events[1].1, Event::Waits { kernel: 7, .. }));
    assert!(drain(&mut watch, 6).1.is_empty());
    lane.reports.wanted_kernel.store(8, Ordering::Relaxed);
    assert!(matches!(drain(&mut watch, 7).1[1].1, Event::Waits { kernel: 8, .. }));
    // The job passed and waits again for the same kernel, all between two reads.
    lane.reports.waiting_since.store(8, Ordering::Relaxed);
    assert!(matches!(
        drain(&mut watch, 8).1[1].1,
        Event::Waits {
            kernel: 8,
            since: 8,
            ..
        }
    ));
    lane.reports.waiting.store(0, Ordering::Release);
    assert!(matches!(drain(&mut watch, 8).1[0].1, Event::Passed(Client(1))));
}

#[test]
fn a_wait_that_goes_on_is_told_again() {
    let mut watch = watch();
    let lane = Arc::clone(&watch.entry.lane);
    lane.reports.waiting.store(1, Ordering::Release);
    let told = |watch: &mut LaneWatch, now: Ns| {
        let events = drain(watch, now).1;
        events
            .iter()
            .filter(|(_, event)| matches!(event, Event::Waits { .. }))
            .count()
    };
    assert_eq!(told(&mut watch, 5), 1);
    assert_eq!(told(&mut watch, TOLD_AGAIN_NS), 0, "it is known");
    assert_eq!(told(&mut watch, 5 + TOLD_AGAIN_NS), 1);
    assert_eq!(told(&mut watch, 6 + TOLD_AGAIN_NS), 0);
    lane.reports.waiting.store(0, Ordering::Release);
    assert!(matches!(
        drain(&mut watch, 7 + TOLD_AGAIN_NS).1[..],
        [(_, Event::Passed(_))]
    ));
    assert_eq!(told(&mut watch, 7 + 9 * TOLD_AGAIN_NS), 0);
}

#[test]
fn a_lane_that_lies_is_found_out() {
    let mut one = watch();
    one.entry.lane.magic.store(1, Ordering::Relaxed);
    assert_eq!(drain(&mut one, 1).0, Err(LaneFault::Magic));
    let mut other = watch();
    other.entry.lane.version.store(77, Ordering::Relaxed);
    assert_eq!(drain(&mut other, 1).0, Err(LaneFault::Version(77)));
}

#[test]
fn credit_given_is_credit_left_and_taken_back() {
    let watch = watch();
    let orders = &watch.entry.lane.orders;
    assert_eq!(watch.grant(500, Some(3)), None);
    assert_eq!(watch.grant(200, Some(3)), None);
    assert_eq!(orders.credit.load(Ordering::Relaxed), 700);
    // Other launch epochs: the rest of the old credit is not kept.
    assert_eq!(watch.grant(100, Some(4)), Some(700));
    assert_eq!(orders.credit.load(Ordering::Relaxed), 100);
    assert_eq!(orders.epochs.load(Ordering::Relaxed), 4);
    assert_eq!(watch.grant(50, None), Some(100));
    assert_eq!(
        orders.flags.load(Ordering::Relaxed) & lane::flags::CREDIT_BOUND_TO_EPOCHS,
        0
    );
    assert_eq!(watch.revoke(), 50);
    let figures = &watch.entry.figures;
    let granted = figures.granted.load(Ordering::Relaxed) as i64;
    assert_eq!(granted, figures.revoked.load(Ordering::Relaxed) as i64);
}

#[test]
fn a_change_of_mode_ends_credit_and_rings() {
    let mut watch = watch();
    watch.tell_mode(Mode::Background);
    watch.grant(500, None);
    let bell = watch.entry.lane.orders.bell.load(Ordering::Relaxed);
    watch.tell_mode(Mode::Alone);
    assert_eq!(watch.entry.lane.orders.credit.load(Ordering::Relaxed), 0);
    assert!(watch.entry.lane.orders.bell.load(Ordering::Relaxed) > bell);
}

#[test]
fn charges_go_one_message_at_a_time_and_wait_for_no_client() {
    let mut watch = watch();
    let lane = Arc::clone(&watch.entry.lane);
    let (sender, client) = ipc_channel::ipc::channel().expect("a channel");
    watch.entry.speaks_by(crate::server::ToTheClient::Ipc(sender));
    watch.charge(0, 500_000);
    assert_eq!(lane.orders.unknown_cost.load(Ordering::Relaxed), 500_000);
    // Far more than a channel holds: the client does not read.
    for round in 0..20_000 {
        watch.charge(1 + round % 1_000, 1_000 + round);
    }
    let read = |watch: &mut LaneWatch| {
        assert!(drain(watch, 10).0.is_ok());
        match client.try_recv() {
            Ok(weft_protocol::control::ToClient::Costs(costs)) => Some(costs),
            _ => None,
        }
    };
    assert_eq!(read(&mut watch), Some(vec![(1, 1_000)]));
    assert_eq!(read(&mut watch), None, "it was not taken in");
    let mut heard = std::collections::HashMap::new();
    for _ in 0..2 {
        lane.counters.charges.fetch_add(1, Ordering::Relaxed);
        heard.extend(read(&mut watch).expect("the next ones"));
    }
    lane.counters.charges.fetch_add(1, Ordering::Relaxed);
    assert_eq!(read(&mut watch), None, "all is told");
    assert_eq!(heard.len(), 1_000);
    assert!(
        (1..=1_000).all(|kernel| heard[&kernel] == 19_999 + kernel),
        "the last of each"
    );
}
