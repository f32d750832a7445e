// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the session in each mode, and in a fork's child.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::Ordering;

use weft_protocol::lane::{DeviceSpeed, Kind, Mode, bells};

use super::super::devices;
use super::super::devices::{SESSION, session};
use super::super::session::Synced;
use super::{attached, kernel, launch};
use crate::client::clock;
use crate::driver::symbols::StreamOp;

#[test]
fn without_orders_nothing_is_written() {
    let (session, mut broker) = attached(Mode::Free);
    for mode in [Mode::Free as u32, 77] {
        broker.lane.orders.mode.store(mode, Ordering::Relaxed);
        launch(session, kernel(7, 0));
        session.before_stream_op(StreamOp::Memset, 100, 0);
        session.synced(Synced::Context, 0);
    }
    assert_eq!(broker.lane.counters.launches.load(Ordering::Relaxed), 0);
    assert_eq!(broker.records(), []);
}

#[test]
fn alone_it_counts_and_writes_nothing() {
    let (session, mut broker) = attached(Mode::Alone);
    for _ in 0..5 {
        launch(session, kernel(0, 0));
    }
    session.before_stream_op(StreamOp::Memset, 100, 0);
    session.synced(Synced::Context, 0);
    let counters = &broker.lane.counters;
    assert_eq!(counters.launches.load(Ordering::Relaxed), 5);
    assert_eq!(counters.unnamed.load(Ordering::Relaxed), 5);
    assert_eq!(counters.transfers.load(Ordering::Relaxed), 1);
    assert_eq!(broker.records(), []);
}

#[test]
fn a_broker_that_naps_is_rung_for_by_an_idle_foreground_job_and_not_by_its_launches() {
    let (session, broker) = attached(Mode::Foreground);
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
    session.link.bell.hang(bell.try_clone().expect("dup"));
    let rang = || rustix::io::read(&bell, &mut [0u8; 8]).is_ok();
    let sleeps = &broker.lane.broker_sleeps;
    sleeps.store(bells::IDLE, Ordering::SeqCst);
    launch(session, kernel(7, 0));
    launch(session, kernel(7, 0));
    assert!(!rang(), "a launch after a silence is no gap");
    session.synced(Synced::Stream(0), 0);
    assert!(rang());
    assert_eq!(sleeps.load(Ordering::SeqCst), bells::NONE, "once");
    launch(session, kernel(7, 0));
    session.synced(Synced::Stream(0), 0);
    assert!(!rang(), "nobody asked");
}

#[test]
fn a_copy_costs_its_time_at_the_rate_that_the_broker_sets() {
    let (session, mut broker) = attached(Mode::Foreground);
    for host_copy_mb_per_s in [20_000, 1_000] {
        broker.lane.orders.set_speed(DeviceSpeed {
            host_copy_mb_per_s,
            ..DeviceSpeed::default()
        });
        session.before_stream_op(StreamOp::CopyToDevice, 2_000_000, 0);
    }
    let records = broker.records().into_iter();
    let costs: Vec<u64> = records
        .filter(|record| record.kind == Kind::Transfer)
        .map(|record| record.a)
        .collect();
    assert_eq!(costs, [100_000, 2_000_000]);
}

