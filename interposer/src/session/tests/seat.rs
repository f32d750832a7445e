//! What a job may have of its device.

use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;

use rustix::thread::futex::{self, Flags};
use weft_broker::protocol::control::ToBroker;
use weft_broker::protocol::lane::Mode;

use super::{attached, until};

const BLOCK: u64 = 1 << 20;

#[test]
fn no_claim_sees_a_block_twice() {
    let (session, broker) = attached(Mode::Alone);
    let seat = &broker.lane.seat;
    // Two threads with one block each at most: that is never too much.
    seat.share.store(2 * BLOCK, Ordering::Release);
    let both = Barrier::new(2);
    let takes_turns = || {
        both.wait();
        for _ in 0..1_000_000 {
            assert!(session.claim(BLOCK));
            session.memory_changed(BLOCK as i64, BLOCK);
            session.memory_changed(-(BLOCK as i64), 0);
        }
    };
    thread::scope(|scope| {
        scope.spawn(takes_turns);
        scope.spawn(takes_turns);
    });
    let (asked, dropped) = session.messages.take();
    assert!(
        asked.is_empty() && dropped == 0,
        "{} times more was asked for",
        asked.len()
    );
    // What was not had is no more on its way, and what is too much is asked for.
    assert!(session.claim(2 * BLOCK));
    session.unclaim(2 * BLOCK);
    assert!(session.claim(2 * BLOCK));
    session.memory_changed(2 * BLOCK as i64, 2 * BLOCK);
    thread::scope(|scope| {
        scope.spawn(|| assert!(session.claim(1)));
        let asks = || {
            session
                .messages
                .take()
                .0
                .into_iter()
                .any(|asked| matches!(asked, ToBroker::More { .. }))
        };
        until("it asks for more", asks);
        seat.share.store(3 * BLOCK, Ordering::Release);
        seat.answers.fetch_add(1, Ordering::AcqRel);
        let _ = futex::wake(&seat.answers, Flags::empty(), u32::MAX >> 1);
    });
    session.unclaim(1);
    assert_eq!(session.held(), 2 * BLOCK);
}
