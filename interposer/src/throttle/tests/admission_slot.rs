// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of a job's quota on its device.

use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::thread::futex::{self, Flags};
use weft_protocol::Ns;
use weft_protocol::admission_slot::AdmissionSlot;
use weft_protocol::control::ToBroker;
use weft_protocol::lane::Mode;

use super::{SharedLane, attached, until};
use crate::admission::{HeartbeatWatch, LONGEST_ANSWER_NS};

const BLOCK: u64 = 1 << 20;

/// Answers each request for more memory, as the broker does.
fn answer(admission_slot: &AdmissionSlot) {
    admission_slot.answers.fetch_add(1, Ordering::AcqRel);
    let _ = futex::wake(&admission_slot.answers, Flags::empty(), u32::MAX >> 1);
}

/// Answers until a small claim, which must be granted, has ended.
fn has_room(small: thread::ScopedJoinHandle<'_, Option<u64>>, admission_slot: &AdmissionSlot) {
    while !small.is_finished() {
        answer(admission_slot);
        thread::yield_now();
    }
    assert!(small.join().expect("no panic").is_some(), "it has room for that");
}

#[test]
fn no_claim_sees_a_block_twice() {
    let (session, broker) = attached(Mode::Alone);
    let admission_slot = &broker.lane.admission_slot;
    // Two threads with one block each stay within the quota.
    admission_slot.quota.store(2 * BLOCK, Ordering::Release);
    let both = Barrier::new(2);
    let takes_turns = || {
        both.wait();
        for _ in 0..1_000_000 {
            assert!(session.admission.claim(&session.link, BLOCK).is_some());
            session.admission.memory_changed(&session.link, BLOCK as i64, BLOCK);
            session.admission.memory_changed(&session.link, -(BLOCK as i64), 0);
        }
    };
    thread::scope(|scope| {
        scope.spawn(takes_turns);
        scope.spawn(takes_turns);
    });
    let (asked, dropped) = session.link.messages.take();
    assert!(
        asked.is_empty() && dropped == 0,
        "{} times more was asked for",
        asked.len()
    );
    // A failed claim ends, and the job asks for the bytes above the quota.
    assert!(session.admission.claim(&session.link, 2 * BLOCK).is_some());
    session.admission.unclaim(2 * BLOCK);
    assert!(session.admission.claim(&session.link, 2 * BLOCK).is_some());
    session
        .admission
        .memory_changed(&session.link, 2 * BLOCK as i64, 2 * BLOCK);
    thread::scope(|scope| {
        scope.spawn(|| assert!(session.admission.claim(&session.link, 1).is_some()));
        let asks = || {
            session
                .link
                .messages
                .take()
                .0
                .into_iter()
                .any(|asked| matches!(asked, ToBroker::More { .. }))
        };
        until("it asks for more", asks);
        admission_slot.quota.store(3 * BLOCK, Ordering::Release);
        answer(admission_slot);
    });
    session.admission.unclaim(1);
    assert_eq!(session.admission.held(), 2 * BLOCK);
}

#[test]
fn what_fits_is_not_refused_for_what_another_thread_wants() {
    let (session, broker) = attached(Mode::Alone);
    let admission_slot = &broker.lane.admission_slot;
    admission_slot.quota.store(2 * BLOCK, Ordering::Release);
    let answers = || {
        until("more is asked for", || {
            session
                .link
                .messages
                .take()
                .0
                .into_iter()
                .any(|asked| matches!(asked, ToBroker::More { .. }))
        });
        // No more than the device has.
        answer(admission_slot);
    };
    thread::scope(|scope| {
        // A far too large claim, refused twice; meanwhile a small one, which asks for nothing.
        let large = scope.spawn(|| session.admission.claim(&session.link, 1 << 50));
        answers();
        let small = scope.spawn(|| session.admission.claim(&session.link, BLOCK));
        assert_eq!(small.join().expect("no panic"), Some(2 * BLOCK));
        answers();
        assert!(large.join().expect("no panic").is_none(), "there is not so much");
    });
    session.admission.unclaim(BLOCK);
    assert_eq!(session.admission.held(), 0);
}

