// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process of a job on one device, and its admission slot.
//!
//! Invariant: only this file writes admission slots, except for the heartbeat.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::thread::futex;

use crate::base::clock;
use crate::base::process::Process;
use crate::clients::registry::Entry;
use crate::server::ToTheClient;
use weft_protocol::Ns;
use weft_protocol::admission_slot::{AdmissionState, ChangeCounts, SlotBacking};
use weft_protocol::control::ToClient;
use weft_protocol::eviction::{EvictionCause, EvictionSlot, MoveBy, Residence};

/// Time after which a change of a client's memory counts as stuck. Changes take microseconds, in a
/// busy driver some milliseconds. If one takes longer, the client is stopped (Ctrl-Z, a debugger)
/// or reports a false state.
const STUCK_NS: Ns = 1_000_000_000;

/// A client of a job.
#[derive(Debug)]
pub struct Member {
    entry: Arc<Entry>,
    sender: ToTheClient,
    process: Process,
    /// Time of its admission, ns; 0: not admitted yet.
    admitted_at: AtomicU64,
    changes: ChangeProbes,
}

/// Terms of a client's admission.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Bytes that it may have now.
    pub quota: u64,
    /// Bytes that it can get at most.
    pub limit: u64,
    /// Whether the need was declared.
    pub declared: bool,
    /// Whether the memory is managed; if so, quota and limit are 0.
    pub managed: bool,
}

impl Member {
    pub fn new(entry: &Arc<Entry>, sender: &ToTheClient) -> Member {
        Member {
            entry: Arc::clone(entry),
            sender: sender.clone(),
            process: entry.process(),
            admitted_at: AtomicU64::new(0),
            changes: ChangeProbes::default(),
        }
    }

    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    pub fn process(&self) -> Process {
        self.process
    }

