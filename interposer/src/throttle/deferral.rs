//! What the launch queue (`crate::deferred`) asks of the session: whether a launch may be left
//! behind, how one that was goes, who is in a hurry.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;

use weft_protocol::Ns;
use weft_protocol::lane::{Mode, flags};

use super::copies::DEVICE_BANDWIDTH;
use super::devices::session;
use super::post_launch::Step;
use super::post_launch::Ticket;
use super::state::Session;
use super::{devices, peers};
use crate::client::clock;
use crate::kernels::launch::LaunchInfo;
use crate::profiler::Look;

impl Session {
    /// Whether a launch that has to wait at the gate may do so without its thread. Not one that is
    /// sampled, nor in a burst by which the job times its kernels.
    pub(super) fn may_leave_behind(&self, launch: &LaunchInfo) -> bool {
        let orders = &self.link.lane.orders;
        !launch.capturing
            && Mode::from_word(orders.mode.load(Ordering::Acquire)) == Some(Mode::Background)
            && orders.flags.load(Ordering::Relaxed) & flags::PROFILE == 0
            && self.captures.load(Ordering::Acquire) == 0
            && !self.tuning.is_timing(clock::now())
            && !peers::awaits(launch.kernel_hash)
    }

    /// As [`Session::before_launch`] for a launch that is counted already: goes through the gate in
    /// its turn.
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

    /// Whether somebody waits for the queue who has waited long enough: the gate is open then.
    #[inline]
    pub fn in_a_hurry(&self, now: Ns) -> bool {
        now >= self.hurry.load(Ordering::Relaxed)
    }
}

/// See [`Session::may_leave_behind`].
pub fn may_leave_behind(launch: &LaunchInfo) -> bool {
    // A job on several devices leaves nothing behind: each device's gate opens by itself, and what
    // was left keeps its order over all of them.
    session().is_some_and(|session| session.may_leave_behind(launch))
}

/// What a launch is predicted to take.
pub fn cost_of(launch: &LaunchInfo) -> Ns {
    devices::first().map_or(0, |session| {
        session.cost(launch.kernel_hash, launch.kind, launch.cost_hint)
    })
}

/// What a fill or copy of so many bytes on the device is predicted to take.
pub fn cost_of_bytes(bytes: u64) -> Ns {
    devices::first().map_or(0, |session| session.link.slowed(bytes / DEVICE_BANDWIDTH))
}

/// A launch was left behind.
pub fn left_behind() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.left_behind.fetch_add(1, Ordering::Relaxed);
    }
}

/// A launch that nobody asked the session about goes into the queue: it is counted like any other.
pub fn counted() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.launches.fetch_add(1, Ordering::Relaxed);
    }
}

/// A launch that was left behind has failed.
pub fn held_failed() {
    if let Some(session) = devices::first() {
        session.link.lane.counters.left_failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// As [`super::before_launch`] for one that was left behind, or that has to wait. It waits at the
/// gate, within a bound.
pub fn before_held(launch: &LaunchInfo) -> Ticket {
    let session = session().or_else(|| devices::at(devices::here()));
    Ticket(session.map_or(Step::NOTHING, |session| session.before_waiting(launch)))
}

/// How long a launch waits at the gate at most.
pub fn longest_wait() -> Ns {
    devices::first().map_or(0, Session::longest_wait)
}

/// From this time on the gate is open, because somebody waits for the queue; [`Ns::MAX`]: nobody
/// does.
pub fn hurry_by(time: Ns) {
    for session in devices::all() {
        session.hurry.store(time, Ordering::Relaxed);
    }
}
