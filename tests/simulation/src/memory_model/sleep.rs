//! The broker falls asleep while a client reports: `LaneWatch::want_bell` and a turn of the broker on one side, the gate (`wait_for_credit`) or the holder's launch
//! (`hold_now`), and `ring`, on the other. The words are the lane's own; the few lines that use them are written down again here, because they stand among code that
//! waits for real.
//!
//! It rests on x86: the broker's store is an exchange there and so a full barrier before its look. C11 alone would want a fence between the two.
#![forbid(unsafe_code)]

use loom::sync::Arc;
use loom::thread;

use super::atomic::Ordering;
use super::protocol::board::Board;
use super::protocol::lane::{Kind, Lane, Reader, Record};
use super::shared;

/// `Session::ring`. True if the broker's bell is rung.
fn ring(lane: &Lane) -> bool {
    let sleeps = &lane.broker_sleeps;
    sleeps.load(Ordering::SeqCst) == 1 && sleeps.swap(0, Ordering::AcqRel) == 1
}

/// The beginning of `Scheduler::sleep`: asks to be rung, and begins a turn.
fn asks_to_be_rung(lane: &Lane, board: &Board) -> u64 {
    lane.broker_sleeps.store(1, Ordering::SeqCst);
    board.heartbeat.fetch_add(1, Ordering::Relaxed);
    board.above(1)
}

/// A filler begins to wait: the broker sees it or is rung.
pub fn a_filler_waits() {
    let (lane, board) = (shared(Lane::default()), shared(Board::default()));
    let filler = {
        let lane = Arc::clone(&lane);
        thread::spawn(move || {
            lane.reports.wanted_kernel.store(7, Ordering::Relaxed);
            lane.reports.waiting.swap(1, Ordering::SeqCst);
            ring(&lane)
        })
    };
    asks_to_be_rung(&lane, &board);
    let seen = lane.reports.waiting.load(Ordering::Acquire) == 1;
    assert!(!seen || lane.reports.wanted_kernel.load(Ordering::Relaxed) == 7);
    let rung = filler.join().expect("it ends");
    assert!(seen || rung, "the broker sleeps and a filler waits");
}

/// A holder ends a silence: the broker sees its record or is rung.
pub fn a_holder_ends_a_silence() {
    let (lane, board) = (shared(Lane::default()), shared(Board::default()));
    let holder = {
        let (lane, board) = (Arc::clone(&lane), Arc::clone(&board));
        thread::spawn(move || {
            lane.record(Record {
                kind: Kind::Launch,
                thread: 1,
                at: 1,
                kernel: 1,
                a: 1,
                b: 1,
            });
            board.raise(0);
            ring(&lane)
        })
    };
    asks_to_be_rung(&lane, &board);
    let seen = Reader::default().next(&lane).is_some();
    let rung = holder.join().expect("it ends");
    assert!(seen || rung, "the broker sleeps and a silence is over");
}