#[test]
fn a_foreground_job_raises_its_epoch_and_records_and_never_waits() {
    let (session, mut broker) = attached(Mode::Foreground);
    broker.lane.orders.epoch.store(2, Ordering::Relaxed);
    session.link.costs.set(7, 70_000);
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
    session.link.bell.hang(bell.try_clone().expect("dup"));
    let rang = || rustix::io::read(&bell, &mut [0u8; 8]).is_ok();
    broker.lane.broker_sleeps.store(bells::ALL, Ordering::SeqCst);
    for _ in 0..3 {
        launch(session, kernel(7, 0));
    }
    assert!(rang(), "the first launch after a silence is told");
    broker.lane.broker_sleeps.store(bells::ALL, Ordering::SeqCst);
    launch(session, kernel(7, 0));
    assert!(!rang(), "the others are not");
    assert_eq!(broker.epoch_page.sum_above(2), 0);
    assert_eq!(broker.epoch_page.sum_above(3), 4);
    session.synced(Synced::Stream(0x55), 0);
    session.synced(Synced::Event(0), 0);
    session.synced(Synced::Stream(0), 0);
    assert!(rang(), "its idleness is");
    session.synced(Synced::Stream(0), 0);
    session.before_stream_op(StreamOp::CopyToDevice, 1000, 0);
    let records = broker.records();
    let kinds: Vec<Kind> = records.iter().map(|record| record.kind).collect();
    let launch = Kind::Launch;
    assert_eq!(
        kinds,
        [
            launch,
            launch,
            launch,
            launch,
            Kind::Idle,
            Kind::WakeUpHint,
            Kind::Transfer
        ]
    );
    assert_eq!((records[0].kernel, records[0].a), (7, 70_000));
    assert!(records.windows(2).all(|pair| pair[0].at <= pair[1].at));
    let reports = &broker.lane.reports;
    assert_eq!(reports.last_idle.load(Ordering::Relaxed), records[4].at);
    assert_eq!(reports.waiting.load(Ordering::Relaxed), 0);
}

#[test]
fn a_foreground_job_that_ends_by_an_event_is_seen_idle() {
    let (session, mut broker) = attached(Mode::Foreground);
    let idle = |records: Vec<super::LaneRecord>| records.iter().filter(|record| record.kind == Kind::Idle).count();
    let (compute, copies, event, done) = (0x100, 0x200, 0xe0, 0xf0);
    launch(session, kernel(7, compute));
    session.before_event_op(StreamOp::EventRecord, event, compute);
    session.synced(Synced::Event(event), 0);
    assert_eq!(idle(broker.records()), 1);
    // One launch was added after the event: it may still run.
    launch(session, kernel(7, compute));
    session.before_event_op(StreamOp::EventRecord, event, compute);
    launch(session, kernel(7, compute));
    session.synced(Synced::Event(event), 0);
    assert_eq!(idle(broker.records()), 0);
    // The job copies the result on a stream of its own, and awaits the copy's end.
    session.before_event_op(StreamOp::EventRecord, event, compute);
    session.before_event_op(StreamOp::EventWait, event, copies);
    session.before_stream_op(StreamOp::CopyToHost, 1000, copies);
    session.before_event_op(StreamOp::EventRecord, done, copies);
    session.synced(Synced::Event(done), 0);
    assert_eq!(idle(broker.records()), 1);
    // Another event in its place shows nothing.
    launch(session, kernel(7, compute));
    session.before_event_op(StreamOp::EventRecord, event, compute);
    session.active_streams.forget(event);
    session.synced(Synced::Event(event), 0);
    assert_eq!(idle(broker.records()), 0);
}

#[test]
fn a_foreground_jobs_wait_for_a_part_of_its_work_is_reported() {
    let (session, mut broker) = attached(Mode::Foreground);
    let (stream, event) = (0x100, 0xe0);
    let waits = |records: Vec<super::LaneRecord>| -> Vec<(u64, u64, u64)> {
        let parts = records.into_iter().filter(|record| record.kind == Kind::PartialWait);
        parts.map(|record| (record.at, record.kernel, record.a)).collect()
    };
    assert!(session.before_event_wait().is_some());
    let began = clock::now();
    launch(session, kernel(7, stream));
    session.before_event_op(StreamOp::EventRecord, event, stream);
    let recorded = clock::now();
    launch(session, kernel(7, stream));
    let since = clock::now().saturating_sub(1_000_000);
    session.event_waited(event, since);
    let [(at, covers, waited)] = waits(broker.records())[..] else {
        panic!("one is reported");
    };
    assert!((began..=recorded).contains(&covers), "{began} {covers} {recorded}");
    assert_eq!(at - waited, since);
    // An event that was recorded elsewhere, and a wait that found the work ended.
    session.event_waited(0xf0, since);
    // Its begin is ahead, so that a thread without a core does not make it a wait.
    session.event_waited(event, clock::now() + 1_000_000_000);
    assert_eq!(waits(broker.records()), []);
    // The wait that sees all work end makes the job idle.
    session.before_event_op(StreamOp::EventRecord, event, stream);
    session.event_waited(event, since);
    let records = broker.records();
    assert!(records.iter().any(|record| record.kind == Kind::Idle));
    assert_eq!(waits(records), []);
    broker
        .lane
        .orders
        .mode
        .store(Mode::Background as u32, Ordering::Relaxed);
    assert_eq!(session.before_event_wait(), None);
}

