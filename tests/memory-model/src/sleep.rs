// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broker falls asleep while a client reports. On one side are `LaneWatch::want_bell` or
//! `want_bell_in_nap` and a turn of the broker. On the other side is one of three: the gate
//! (`wait_for_credit`), the foreground job's launch (`foreground`) and `ring`, or its end of a busy
//! time (`synced_now`) and `ring_idle`. The words are the lane's own. The few lines that use them
//! are repeated here, because in the product they are among code that really waits.
//!
//! The model relies on x86: the broker's store is an exchange there, so a full barrier before its
//! read. C11 would need a fence between the two.
#![forbid(unsafe_code)]

use loom::sync::Arc;
use loom::thread;

use super::shared;
use weft_protocol::atomic::Ordering;
use weft_protocol::epoch_page::EpochPage;
use weft_protocol::lane::{Kind, Lane, LaneRecord, Reader, bells};

/// `BrokerLink::ring`. True if the broker's bell is rung.
fn ring(lane: &Lane) -> bool {
    lane.broker_sleeps.load(Ordering::SeqCst) == bells::ALL && wake(lane)
}

/// `BrokerLink::ring_idle`.
fn ring_idle(lane: &Lane) -> bool {
    lane.broker_sleeps.load(Ordering::SeqCst) != bells::NONE && wake(lane)
}

fn wake(lane: &Lane) -> bool {
    lane.broker_sleeps.swap(bells::NONE, Ordering::AcqRel) != bells::NONE
}

/// The beginning of `Scheduler::sleep`, or of a turn between naps: requests a ring for these
/// records, and begins a turn.
fn asks_to_be_rung(lane: &Lane, epoch_page: &EpochPage, for_what: u32) -> u64 {
    lane.broker_sleeps.store(for_what, Ordering::SeqCst);
    epoch_page.heartbeat.fetch_add(1, Ordering::Relaxed);
    epoch_page.sum_above(1)
}

/// A background job begins to wait: the broker sees it or is rung.
pub fn a_background_waits() {
    let (lane, epoch_page) = (shared(Lane::default()), shared(EpochPage::default()));
    let background = {
        let lane = Arc::clone(&lane);
        thread::spawn(move || {
            lane.reports.wanted_kernel.store(7, Ordering::Relaxed);
            lane.reports.waiting.swap(1, Ordering::SeqCst);
            ring(&lane)
        })
    };
    asks_to_be_rung(&lane, &epoch_page, bells::ALL);
    let seen = lane.reports.waiting.load(Ordering::Acquire) == 1;
    assert!(!seen || lane.reports.wanted_kernel.load(Ordering::Relaxed) == 7);
    let rung = background.join().expect("it ends");
    assert!(seen || rung, "the broker sleeps and a background job waits");
}

/// A foreground job ends a silence: the broker sees its record or is rung.
pub fn a_foreground_job_ends_a_silence() {
    let (lane, epoch_page) = (shared(Lane::default()), shared(EpochPage::default()));
    let foreground = {
        let (lane, epoch_page) = (Arc::clone(&lane), Arc::clone(&epoch_page));
        thread::spawn(move || {
            lane.record(LaneRecord {
                kind: Kind::Launch,
                thread: 1,
                at: 1,
                kernel: 1,
                a: 1,
                b: 1,
            });
            epoch_page.bump(0);
            ring(&lane)
        })
    };
    asks_to_be_rung(&lane, &epoch_page, bells::ALL);
    let seen = Reader::default().next(&lane).is_some();
    let rung = foreground.join().expect("it ends");
    assert!(seen || rung, "the broker sleeps and a silence is over");
}

/// A foreground job becomes idle while the broker naps between two turns: the broker sees its
/// record or is rung.
pub fn a_foreground_becomes_idle() {
    let (lane, epoch_page) = (shared(Lane::default()), shared(EpochPage::default()));
    let foreground = {
        let lane = Arc::clone(&lane);
        thread::spawn(move || {
            lane.become_idle_fenced(1);
            ring_idle(&lane)
        })
    };
    asks_to_be_rung(&lane, &epoch_page, bells::IDLE);
    let seen = Reader::default()
        .next(&lane)
        .is_some_and(|record| record.kind == Kind::Idle);
    let rung = foreground.join().expect("it ends");
    assert!(seen || rung, "the broker naps and a gap is open");
}

/// A record other than an idle time does not end such a nap.
pub fn a_launch_ends_no_nap() {
    let (lane, epoch_page) = (shared(Lane::default()), shared(EpochPage::default()));
    let foreground = {
        let (lane, epoch_page) = (Arc::clone(&lane), Arc::clone(&epoch_page));
        thread::spawn(move || {
            epoch_page.bump(0);
            ring(&lane)
        })
    };
    asks_to_be_rung(&lane, &epoch_page, bells::IDLE);
    assert!(
        !foreground.join().expect("it ends"),
        "a foreground job that launches pays for no ring"
    );
}
