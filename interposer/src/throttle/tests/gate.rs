// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the gate.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use weft_protocol::credit::RunAheadWindow;
use weft_protocol::lane::{Kind, Mode, flags};

use super::super::peers;
use super::super::post_launch::Want;
use super::super::session::Synced;
use super::{attached, attached_on, fake, kernel, launch, until};
use crate::client::clock;
use crate::driver::symbols::StreamOp;
use crate::kernels::launch::Launch;

#[test]
fn credit_is_taken_and_what_was_given_is_always_accounted_for() {
    let (session, mut broker) = attached(Mode::Background);
    session.link.costs.set(7, 300);
    broker.grant(100_000);
    for _ in 0..10 {
        launch(session, kernel(7, 0x1000));
    }
    // The broker sets the cost of an unknown kernel.
    launch(session, kernel(8, 0x1000));
    assert_eq!(broker.issued(), 10 * 300 + 20_000);
    assert_eq!(broker.credit(), 100_000 - 23_000);
    assert_eq!(broker.launches().len(), 11);
    assert_eq!(broker.lane.counters.waits.load(Ordering::Relaxed), 0);
    assert_eq!(broker.lane.counters.launches.load(Ordering::Relaxed), 11);
}

#[test]
fn launches_of_all_threads_and_streams_leave_in_the_order_they_came() {
    const THREADS: u32 = 8;
    let (session, mut broker) = attached(Mode::Background);
    session.link.costs.set(7, 1_000);
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || launch(session, kernel(7, 0x2000 + number as usize * 0x100)));
            // The next thread comes when this one is in the queue.
            until("a thread arrives at the gate", || session.gate.queued().0 == number + 1);
        }
        assert_eq!(broker.launches(), [0; 0]);
        for number in 0..u64::from(THREADS) {
            let wanted = &broker.lane.reports;
            until("the next one waits", || {
                wanted.waiting.load(Ordering::Acquire) == 1 && session.gate.queued().1 == number as u32
            });
            assert_eq!(wanted.wanted_kernel.load(Ordering::Relaxed), 7);
            assert_eq!(wanted.wanted_cost.load(Ordering::Relaxed), 1_000);
            broker.grant(1_000);
            let mut left = Vec::new();
            while left.is_empty() {
                left = broker.launches();
                thread::yield_now();
            }
            assert_eq!(left, [0x2000 + number * 0x100]);
        }
    });
    assert_eq!(broker.credit(), 0);
    assert_eq!(broker.lane.counters.waits_expired.load(Ordering::Relaxed), 0);
}

#[test]
fn a_wait_without_an_answer_ends_and_is_counted() {
    let (session, mut broker) = attached(Mode::Background);
    session.link.costs.set(7, 1_000);
    broker.lane.orders.longest_wait.store(20_000_000, Ordering::Relaxed);
    let before = clock::now();
    launch(session, kernel(7, 0x3000));
    assert!(clock::now() - before >= 20_000_000);
    assert_eq!(broker.credit(), -1_000, "what went without credit is owed");
    assert_eq!(broker.issued(), 1_000);
    let counters = &broker.lane.counters;
    assert_eq!(counters.waits.load(Ordering::Relaxed), 1);
    assert_eq!(counters.waits_expired.load(Ordering::Relaxed), 1);
    assert!(counters.waited.load(Ordering::Relaxed) >= 20_000_000);
    assert_eq!(broker.lane.reports.waiting.load(Ordering::Relaxed), 0);
    let kinds: Vec<Kind> = broker.records().iter().map(|record| record.kind).collect();
    assert_eq!(kinds, [Kind::Wait, Kind::Launch]);
}

#[test]
fn those_behind_one_that_waits_wait_no_longer_than_it() {
    let (session, broker) = attached(Mode::Background);
    session.link.costs.set(7, 1_000);
    broker.lane.orders.longest_wait.store(100_000_000, Ordering::Relaxed);
    thread::scope(|scope| {
        for number in 0..6 {
            scope.spawn(move || launch(session, kernel(7, 0x3100 + number)));
        }
    });
    // Each at its own bound, not one after the other: the sum of the waits shows it.
    assert_eq!(broker.lane.counters.waits_expired.load(Ordering::Relaxed), 6);
    assert_eq!(broker.issued(), 6_000);
}

