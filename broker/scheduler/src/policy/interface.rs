// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interface of a policy: the core's questions, and the observations that the core passes on.
//!
//! All methods but [`Policy::decide`] have a default, so a simple policy is one short file.

use std::fmt::Debug;

use weft_profiles::{Profile, predictor::Quality};
use weft_protocol::{Ns, lane::Mode};

use crate::{
    client::KernelAtGate,
    dispatcher::Dispatcher,
    queue::ClientSlot,
    state::SchedulerState,
    stretch_times::StretchTimes,
    tally::{Lateness, RoleTally},
};

/// Properties of a policy that never change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PolicyTraits {
    /// Whether kernels are granted before earlier ones are seen to end. If so, a long kernel counts
    /// until its end is seen, and the policy itself tops up the credit of a sole background job. If
    /// not, the core does that whenever the job reports ([`top_up`](crate::delay_bound::top_up)).
    pub grants_by_clock: bool,
    /// Whether its reports have the tallies of background jobs, by more accurate times.
    pub tallies_background: bool,
}

/// How a waiting kernel is queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitTerms {
    /// Time that must fit into a gap, ns.
    pub long: Ns,
    /// When the minimum share lets it through.
    pub due: Ns,
    /// The most that a kernel of its job was measured to take, ns; 0: unknown.
    pub longest: Ns,
}

/// A policy's knowledge of a client, for people.
#[derive(Debug, Default)]
pub(crate) struct PolicyReport {
    /// Lateness that background jobs caused a foreground job, if the policy measures it.
    pub lateness: Option<Lateness>,
    /// Lengths of a foreground job's stretches, if the policy sees them. `None`: there were none.
    pub stretch_times: Option<Box<StretchTimes>>,
    /// Tally of a background job by learnt times, if the policy learns them.
    pub background: Option<RoleTally>,
    /// Quality of its forecasts of gaps, and the number of contexts.
    pub gaps: (Quality, usize),
    /// Quality of its forecasts of kernel times, and the number of contexts.
    pub times: (Quality, usize),
}

/// Event that the core has checked and booked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Observed<'a> {
    /// The client took this slot.
    Attached {
        slot: ClientSlot,
        profile: Option<&'a Profile>,
    },
    /// The client is gone; the slot may be used again.
    Removed { slot: ClientSlot },
    /// The client's turn is over: its priority changed, or its long turn ended.
    TurnOver { slot: ClientSlot },
    /// The client's profile does not fit its device.
    Unprofiled { slot: ClientSlot },
    /// The client's mode changed. Its activity in the meantime was not reported.
    ModeChanged { slot: ClientSlot, before: Mode },
    /// `cost`: its predicted time, ns. `earlier_end`: when earlier work of the foreground job
    /// ended, seen or predicted. `end`: new predicted end of all its work.
    ForegroundLaunched {
        slot: ClientSlot,
        kernel: u64,
        cost: Ns,
        at: Ns,
        earlier_end: Ns,
        end: Ns,
    },
    /// A foreground job saw its work end.
    ForegroundIdle { slot: ClientSlot, at: Ns },
    /// A call of a foreground job, made at `since`, waited until `at` for its work launched up to
    /// `covers`. Other work of the job is left.
    PartialWait {
        slot: ClientSlot,
        covers: Ns,
        since: Ns,
        at: Ns,
    },
    /// An idle foreground job made a driver call other than a launch.
    WakeUpHint { slot: ClientSlot, at: Ns },
    /// The launch is not booked yet. `passed`: it waited at the gate.
    BackgroundLaunched {
        slot: ClientSlot,
        kernel: u64,
        cost: Ns,
        at: Ns,
        passed: bool,
    },
    /// A background job's work, worth `completed` ns, was seen to end.
    Completed { slot: ClientSlot, completed: Ns, now: Ns },
    /// A background job launched `issued` ns on credit for gaps.
    GapUsed { slot: ClientSlot, issued: Ns, now: Ns },
    /// The device measured a kernel launched at `at`.
    Measured {
        slot: ClientSlot,
        kernel: u64,
        time: Ns,
        at: Ns,
    },
    /// The least and the most that a kernel launched at `at` took.
    Bounded {
        slot: ClientSlot,
        kernel: u64,
        bounds: (Ns, Ns),
        at: Ns,
    },
    /// Time by which the core was woken too late, ns.
    WokenLate(Ns),
    /// The core is about to decide. Time has passed.
    Decides,
}

impl Observed<'_> {
    /// The client whose turn among equals is over, if one is.
    pub(crate) fn ends_turn(&self) -> Option<ClientSlot> {
        match *self {
            Observed::Removed { slot } | Observed::TurnOver { slot } | Observed::ModeChanged { slot, .. } => Some(slot),
            _ => None,
        }
    }
}

/// Rule that decides which background job may launch when.
pub(crate) trait Policy: Debug + Send {
    /// Its properties.
    fn traits(&self) -> PolicyTraits {
        PolicyTraits::default()
    }

    /// Learns from an observation. May have launches timed, set charges and move windows.
    fn observe(&mut self, _to: &mut Dispatcher<'_>, _seen: &Observed<'_>) {}

    /// Grants and revokes credit. Clients out of turn are not in the queue.
    fn decide(&mut self, to: &mut Dispatcher<'_>);

    /// How a kernel is queued that waits from now on.
    fn terms(&self, state: &SchedulerState, _slot: ClientSlot, wait: &KernelAtGate) -> WaitTerms {
        WaitTerms {
            long: wait.cost,
            due: wait.since.saturating_add(state.share_interval(wait.cost)),
            longest: 0,
        }
    }

    /// Background work in front of a foreground launch at `at`, ns.
    fn work_ahead(&self, state: &SchedulerState, _at: Ns) -> Ns {
        state.exposure
    }

    /// Its knowledge of a client.
    fn report(&self, _slot: ClientSlot, _now: Ns) -> PolicyReport {
        PolicyReport::default()
    }
}
