// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job's lane, and its client's state for it: plain values, for one thread in virtual time.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use weft_gate::active_streams::ActiveStreams;
use weft_gate::charge;
use weft_gate::event_times::EventTimes;
use weft_profiles::Profile;
use weft_protocol::credit::RunAheadWindow;
use weft_protocol::lane::DeviceSpeed;
use weft_scheduler::{Event, Mode};

use super::timing::LaunchTimer;
use crate::Ns;
use crate::job::Play;

/// A launch at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitingLaunch {
    pub(super) kernel: u64,
    pub(super) cost: Ns,
    pub(super) since: Ns,
}

/// The news for which a client rings for the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GateBell {
    None,
    /// The job becomes idle.
    Idle,
    /// All news.
    All,
}

/// A job's lane, and its client's state for it.
#[derive(Debug)]
pub(super) struct GateLane {
    pub(super) profile: Option<Arc<Profile>>,
    /// Factor on the charge of copies, relative to a real device.
    pub(super) dilation: f64,
    pub(super) costs: HashMap<u64, Ns>,
    pub(super) unknown: Ns,
    /// Likely times, ns, of kernels that are charged much less.
    pub(super) longs: HashMap<u64, Ns>,
    pub(super) mode: Mode,
    pub(super) credit: i64,
    pub(super) bound: bool,
    pub(super) epochs: u64,
    pub(super) issued: Ns,
    pub(super) settled: Ns,
    /// The launch that waits for the broker.
    pub(super) waiting: Option<WaitingLaunch>,
    /// The launch that waits only for the device, under a run-ahead window.
    pub(super) paced: Option<WaitingLaunch>,
    /// Deadline of the run-ahead window, ns, under which the wait was reported to the broker.
    pub(super) came_under: Option<Ns>,
    pub(super) window: Option<RunAheadWindow>,
    pub(super) renewed: Ns,
    /// Predicted end of this job's launches, ns.
    pub(super) free_at: Ns,
    pub(super) told: (Ns, Ns, Ns),
    pub(super) told_wait: Option<WaitingLaunch>,
    /// The news for which the broker wants to be rung, and the time of its last request to a
    /// foreground job to ring at its end.
    pub(super) bell: GateBell,
    pub(super) bell_asked: Option<Ns>,
    /// Whether the last reported record was that the job became idle.
    pub(super) told_idle: bool,
    pub(super) records: Vec<(Ns, Event)>,
    /// Whether the device times launches, and those that it timed.
    pub(super) timed: bool,
    pub(super) timer: LaunchTimer,
    /// Streams with work, by the interposer's own rule.
    pub(super) active_streams: ActiveStreams,
    /// Events of a foreground job, by the interposer's own rule.
    pub(super) event_times: EventTimes,
    /// Times, ns: work was last seen to end, or began; a fence was last due.
    pub(super) progress: Ns,
    pub(super) last_fence: Ns,
    /// The token of the valid look at the gate, and its time, ns.
    pub(super) token: u32,
    pub(super) look_at: Ns,
}

impl GateLane {
    pub(super) fn new(profile: Option<Arc<Profile>>) -> GateLane {
        GateLane {
            profile,
            dilation: 1.0,
            costs: HashMap::new(),
            unknown: 0,
            longs: HashMap::new(),
            mode: Mode::Free,
            credit: 0,
            bound: false,
            epochs: 0,
            issued: 0,
            settled: 0,
            waiting: None,
            paced: None,
            came_under: None,
            window: None,
            renewed: 0,
            free_at: 0,
            told: (0, 0, 0),
            told_wait: None,
            bell: GateBell::None,
            bell_asked: None,
            told_idle: false,
            records: Vec::new(),
            timed: false,
            timer: LaunchTimer::default(),
            active_streams: ActiveStreams::default(),
            event_times: EventTimes::default(),
            progress: 0,
            last_fence: 0,
            token: 0,
            look_at: 0,
        }
    }

    /// Likely time, ns, of a kernel of this cost.
    pub(super) fn long(&self, kernel: u64, cost: Ns) -> Ns {
        charge::long_time(cost, self.longs.get(&kernel).copied())
    }

    /// The sum of launch epochs that the credit is bound to, if any.
    pub(super) fn bound_to(&self) -> Option<u64> {
        self.bound.then_some(self.epochs)
    }

    /// Whether the credit covers a launch; `above`: the sum of launch epochs above its job's.
    pub(super) fn covers(&self, cost: Ns, above: u64) -> bool {
        charge::covers(self.credit, cost, self.bound_to(), above)
    }

    /// Whether the broker has sent a charge for a call's kernel. Other calls need none.
    pub(super) fn has_charge(&self, play: &Play) -> bool {
        match play {
            Play::Compute { kernel, bytes: 0, .. } => self.costs.contains_key(kernel),
            _ => true,
        }
    }

    pub(super) fn cost(&self, play: &Play) -> Ns {
        let slowed = |time: Ns| (time as f64 * self.dilation) as Ns;
        let speed = DeviceSpeed::default();
        match play {
            Play::Compute { bytes, .. } if *bytes > 0 => slowed(charge::copy_time(*bytes, speed.device_copy_mb_per_s)),
            Play::Compute { kernel, .. } => self.costs.get(kernel).copied().unwrap_or(self.unknown),
            Play::Copy { bytes, .. } => slowed(charge::copy_time(*bytes, speed.host_copy_mb_per_s)),
            _ => 0,
        }
    }
}