#[test]
fn credit_bound_to_the_epochs_is_void_once_a_more_important_one_moves() {
    let (session, broker) = attached(Mode::Background);
    session.link.costs.set(7, 1_000);
    let orders = &broker.lane.orders;
    orders.epochs.store(broker.epoch_page.sum_above(5), Ordering::Release);
    orders.flags.store(flags::CREDIT_BOUND_TO_EPOCHS, Ordering::Release);
    broker.grant(10_000);
    launch(session, kernel(7, 0x4000));
    // Epochs of equal and lower importance change nothing.
    broker.epoch_page.bump(5);
    broker.epoch_page.bump(9);
    launch(session, kernel(7, 0x4000));
    assert_eq!(broker.credit(), 8_000);
    // A more important one does.
    broker.epoch_page.bump(0);
    let passed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            launch(session, kernel(7, 0x4000));
            passed.store(true, Ordering::Release);
        });
        until("it waits", || broker.lane.reports.waiting.load(Ordering::Acquire) == 1);
        // After a ring without cause it looks and keeps waiting.
        broker.ring();
        thread::sleep(std::time::Duration::from_millis(5));
        assert!(!passed.load(Ordering::Acquire));
        assert_eq!(broker.credit(), 8_000);
        orders.epochs.store(broker.epoch_page.sum_above(5), Ordering::Release);
        broker.ring();
    });
    assert_eq!(broker.credit(), 7_000);
}

#[test]
fn a_revoked_credit_stops_and_another_mode_lets_go() {
    let (session, broker) = attached(Mode::Background);
    session.link.costs.set(7, 1_000);
    broker.grant(10_000);
    launch(session, kernel(7, 0x5000));
    let left = broker.lane.orders.credit.swap(0, Ordering::AcqRel);
    assert_eq!(left, 9_000);
    thread::scope(|scope| {
        scope.spawn(|| launch(session, kernel(7, 0x5000)));
        until("it waits", || broker.lane.reports.waiting.load(Ordering::Acquire) == 1);
        broker.order(Mode::Alone);
    });
    assert_eq!(broker.lane.counters.waits_expired.load(Ordering::Relaxed), 0);
    assert_eq!(broker.lane.reports.waiting.load(Ordering::Relaxed), 0);
}

#[test]
fn who_waits_while_his_job_becomes_the_foreground_job_raises_its_epoch() {
    let (session, mut broker) = attached(Mode::Background);
    session.link.costs.set(7, 1_000);
    let raised = || broker.epoch_page.sum_above(6);
    let before = raised();
    thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || launch(session, kernel(7, 0x5100 + number * 0x100)));
        }
        until("both are at the gate", || session.gate.queued().0 == 2);
        until("one waits for credit", || {
            broker.lane.reports.waiting.load(Ordering::Acquire) == 1
        });
        assert_eq!(raised(), before, "a background job at the gate raises none");
        broker.order(Mode::Foreground);
    });
    // One bump for each launch, as if made in the new mode; and both launches have records.
    assert_eq!(raised(), before + 2);
    assert_eq!(broker.launches().len(), 2);
    assert_eq!(broker.issued(), 2_000);
    assert_eq!(broker.lane.counters.waits_expired.load(Ordering::Relaxed), 0);
}

#[test]
fn work_that_waits_for_a_later_launch_gets_it() {
    let (session, broker) = attached(Mode::Background);
    session.link.costs.set(7, 1_000);
    let orders = &broker.lane.orders;
    // Stuck after an eighth, which is a second; seven seconds are left until the bound.
    const STUCK: u64 = 1_000_000_000;
    orders.longest_wait.store(8 * STUCK, Ordering::Relaxed);
    broker.grant(1_000);
    // Its event is never reached: the kernel spins until the third launch is queued.
    launch(session, kernel(7, 0x6000));
    let before = clock::now();
    launch(session, kernel(7, 0x6000));
    launch(session, kernel(7, 0x6000));
    let took = clock::now() - before;
    assert!(
        took < 8 * STUCK,
        "{took}: each waited to its bound, not until it was stuck"
    );
    assert_eq!(broker.lane.counters.waits_expired.load(Ordering::Relaxed), 2);
    assert_eq!(broker.settled(), 0);
    assert!(fake::reach(0x6000) > 0);
    session.synced(Synced::Event(0), 0);
    assert!(broker.settled() > 0);
}

