//! The launch queue's requests to the session (`crate::deferred`): which launches may be deferred,
//! how deferred ones go, and when the gate must open.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use weft_gate::charge;
use weft_protocol::Ns;
use weft_protocol::lane::{Mode, flags};

use super::devices::session;
use super::post_launch::Step;
use super::post_launch::Ticket;
use super::state::Session;
use super::{devices, peers};
use crate::client::clock;
use crate::kernels::launch::LaunchInfo;
use crate::profiler::Look;

impl Session {
    /// Whether a launch that must wait can be deferred: not if it is captured, sampled or in a
    /// tuning burst.
    pub(super) fn may_leave_behind(&self, launch: &LaunchInfo) -> bool {
        let orders = &self.link.lane.orders;
        !launch.capturing
            && Mode::from_word(orders.mode.load(Ordering::Acquire)) == Some(Mode::Background)
            && orders.flags.load(Ordering::Relaxed) & flags::PROFILE == 0
            && self.captures.load(Ordering::Acquire) == 0
            && !self.tuning.is_timing(clock::now())
            && !peers::awaits(launch.kernel_hash)
    }

    /// Passes a launch that is already counted through the gate, when its turn comes.
    pub fn before_waiting(&self, launch: &LaunchInfo) -> Step {
        let serving = self.link.lane.orders.flags.load(Ordering::Relaxed) & flags::SAMPLE != 0;
        let step = match self.mode() {
            Mode::Background => self.fill_in_turn(launch.kernel_hash, launch.stream, launch.kind, launch.cost_hint),
            Mode::Foreground => {
                self.hold(launch.kernel_hash, launch.stream, launch.kind, launch.cost_hint);
                return Step::NOTHING;
            }
            Mode::Free | Mode::Alone => return Step::NOTHING,
        };
        let onto_idle = step.is_first();
        if serving && self.sampler.due(onto_idle) {
            let sampled = self.watch(launch, Look::Serve { onto_idle });
            return if sampled.is_nothing() { step } else { sampled };
        }
        step
    }

    /// Whether a thread has waited long enough for the queue; the gate is then open.
    #[inline]
    pub fn in_a_hurry(&self, now: Ns) -> bool {
        now >= self.hurry.load(Ordering::Relaxed)
    }
}

/// Whether a launch that must wait can be deferred.
pub fn may_leave_behind(launch: &LaunchInfo) -> bool {
    // Not on several devices. Each gate opens by itself, but deferred launches keep one order over
    // all devices.
    session().is_some_and(|session| session.may_leave_behind(launch))
}

/// Predicted time of a launch, ns.
pub fn cost_of(launch: &LaunchInfo) -> Ns {
    devices::first().map_or(0, |session| {
        session.cost(launch.kernel_hash, launch.kind, launch.cost_hint)
    })
}

/// Predicted time of a fill or copy of `bytes` on the device, ns.
pub fn cost_of_bytes(bytes: u64) -> Ns {
    devices::first().map_or(0, |session| session.link.slowed(charge::device_copy_time(bytes)))
}

/// Counts a deferred launch.
pub fn left_behind() {
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
pub fn held_failed() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.left_failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// [`super::before_launch`] for a deferred or waiting launch. Waits at the gate, within a bound.
pub fn before_held(launch: &LaunchInfo) -> Ticket {
    let session = session().or_else(|| devices::at(devices::here()));
    Ticket(session.map_or(Step::NOTHING, |session| session.before_waiting(launch)))
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