#[test]
fn a_wait_that_finds_the_work_done_is_reported_as_such() {
    let (session, mut broker) = attached(Mode::Foreground);
    let mut found = |since: u64| {
        launch(session, kernel(7, 0x100));
        session.synced(Synced::Stream(0x100), since);
        let records = broker.records();
        let idle = records.iter().rev().find(|record| record.kind == Kind::Idle);
        idle.map(|record| record.a)
    };
    // Long ago, in the future, and not measured: only the second one counts as found.
    assert_eq!([found(1), found(u64::MAX / 4), found(0)], [Some(0), Some(1), Some(0)]);
}

#[test]
fn two_streams_are_idle_when_both_are() {
    let (session, mut broker) = attached(Mode::Foreground);
    let idle = |records: Vec<super::LaneRecord>| records.iter().filter(|record| record.kind == Kind::Idle).count();
    launch(session, kernel(7, 0x100));
    launch(session, kernel(7, 0x200));
    session.synced(Synced::Stream(0x100), 0);
    assert_eq!(idle(broker.records()), 0);
    session.synced(Synced::Stream(0x200), 0);
    assert_eq!(idle(broker.records()), 1);
    launch(session, kernel(7, 0x100));
    launch(session, kernel(7, 0x200));
    session.synced(Synced::Context, 0);
    assert_eq!(idle(broker.records()), 1);
    // The two names of the legacy default stream are one stream.
    launch(session, kernel(7, 0));
    session.synced(Synced::Stream(1), 0);
    assert_eq!(idle(broker.records()), 1);
}

#[test]
fn memory_is_held_given_back_and_its_peak_kept() {
    let (session, broker) = attached(Mode::Alone);
    session.admission.memory_changed(&session.link, 5_000, 0);
    session.admission.memory_changed(&session.link, 3_000, 0);
    session.admission.memory_changed(&session.link, -7_000, 0);
    let counters = &broker.lane.counters;
    assert_eq!(counters.memory.load(Ordering::Relaxed), 1_000);
    assert_eq!(counters.memory_peak.load(Ordering::Relaxed), 8_000);
    session.admission.memory_changed(&session.link, -9_000, 0);
    assert_eq!(counters.memory.load(Ordering::Relaxed), 0);
}

#[test]
fn a_forked_child_has_no_session_and_does_not_touch_its_parents_lane() {
    let (parents, mut broker) = attached(Mode::Foreground);
    crate::process::watch_forks(crate::lifecycle::in_child);
    devices::begin(parents);
    SESSION.store(ptr::from_ref(parents).cast_mut(), Ordering::Release);
    launch(parents, kernel(7, 0));
    // SAFETY: the child makes system calls and atomic accesses only, then ends without running test
    // code.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let free = session().is_none() && parents.link.lane.orders.mode.load(Ordering::Relaxed) == Mode::Free as u32;
        launch(parents, kernel(7, 0));
        parents.link.lane.counters.troubles.store(99, Ordering::Relaxed);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if free { 0 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(session().is_some(), "the parent has its own still");
    SESSION.store(ptr::null_mut(), Ordering::Release);
    assert_eq!(broker.launches().len(), 1);
    assert_eq!(broker.lane.counters.troubles.load(Ordering::Relaxed), 0);
    assert_eq!(
        parents.link.lane.orders.mode.load(Ordering::Relaxed),
        Mode::Foreground as u32
    );
    devices::forget();
}