#[test]
fn a_broker_that_stands_still_is_waited_for_once() {
    let (session, broker) = attached(Mode::Background);
    session.link.costs.set(7, 1_000);
    for _ in 0..50 {
        // Each launch would wait half a minute. The first one finds the stop, the others know it.
        launch(session, kernel(7, 0x7000));
    }
    assert_eq!(broker.lane.counters.waits_expired.load(Ordering::Relaxed), 50);
    assert_eq!(broker.lane.counters.waits.load(Ordering::Relaxed), 1);
    // The heartbeat moves again, so launches wait for the broker again.
    broker.epoch_page.heartbeat.fetch_add(1, Ordering::Relaxed);
    thread::scope(|scope| {
        scope.spawn(|| launch(session, kernel(7, 0x7000)));
        until("it waits", || broker.lane.reports.waiting.load(Ordering::Acquire) == 1);
        broker.grant(100_000);
    });
    assert_eq!(broker.lane.counters.waits.load(Ordering::Relaxed), 2);
}

#[test]
fn under_a_window_a_kernel_goes_only_if_all_that_it_may_take_would_end_in_time() {
    const HOUR: u64 = 3_600_000_000_000;
    let (session, broker) = attached(Mode::Background);
    session.link.costs.set(7, 1_000);
    session.link.costs.set(8, 1_000);
    session.predictions.know_long(&[(7, 3 * HOUR)]);
    let window = |hours: u64| RunAheadWindow {
        safe_until: clock::now() + HOUR * hours,
        deadline: clock::now() + HOUR * hours,
        long_deadline: clock::now() + HOUR * hours,
        long_from: u64::MAX,
        max_backlog: 0,
        non_refundable: 0,
    };
    let first = window(1);
    broker.lane.orders.set_window(Some(first));
    broker.grant(10_000);
    let now = clock::now();
    assert!(session.gate.pass_at_once(session, 8, 1_000, now), "its times are alike");
    assert!(
        !session.gate.pass_at_once(session, 7, 1_000, now),
        "it may take three hours"
    );
    assert_eq!(broker.credit(), 9_000);
    // The client reports the wait. The broker knows the likely time, so a window issued later
    // admits it.
    let want = Want {
        kernel: 7,
        cost: 1_000,
        stream: 0xb000,
        place: session.completion.account(0xb000),
    };
    assert_eq!(
        super::super::gate::waits_by(session, &want, Some(first.deadline)),
        3 * HOUR
    );
    broker.lane.orders.set_window(Some(window(2)));
    assert_eq!(
        super::super::gate::waits_by(session, &want, Some(first.deadline)),
        1_000
    );
    broker.lane.orders.set_window(None);
    assert!(
        session.gate.pass_at_once(session, 7, 1_000, now),
        "without a run-ahead window the credit says it"
    );
}

#[test]
fn a_device_slowed_down_is_waited_for_as_much_longer_and_polled_no_more_often() {
    const HOUR: u64 = 3_600_000_000_000;
    /// Most event calls of a wait that are not polls.
    const BESIDE: usize = 8;
    // A gate that sleeps between two looks, and one that spins.
    for (cores, stream) in [(2, 0xb800), (16, 0xb900)] {
        let (session, broker) = attached_on(Mode::Background, cores);
        session.link.costs.set(7, 1_000);
        let _time = clock::played::begin();
        let want = Want {
            kernel: 7,
            cost: 1_000,
            stream,
            place: session.completion.account(stream),
        };
        let end = clock::now() + HOUR;
        broker.lane.orders.set_window(Some(RunAheadWindow {
            safe_until: end,
            deadline: end,
            long_deadline: end,
            long_from: u64::MAX,
            max_backlog: HOUR,
            non_refundable: 0,
        }));
        // Running work never ends, so no credit comes back.
        broker.grant(1_000);
        launch(session, kernel(7, stream));
        for longest in [500_000, 5_000_000, 10_000_000, 50_000_000] {
            broker.lane.orders.device_wait.store(longest, Ordering::Relaxed);
            let (calls, arrived) = (fake::calls(), clock::now());
            assert!(!session.gate.paced(session, &want, arrived));
            let (calls, waited) = (fake::calls() - calls, clock::now() - arrived);
            assert!((longest..longest + 100_000).contains(&waited), "{longest}: {waited} ns");
            // A wait of 500 us polls every 2 us, and no wait polls more seldom than every 50 us.
            let interval = (longest / 250).min(50_000);
            let polls = (longest / interval) as usize;
            assert!(
                (polls / 3..=polls + BESIDE).contains(&calls),
                "{cores} cores, {longest}: {calls} calls of {polls}"
            );
        }
    }
}