    /// Time of its first admission.
    pub fn admitted_at(&self) -> Option<Ns> {
        Some(self.admitted_at.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    /// Bytes that it holds, by its own counter, without context.
    pub fn held(&self) -> u64 {
        self.entry.lane.counters.memory.load(Ordering::Acquire)
    }

    /// Its launches so far, of kernels and graphs.
    pub fn launches(&self) -> u64 {
        let counters = &self.entry.lane.counters;
        let graphs = counters.graph_launches.load(Ordering::Relaxed);
        counters.launches.load(Ordering::Relaxed).saturating_add(graphs)
    }

    /// Managed bytes that it took by itself, which the driver evicts at will.
    pub fn managed_own(&self) -> u64 {
        self.entry.lane.counters.managed_own.load(Ordering::Acquire)
    }

    /// Its quota, bytes without context; 0: not admitted.
    pub fn quota(&self) -> u64 {
        self.entry.lane.admission_slot.quota.load(Ordering::Acquire)
    }

    /// Bytes of its quota that it does not hold.
    pub fn spare(&self) -> u64 {
        self.quota().saturating_sub(self.held())
    }

    /// Sends a line for its user.
    pub fn say(&self, line: &str) {
        let _ = self.sender.send(ToClient::Said(line.to_string()));
    }

    /// Writes its admission.
    pub fn admit(&self, terms: Terms) {
        let _ = self
            .admitted_at
            .compare_exchange(0, clock::now(), Ordering::Relaxed, Ordering::Relaxed);
        let slot = &self.entry.lane.admission_slot;
        slot.quota.store(terms.quota, Ordering::Relaxed);
        slot.limit.store(terms.limit, Ordering::Relaxed);
        slot.declared.store(u32::from(terms.declared), Ordering::Relaxed);
        let backing = match terms.managed {
            true => SlotBacking::Managed,
            false => SlotBacking::Device,
        };
        slot.backing.store(backing as u32, Ordering::Relaxed);
        self.set_state(AdmissionState::Admitted);
    }

    /// Admits it without quota and account.
    pub fn admit_uncounted(&self) {
        self.set_state(AdmissionState::Admitted);
    }

    /// Sends it the reason and refuses it.
    pub fn refuse(&self, why: &str) {
        self.say(why);
        self.set_state(AdmissionState::Refused);
    }

    pub fn waits(&self) -> bool {
        self.entry.lane.admission_slot.state() == AdmissionState::Waits
    }

    /// Makes it wait at this position, and sends it a line about that.
    pub fn wait(&self, position: u64, line: &str) {
        self.say(line);
        self.set_position(position);
        self.set_state(AdmissionState::Waits);
    }

    /// Sets its position. Returns whether the position changed.
    pub fn set_position(&self, position: u64) -> bool {
        let word = &self.entry.lane.admission_slot.position;
        u64::from(word.swap(position as u32, Ordering::Relaxed)) != position
    }

    /// Clears its state, for a later request of the same client.
    pub fn forget(&self) {
        let state = &self.entry.lane.admission_slot.state;
        state.store(AdmissionState::Unknown as u32, Ordering::Release);
    }

    /// Leaves a quota of one byte, until the client sees that it waits.
    pub fn take_quota(&self) {
        self.entry.lane.admission_slot.quota.store(1, Ordering::Release);
    }

    /// Writes the limit of an admitted client without a declared need: quota + free bytes.
    pub fn show_limit(&self, free: u64) {
        let slot = &self.entry.lane.admission_slot;
        let quota = slot.quota.load(Ordering::Acquire);
        if quota > 0 {
            slot.limit.store(quota.saturating_add(free), Ordering::Relaxed);
        }
    }

    /// Takes back quota that it does not use, at most `wanted` bytes, and leaves at least `least`.
    /// Takes nothing while its memory changes, because its held bytes are then unknown.
    pub fn give_back(&self, least: u64, wanted: u64) -> u64 {
        let lane = &self.entry.lane;
        // A waiting client will take all the quota that it has.
        if lane.admission_slot.growing.load(Ordering::Acquire) != 0 {
            return 0;
        }
        let Some(before) = lane.moves.ended() else { return 0 };
        let keeps = self.held().max(least).max(1);
        let given = self.quota().saturating_sub(keeps).min(wanted);
        lane.admission_slot.quota.fetch_sub(given, Ordering::AcqRel);
        // Either the client sees the smaller quota after it has begun a change, or that change is
        // seen here.
        fence(Ordering::SeqCst);
        if lane.moves.ended() != Some(before) {
            lane.admission_slot.quota.fetch_add(given, Ordering::AcqRel);
            return 0;
        }
        given
    }

    /// Its movable memory.
    pub fn eviction(&self) -> &EvictionSlot {
        &self.entry.lane.eviction
    }

    /// Whether the driver's checkpoint has taken all of it off the device, its context too, or is
    /// bringing it back.
    pub fn is_checkpointed(&self) -> bool {
        self.returns_by_driver() || self.moves_by_driver() && self.eviction().residence() == Residence::Evicted
    }

    /// Whether the driver is bringing it back: an unknown part of it is on the device.
    pub fn returns_by_driver(&self) -> bool {
        self.moves_by_driver() && self.eviction().residence() == Residence::Returns
    }

    /// Whether the driver's checkpoint moves it.
    pub fn moves_by_driver(&self) -> bool {
        self.eviction().by() == MoveBy::Checkpoint
    }

    /// Orders it to move its memory to the host, or back.
    pub fn order_move(&self, evict: bool, cause: EvictionCause) {
        let slot = self.eviction();
        if slot.residence() != Residence::Fixed {
            slot.give_order(evict, cause);
            let _ = futex::wake(&slot.order, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Since when it offers its memory because it is idle, if it may get an order now.
    pub fn offered(&self) -> Option<Ns> {
        let slot = self.eviction();
        let may = slot.residence() == Residence::Device && slot.is_answered() && slot.allows_checkpoint();
        slot.offered().filter(|_| may)
    }

    /// Whether it refused the latest order to leave.
    pub fn refuses_to_leave(&self) -> bool {
        let slot = self.eviction();
        slot.residence() == Residence::Device && slot.obstacle().is_some()
    }

    /// Whether some of its memory is on the host.
    pub fn has_evicted(&self) -> bool {
        let slot = self.eviction();
        slot.residence() != Residence::Device && slot.evicted.load(Ordering::Relaxed) > 0
    }

    /// Takes quota that it does not use, at most `most` bytes, if its memory is on the host.
    /// Returns the bytes.
    pub fn take_of_evicted(&self, most: u64) -> u64 {
        let slot = &self.entry.lane.eviction;
        let away = slot.residence() == Residence::Evicted && slot.evicted.load(Ordering::Relaxed) > 0;
        if !away || !slot.is_answered() || slot.returns() || self.quota() <= 1 {
            return 0;
        }
        let given = self.give_back(0, most);
        // Either the client sees the smaller quota once a call of its idle job waits, or that call
        // is seen here.
        fence(Ordering::SeqCst);
        if slot.returns() {
            let quota = &self.entry.lane.admission_slot.quota;
            quota.fetch_add(given, Ordering::AcqRel);
            return 0;
        }
        given
    }

    /// Bytes of its memory that are on the host and about to return, by an order or for a call.
    pub fn returning(&self) -> u64 {
        let slot = self.eviction();
        match slot.residence() == Residence::Evicted && slot.returns() {
            true => slot.needed_back(),
            false => 0,
        }
    }

    /// Shows the client that the answer to its request takes longer.
    pub fn show_growing(&self) {
        let slot = &self.entry.lane.admission_slot;
        slot.growing.store(1, Ordering::Release);
        wake(&slot.answers);
    }

    /// Adds granted bytes to its quota.
    pub fn grant(&self, bytes: u64) {
        let quota = &self.entry.lane.admission_slot.quota;
        quota.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Answers a request for more. Quota and limit must have been written before.
    pub fn answer(&self) {
        let slot = &self.entry.lane.admission_slot;
        slot.growing.store(0, Ordering::Release);
        slot.answers.fetch_add(1, Ordering::AcqRel);
        wake(&slot.answers);
    }

    /// Asks it to probe its device with its next memory.
    pub fn ask_to_probe(&self) {
        let requests = &self.entry.lane.admission_slot.probe_requests;
        requests.fetch_add(1, Ordering::Release);
    }

    /// Whether it is suspended, without memory or context.
    pub fn is_suspended_and_empty(&self) -> bool {
        let lane = &self.entry.lane;
        self.held() == 0 && lane.moves.still_since(0).is_none() && self.process.suspended() == Some(true)
    }

    /// State of its memory, at `now`, for a probe that began at `at`.
    pub fn stillness(&self, at: Ns, now: Ns) -> Stillness {
        self.changes.observe(&self.entry.lane.moves, at, now)
    }

    /// Records the start of a change under way.
    pub fn watch_changes(&self, now: Ns) {
        self.stillness(now, now);
    }

    fn set_state(&self, state: AdmissionState) {
        let word = &self.entry.lane.admission_slot.state;
        word.store(state as u32, Ordering::Release);
        wake(word);
    }
}

/// Record of how long a client's memory has been changing.
#[derive(Debug, Default)]
struct ChangeProbes {
    /// Time since which each probe has found a change; 0: the last probe found none.
    since: AtomicU64,
    /// Start of the change under way; 0: there is none.
    stuck: AtomicU64,
    /// Number of that change.
    which: AtomicU64,
}

/// State of a client's memory at a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stillness {
    /// Unchanged since the probe began.
    Still,
    /// No context was made.
    NoContext,
    Changing,
    /// Each probe for [`STUCK_NS`] found a change.
    ChangingOn,
    /// One change has been under way for [`STUCK_NS`].
    Stuck,
}

impl ChangeProbes {
    fn observe(&self, moves: &ChangeCounts, at: Ns, now: Ns) -> Stillness {
        let first = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
            0 => {
                word.store(now.max(1), Ordering::Relaxed);
                now
            }
            since => since,
        };
        let under_way = moves.under_way();
        match under_way {
            Some(which) if self.which.load(Ordering::Relaxed) == which => {}
            Some(which) => {
                self.which.store(which, Ordering::Relaxed);
                self.stuck.store(0, Ordering::Relaxed);
            }
            None => self.stuck.store(0, Ordering::Relaxed),
        }
        let stuck = under_way.map(|_| first(&self.stuck));
        match moves.still_since(at) {
            None => Stillness::NoContext,
            Some(true) => {
                self.since.store(0, Ordering::Relaxed);
                Stillness::Still
            }
            Some(false) => {
                let long = |since: Ns| now.saturating_sub(since) >= STUCK_NS;
                match (stuck.is_some_and(long), long(first(&self.since))) {
                    (true, _) => Stillness::Stuck,
                    (_, true) => Stillness::ChangingOn,
                    _ => Stillness::Changing,
                }
            }
        }
    }
}

fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
