//! The launch queue's requests to the session (`crate::deferred`): which launches may be deferred,
//! how deferred ones go, and when the gate must open.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use weft_gate::charge;
use weft_protocol::Ns;
use weft_protocol::lane::{Mode, flags};

use super::devices::session;
use super::state::Session;
use super::{devices, peers};
use crate::client::clock;
use crate::kernels::launch::Launch;

impl Session {
    /// Whether a launch that must wait can be deferred: not if it is captured, sampled or in a
    /// tuning burst.
    pub(super) fn may_defer(&self, launch: Launch) -> bool {
        let orders = &self.link.lane.orders;
        !launch.is_captured()
            && Mode::from_word(orders.mode.load(Ordering::Acquire)) == Some(Mode::Background)
            && orders.flags.load(Ordering::Relaxed) & flags::PROFILE == 0
            && self.captures.load(Ordering::Acquire) == 0
            && !self.tuning.is_timing(clock::now())
            && !peers::awaits(launch.identity())
    }

    /// Whether a thread has waited long enough for the queue; the gate is then open.
    #[inline]
    pub fn in_a_hurry(&self, now: Ns) -> bool {
        now >= self.hurry.load(Ordering::Relaxed)
    }
}

/// Whether a launch that must wait can be deferred.
pub fn may_defer(launch: Launch) -> bool {
    // Not on several devices. Each gate opens by itself, but deferred launches keep one order over
    // all devices.
    session().is_some_and(|session| session.may_defer(launch))
}

/// Predicted time of a launch, ns.
pub fn cost_of(launch: Launch) -> Ns {
    devices::first().map_or(0, |session| session.cost(launch))
}

/// Predicted time of a fill or copy of `bytes` on the device, ns.
pub fn cost_of_bytes(bytes: u64) -> Ns {
    devices::first().map_or(0, |session| session.link.slowed(charge::device_copy_time(bytes)))
}

/// Counts a deferred launch.
pub fn launch_deferred() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.left_behind.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a launch that enters the queue without a request to the session.
pub fn counted() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.launches.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a deferred launch that failed.
pub fn deferred_failed() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.left_failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Longest wait of a launch at the gate, ns.
pub fn longest_wait() -> Ns {
    devices::first().map_or(0, Session::longest_wait)
}

/// Opens the gate at `time`, because a thread waits for the queue; [`Ns::MAX`]: no thread does.
pub fn hurry_by(time: Ns) {
    for session in devices::all() {
        session.hurry.store(time, Ordering::Relaxed);
    }
}