#[test]
fn the_end_of_work_is_seen_while_the_next_waits_and_the_broker_is_rung() {
    let (session, broker) = attached(Mode::Background);
    session.link.costs.set(7, 60_000);
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
    session.link.bell.hang(bell.try_clone().expect("dup"));
    broker.grant(120_000);
    launch(session, kernel(7, 0x8000));
    launch(session, kernel(7, 0x8000));
    assert_eq!(broker.settled(), 0);
    thread::scope(|scope| {
        scope.spawn(|| launch(session, kernel(7, 0x8000)));
        until("it waits", || broker.lane.reports.waiting.load(Ordering::Acquire) == 1);
        broker.lane.broker_sleeps.store(1, Ordering::SeqCst);
        // One fence is behind the first launch. The waiting launch records another fence behind
        // both, possibly only now.
        until("the end is reported", || {
            fake::reach(0x8000);
            broker.settled() == 120_000
        });
        until("the broker is rung", || rustix::io::read(&bell, &mut [0u8; 8]).is_ok());
        broker.grant(60_000);
    });
    assert_eq!(broker.issued(), 180_000);
    assert_eq!(broker.settled(), 120_000);
}

#[test]
fn a_synchronising_call_settles_and_tells() {
    let (session, mut broker) = attached(Mode::Background);
    session.link.costs.set(7, 1_000);
    broker.grant(1_000_000);
    launch(session, kernel(7, 0x9000));
    launch(session, kernel(7, 0x9100));
    session.synced(Synced::Stream(0x9000), 0);
    assert_eq!(broker.settled(), 1_000, "the other stream's work may still run");
    session.synced(Synced::Context, 0);
    assert_eq!(broker.settled(), 2_000);
    launch(session, kernel(7, 0x9000));
    session.synced(Synced::Stream(0x9000), 0);
    assert_eq!(broker.settled(), 3_000);
    let idle = broker
        .records()
        .iter()
        .filter(|record| record.kind == Kind::Idle)
        .count();
    assert_eq!(idle, 2);
}

#[test]
fn nothing_waits_and_no_event_is_made_while_something_captures() {
    let (session, broker) = attached(Mode::Background);
    session.link.costs.set(7, 500_000);
    broker.grant(10_000_000);
    session.completion.capture_began();
    let calls = fake::calls();
    let captured = Launch::kernel(7, 0xa000, true);
    for _ in 0..10 {
        launch(session, captured);
        launch(session, kernel(7, 0xa100));
    }
    assert_eq!(fake::calls(), calls);
    assert_eq!(broker.issued(), 10 * 500_000, "only what really runs is charged");
    assert_eq!(broker.lane.counters.captured.load(Ordering::Relaxed), 10);
    // A copy during a capture goes too, without credit.
    broker.lane.orders.credit.store(0, Ordering::Release);
    session.before_stream_op(StreamOp::CopyToDevice, 1 << 30, 0xa000);
    assert_eq!(broker.lane.counters.waits.load(Ordering::Relaxed), 0);
}

#[test]
fn big_copies_are_charged_and_small_ones_pass() {
    let (session, broker) = attached(Mode::Background);
    broker.grant(10_000_000);
    session.before_stream_op(StreamOp::CopyToDevice, 20_000_000, 0xb000);
    assert_eq!(broker.issued(), 1_000_000);
    broker.lane.orders.credit.store(0, Ordering::Release);
    session.before_stream_op(StreamOp::CopyToHost, 4096, 0xb000);
    session.before_stream_op(StreamOp::Other, 1 << 40, 0xb000);
    assert_eq!(broker.issued(), 1_000_000);
    assert_eq!(broker.lane.counters.transfers.load(Ordering::Relaxed), 2);
    assert_eq!(broker.lane.counters.waits.load(Ordering::Relaxed), 0);
}

