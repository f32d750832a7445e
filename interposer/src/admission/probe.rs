// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes of free device memory, which show the broker the memory of contexts and strangers.
//!
//! A probe is valid only if no memory changed during it. So each change is announced before the
//! driver call and ends after it was counted
//! ([`ChangeCounts`](weft_protocol::admission_slot::ChangeCounts)). A probe during a change of its
//! own process is dropped. The broker repeats a probe during another job's change. Times are the
//! system clock's, because processes compare them.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use weft_protocol::Ns;
use weft_protocol::control::ToBroker;

use crate::client::clock;
use crate::client::link::BrokerLink;

/// Shortest interval between two probes: each asks the driver.
const PROBE_PAUSE_NS: Ns = 10_000_000;

/// Changes of the process's memory, and its probes.
#[derive(Debug, Default)]
pub struct MemoryChanges {
    begun: AtomicU64,
    done: AtomicU64,
    last: AtomicU64,
    /// Last answered request: 0 none, 1 the first probe, plus one for each of the broker's
    /// requests.
    answered: AtomicU32,
    probed_at: AtomicU64,
    beside_context: AtomicBool,
}

/// An announced change; its drop means that the change was counted.
#[derive(Debug)]
pub struct MemoryChange {
    changes: &'static MemoryChanges,
    link: &'static BrokerLink,
}

impl Drop for MemoryChange {
    fn drop(&mut self) {
        let (changes, now) = (self.changes, clock::system());
        changes.last.fetch_max(now, Ordering::AcqRel);
        let done = changes.done.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        self.link.lane.moves.done(done, now);
    }
}

#[derive(Debug, Clone, Copy)]
pub struct BegunProbe {
    at: Ns,
    changes: u64,
    request: u32,
}

impl MemoryChanges {
    pub fn begin(&'static self, link: &'static BrokerLink) -> MemoryChange {
        let begun = self.begun.fetch_add(1, Ordering::AcqRel).saturating_add(1);
        link.lane.moves.begun(begun);
        MemoryChange { changes: self, link }
    }

    /// Writes the past changes into a new lane.
    pub fn report(&self, link: &BrokerLink) {
        let done = self.done.load(Ordering::Acquire);
        link.lane.moves.begun(self.begun.load(Ordering::Acquire));
        link.lane.moves.done(done, self.last.load(Ordering::Acquire));
    }

    /// Begins a probe if one is due: at the process's first memory, and at the broker's request.
    pub fn begin_probe(&self, link: &BrokerLink) -> Option<BegunProbe> {
        let answers = link
            .lane
            .admission_slot
            .probe_requests
            .load(Ordering::Relaxed)
            .wrapping_add(1);
        if self.answered.load(Ordering::Relaxed) == answers {
            return None;
        }
        let at = clock::system();
        let probed = self.probed_at.load(Ordering::Relaxed);
        if probed != 0 && at.saturating_sub(probed) < PROBE_PAUSE_NS {
            return None;
        }
        self.probed_at.store(at, Ordering::Relaxed);
        let done = self.done.load(Ordering::Acquire);
        (self.begun.load(Ordering::Acquire) == done).then_some(BegunProbe {
            at,
            changes: done,
            request: answers,
        })
    }

    /// Begins the probe for the process's first context.
    pub fn begin_context_probe(&self) -> Option<BegunProbe> {
        if self.beside_context.swap(true, Ordering::AcqRel) {
            return None;
        }
        let done = self.done.load(Ordering::Acquire);
        (self.begun.load(Ordering::Acquire) == done).then_some(BegunProbe {
            at: clock::system(),
            changes: done,
            request: 0,
        })
    }

    /// Reports the probe for the first context, in bytes. Code loaded later shows with the first
    /// memory.
    pub fn report_context_probe(&self, link: &BrokerLink, probe: BegunProbe, free: u64, (held, own): (u64, u64)) {
        if self.begun.load(Ordering::Acquire) == probe.changes {
            let at = probe.at;
            link.messages.put(ToBroker::Context { free, held, own, at });
        }
    }

    /// Reports a probe: bytes free, and bytes (held, own managed).
    pub fn report_probe(&self, link: &BrokerLink, probe: BegunProbe, free: u64, (held, own): (u64, u64)) {
        if self.begun.load(Ordering::Acquire) != probe.changes {
            return;
        }
        if self.answered.swap(probe.request, Ordering::AcqRel) != probe.request {
            let at = probe.at;
            link.messages.put(ToBroker::Context { free, held, own, at });
        }
    }
}
