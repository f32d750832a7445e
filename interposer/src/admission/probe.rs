//! Probes of free device memory, which tell the broker what contexts and strangers take.
//!
//! A probe is valid only if no memory was taken or given back beside it. So each change is
//! announced before the driver call and ended after it was counted
//! ([`Moves`](weft_protocol::admission_slot::Moves)). A probe beside a change of its own process is
//! dropped; the broker repeats one beside another job's change. The clock is the system's, because
//! processes compare these times.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use weft_protocol::Ns;
use weft_protocol::control::ToBroker;

use crate::client::clock;
use crate::client::link::BrokerLink;

/// Shortest interval between two probes, ns: each asks the driver.
const PAUSE: Ns = 10_000_000;

/// Changes of what the process holds, and its probes.
#[derive(Debug, Default)]
pub struct Changes {
    begun: AtomicU64,
    done: AtomicU64,
    last: AtomicU64,
    /// Last answered request: 0 none, 1 the first probe, plus one for each of the broker's.
    answered: AtomicU32,
    /// Time of the last probe, ns.
    looked: AtomicU64,
    /// Whether the first context was probed.
    beside_context: AtomicBool,
}

/// A guard around a change, dropped when it is counted.
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

/// A probe that has begun.
#[derive(Debug, Clone, Copy)]
pub struct Looking {
    at: Ns,
    changes: u64,
    answers: u32,
}

impl Changes {
    /// Announces a change; [`Moving`] ends it.
    pub fn moving(&'static self, link: &'static BrokerLink) -> Moving {
        let begun = self.begun.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        link.lane.moves.begun(begun);
        Moving { changes: self, link }
    }

    /// Writes the past changes into a new lane.
    pub fn report(&self, link: &BrokerLink) {
        let changes = self;
        let done = changes.done.load(Ordering::Acquire);
        link.lane.moves.begun(changes.begun.load(Ordering::Acquire));
        link.lane.moves.done(done, changes.last.load(Ordering::Acquire));
    }

    /// Begins a probe if one is due: at the process's first memory, and when the broker asks again.
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

    /// Begins a probe beside the process's first context.
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

    /// Reports a probe beside the first context: bytes free, and bytes (held, own managed). Later
    /// loads show with the first memory.
    pub fn looked_at_context(&self, link: &BrokerLink, look: Looking, free: u64, (held, own): (u64, u64)) {
        if self.begun.load(Ordering::Acquire) == look.changes {
            let at = look.at;
            link.messages.put(ToBroker::Context { free, held, own, at });
        }
    }

    /// Reports a probe: bytes free, and bytes (held, own managed).
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