#[test]
fn a_burst_that_times_new_code_is_not_split() {
    let (session, broker) = attached(Mode::Background);
    session.link.costs.set(7, 1_000_000);
    broker.lane.orders.longest_wait.store(50_000_000, Ordering::Relaxed);
    // A burst is defined by the time since the load. The test plays time, because a busy machine
    // may delay the system's time.
    let time = clock::played::begin();
    session.gate.code_loaded(clock::now());
    broker.grant(1_000_000);
    let timed = || {
        session.before_stream_op(StreamOp::EventRecord, 0, 0xc000);
        launch(session, kernel(7, 0xc000));
        session.before_stream_op(StreamOp::EventRecord, 0, 0xc000);
    };
    for _ in 0..10 {
        timed();
    }
    assert_eq!(broker.lane.counters.waits.load(Ordering::Relaxed), 0);
    assert_eq!(broker.issued(), 10_000_000);
    assert_eq!(broker.credit(), -9_000_000, "all of it is owed");
    assert_eq!(broker.lane.counters.unsplit.load(Ordering::Relaxed), 9);
    assert_eq!(broker.lane.counters.waits_expired.load(Ordering::Relaxed), 0);
    // At the bound it waits like any other launch.
    drop(time);
    timed();
    assert_eq!(broker.lane.counters.waits.load(Ordering::Relaxed), 1);
    assert_eq!(broker.lane.counters.unsplit.load(Ordering::Relaxed), 9);
    assert_eq!(broker.lane.counters.waits_expired.load(Ordering::Relaxed), 1);
}

#[test]
fn a_collective_goes_past_who_waits_at_the_gate_and_is_charged() {
    let (session, mut broker) = attached(Mode::Background);
    const COLLECTIVE: u64 = 0x0c01_1ec7_14e5;
    peers::kernel_seen(
        COLLECTIVE,
        "_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE",
    );
    session.link.costs.set(COLLECTIVE, 3_000);
    session.link.costs.set(7, 1_000);
    assert!(session.may_defer(kernel(7, 0xd000)) && !session.may_defer(kernel(COLLECTIVE, 0xd000)));
    thread::scope(|scope| {
        scope.spawn(|| launch(session, kernel(7, 0xd000)));
        until("it waits at the gate", || {
            broker.lane.reports.waiting.load(Ordering::Acquire) != 0
        });
        launch(session, kernel(COLLECTIVE, 0xd100));
        assert_eq!(
            (broker.issued(), broker.credit()),
            (3_000, -3_000),
            "it went, and all of it is owed"
        );
        assert_eq!(broker.launches(), [0xd100]);
        // The waiting launch pays for it first.
        broker.grant(3_000);
        broker.grant(1_000);
    });
    assert_eq!((broker.issued(), broker.credit()), (4_000, 0));
    assert_eq!(broker.launches(), [0xd000]);
    let counters = &broker.lane.counters;
    assert_eq!(counters.unsplit.load(Ordering::Relaxed), 1);
    assert_eq!(counters.waits_expired.load(Ordering::Relaxed), 0);
    // With credit it goes like any other launch.
    broker.grant(3_000);
    launch(session, kernel(COLLECTIVE, 0xd100));
    assert_eq!((broker.credit(), counters.unsplit.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn nobody_waits_before_the_events_that_time_a_collective() {
    let (session, mut broker) = attached(Mode::Background);
    const COLLECTIVE: u64 = 0x0c01_1ec7_14e6;
    peers::kernel_seen(
        COLLECTIVE,
        "_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE",
    );
    session.link.costs.set(COLLECTIVE, 3_000);
    broker.lane.orders.unknown_cost.store(1_000, Ordering::Relaxed);
    broker.lane.orders.longest_wait.store(50_000_000, Ordering::Relaxed);
    broker.grant(1_000);
    session.gate.times(session, 0xd200);
    for _ in 0..3 {
        session.gate.times(session, 0xd200);
        launch(session, kernel(COLLECTIVE, 0xd200));
        session.gate.times(session, 0xd200);
    }
    assert_eq!(broker.launches().len(), 3);
    assert_eq!(broker.lane.counters.waits.load(Ordering::Relaxed), 0);
    assert_eq!((broker.issued(), broker.credit()), (9_000, -8_000));
}