#[test]
fn a_thread_that_waits_for_its_turn_does_not_go_uncounted_between_two_brokers() {
    let (session, broker) = attached(Mode::Alone);
    let admission_slot = &broker.lane.admission_slot;
    admission_slot.quota.store(BLOCK, Ordering::Release);
    let asked = || {
        until("more is asked for", || {
            let messages = session.link.messages.take().0;
            messages.into_iter().any(|asked| matches!(asked, ToBroker::More { .. }))
        });
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| session.admission.claim(&session.link, 1 << 50));
        asked();
        admission_slot.quota.store(BLOCK + 1, Ordering::Release);
        let second = scope.spawn(|| session.admission.claim(&session.link, 2 * BLOCK));
        until("it has seen the quota", || session.admission.last_quota() == BLOCK + 1);
        // A lane that a new broker has not filled in yet.
        admission_slot.quota.store(0, Ordering::Release);
        thread::sleep(Duration::from_millis(20));
        admission_slot.quota.store(3 * BLOCK, Ordering::Release);
        assert_eq!(second.join().expect("no panic"), Some(3 * BLOCK));
        answer(admission_slot);
        asked();
        answer(admission_slot);
        assert!(first.join().expect("no panic").is_none(), "there is not so much");
    });
    session.admission.unclaim(2 * BLOCK);
    assert_eq!(session.admission.wanted(), 0);
}

#[test]
fn what_fits_is_not_refused_while_another_thread_waits_for_a_silent_broker() {
    let (session, broker) = attached(Mode::Alone);
    let admission_slot = &broker.lane.admission_slot;
    // A far too large claim that does not end.
    assert!(session.admission.claim(&session.link, 1 << 50).is_some());
    admission_slot.quota.store(2 * BLOCK, Ordering::Release);
    thread::scope(|scope| {
        let small = scope.spawn(|| session.admission.claim(&session.link, BLOCK));
        has_room(small, admission_slot);
    });
    session.admission.unclaim(BLOCK);
    session.admission.unclaim(1 << 50);
    assert_eq!((session.admission.held(), session.admission.wanted()), (0, 0));
}

#[test]
fn a_broker_that_went_refuses_nothing() {
    let (session, broker) = attached(Mode::Alone);
    let admission_slot = &broker.lane.admission_slot;
    admission_slot.quota.store(BLOCK, Ordering::Release);
    admission_slot.answers.store(7, Ordering::Release);
    let asks = || {
        until("more is asked for", || {
            let asked = session.link.messages.take().0;
            asked.iter().any(|asked| matches!(asked, ToBroker::More { .. }))
        });
    };
    thread::scope(|scope| {
        let claim = scope.spawn(|| session.admission.claim(&session.link, 2 * BLOCK));
        asks();
        // The larger step is refused.
        answer(admission_slot);
        asks();
        // Another broker's lane replaces it. In that lane there was no request.
        let next = SharedLane::lane().expect("a lane");
        let memory = next.memory().try_clone_to_owned().expect("dup");
        session.link.lane_place.put(&memory).expect("mapped");
        session.link.attachments.fetch_add(1, Ordering::AcqRel);
        assert!(
            claim.join().expect("no panic").is_some(),
            "it goes on as where no broker answers"
        );
    });
    session.admission.unclaim(2 * BLOCK);
}

#[test]
fn the_answer_of_a_broker_that_lives_is_waited_for() {
    let (_, broker) = attached(Mode::Alone);
    let admission_slot = &broker.lane.admission_slot;
    let second: Ns = 1_000_000_000;
    let mut beat = HeartbeatWatch::new(admission_slot, second);
    beat.update(admission_slot, 3 * second);
    assert!(
        !beat.no_answer(3 * second) && beat.no_answer(4 * second),
        "no sign of life"
    );
    for at in 2..=LONGEST_ANSWER_NS / second {
        admission_slot.heartbeat.fetch_add(1, Ordering::Relaxed);
        beat.update(admission_slot, at * second);
        assert!(!beat.no_answer((at + 1) * second), "it lives at {at} s");
    }
    admission_slot.heartbeat.fetch_add(1, Ordering::Relaxed);
    beat.update(admission_slot, LONGEST_ANSWER_NS + 2 * second);
    assert!(beat.no_answer(LONGEST_ANSWER_NS + 2 * second), "that has an end");
    assert!(!beat.is_dead(LONGEST_ANSWER_NS + 12 * second) && beat.is_dead(LONGEST_ANSWER_NS + 13 * second));
}
