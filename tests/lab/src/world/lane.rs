//! A job's lane, and what its client keeps beside it. The words are plain values here: all of it
//! happens on one thread, in virtual time.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use weft_gate::charge;
use weft_profiles::Profile;
use weft_protocol::credit::RunAheadWindow;
use weft_scheduler::{Event, Mode};

use crate::Ns;
use crate::job::Play;

/// A launch at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WaitingLaunch {
    pub(super) kernel: u64,
    pub(super) cost: Ns,
    pub(super) since: Ns,
}

/// When a client rings for the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GateBell {
    None,
    /// When it becomes idle.
    Idle,
    /// Whenever it has something to say.
    All,
}

/// A job's lane, and what its client keeps beside it.
#[derive(Debug)]
pub(super) struct GateLane {
    pub(super) profile: Option<Arc<Profile>>,
    pub(super) costs: HashMap<u64, Ns>,
    pub(super) unknown: Ns,
    /// What kernels may well take that are charged much less.
    pub(super) longs: HashMap<u64, Ns>,
    pub(super) mode: Mode,
    pub(super) credit: i64,
    pub(super) bound: bool,
    pub(super) epochs: u64,
    pub(super) issued: Ns,
    pub(super) settled: Ns,
    /// The launch that waits for the broker's word,
    pub(super) waiting: Option<WaitingLaunch>,
    /// or only for the device, under a run-ahead window.
    pub(super) paced: Option<WaitingLaunch>,
    /// Until when the run-ahead window was under which the broker's word was asked for.
    pub(super) came_under: Option<Ns>,
    pub(super) window: Option<RunAheadWindow>,
    pub(super) renewed: Ns,
    /// When the device is done with what this job has launched, as predicted.
    pub(super) free_at: Ns,
    pub(super) told: (Ns, Ns, Ns),
    pub(super) told_wait: Option<WaitingLaunch>,
    /// When the broker wants to be rung, and when it last asked for a foreground job's idleness.
    pub(super) bell: GateBell,
    pub(super) bell_asked: Option<Ns>,
    /// Whether the last that was told of it is that its work has ended.
    pub(super) told_idle: bool,
    pub(super) records: Vec<(Ns, Event)>,
    /// Streams with work, with the synchronisations of others since.
    pub(super) busy: Vec<Option<u32>>,
    /// When work was last seen to end or began; when a mark was due last.
    pub(super) progress: Ns,
    pub(super) last_mark: Ns,
    /// Which look at the gate is the valid one, and when it is.
    pub(super) token: u32,
    pub(super) look_at: Ns,
}

impl GateLane {
    pub(super) fn new(profile: Option<Arc<Profile>>, streams: usize) -> GateLane {
        GateLane {
            profile,
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
            busy: vec![None; streams],
            progress: 0,
            last_mark: 0,
            token: 0,
            look_at: 0,
        }
    }

    /// What a kernel of this cost may well take.
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

    pub(super) fn cost(&self, play: &Play) -> Ns {
        match play {
            Play::Compute { bytes, .. } if *bytes > 0 => charge::device_copy_time(*bytes),
            Play::Compute { kernel, .. } => self.costs.get(kernel).copied().unwrap_or(self.unknown),
            Play::Copy { bytes, .. } => charge::host_copy_time(*bytes),
            _ => 0,
        }
    }
}
