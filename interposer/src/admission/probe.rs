//! How the broker learns what contexts and strangers take of a device: clients look at what is
//! free.
//!
//! A look tells something only if nobody took or gave back memory meanwhile. So each change of what
//! the job holds is made known before the driver is called and after it was counted
//! ([`Moves`](weft_protocol::admission_slot::Moves)); a look beside a change of the job's own is
//! left out, and the broker asks to look again where another job's was beside it. The clock is the
//! system's own: these times are compared between processes.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use weft_protocol::Ns;
use weft_protocol::control::ToBroker;

use crate::client::clock;
use crate::client::link::BrokerLink;

/// Between two looks: each asks the driver, and a job that takes memory all the time is not to pay
/// for that each time.
const PAUSE: Ns = 10_000_000;

/// Changes of what the process holds, and its looks.
#[derive(Debug, Default)]
pub struct Changes {
    begun: AtomicU64,
    done: AtomicU64,
    last: AtomicU64,
    /// What was asked for last is answered: 0 nothing, 1 the first look, and one more for each that
    /// the broker asked for.
    answered: AtomicU32,
    /// When it looked last.
    looked: AtomicU64,
    /// It looked when its first context was made.
    beside_context: AtomicBool,
}

/// What the process holds is about to change; dropped when it has and is counted.
#[derive(Debug)]
pub struct Moving {
    changes: &'static Changes,
    link: &'static BrokerLink,
}

impl Drop for Moving {
    fn drop(&mut self) {
        let (changes, now) = (self.changes, clock::system());
        changes.last.fetch_max(now, Ordering::AcqRel);
        let done = changes.done.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        self.link.lane.moves.done(done, now);
    }
}

/// A look that has begun.
#[derive(Debug, Clone, Copy)]
pub struct Looking {
    at: Ns,
    changes: u64,
    answers: u32,
}

impl Changes {
    /// See [`Moving`].
    pub fn moving(&'static self, link: &'static BrokerLink) -> Moving {
        let begun = self.begun.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        link.lane.moves.begun(begun);
        Moving { changes: self, link }
    }

    /// A new lane learns what changed before.
    pub fn report(&self, link: &BrokerLink) {
        let changes = self;
        let done = changes.done.load(Ordering::Acquire);
        link.lane.moves.begun(changes.begun.load(Ordering::Acquire));
        link.lane.moves.done(done, changes.last.load(Ordering::Acquire));
    }

    /// Whether to look at what is free now: when the process has its first memory, and when the
    /// broker asks again.
    pub fn looks(&self, link: &BrokerLink) -> Option<Looking> {
        let changes = self;
        let answers = link
            .lane
            .admission_slot
            .probe_requests
            .load(Ordering::Relaxed)
            .wrapping_add(1);
        if changes.answered.load(Ordering::Relaxed) == answers {
            return None;
        }
        let at = clock::system();
        let looked = changes.looked.load(Ordering::Relaxed);
        if looked != 0 && at.saturating_sub(looked) < PAUSE {
            return None;
        }
        changes.looked.store(at, Ordering::Relaxed);
        let done = changes.done.load(Ordering::Acquire);
        (changes.begun.load(Ordering::Acquire) == done).then_some(Looking {
            at,
            changes: done,
            answers,
        })
    }

    /// Whether to look beside a context that was made just now: the first of the process.
    pub fn looks_at_context(&self) -> Option<Looking> {
        let changes = self;
        if changes.beside_context.swap(true, Ordering::AcqRel) {
            return None;
        }
        let done = changes.done.load(Ordering::Acquire);
        (changes.begun.load(Ordering::Acquire) == done).then_some(Looking {
            at: clock::system(),
            changes: done,
            answers: 0,
        })
    }

    /// So much was free beside it, with so much held and so much managed by the job itself. What
    /// the job loads later is seen with its first memory.
    pub fn looked_at_context(&self, link: &BrokerLink, look: Looking, free: u64, (held, own): (u64, u64)) {
        if self.begun.load(Ordering::Acquire) == look.changes {
            let at = look.at;
            link.messages.put(ToBroker::Context { free, held, own, at });
        }
    }

    /// So much was free, with so much held and so much managed by the job itself.
    pub fn looked(&self, link: &BrokerLink, look: Looking, free: u64, (held, own): (u64, u64)) {
        let changes = self;
        if changes.begun.load(Ordering::Acquire) != look.changes {
            return;
        }
        if changes.answered.swap(look.answers, Ordering::AcqRel) != look.answers {
            let at = look.at;
            link.messages.put(ToBroker::Context { free, held, own, at });
        }
    }
}
