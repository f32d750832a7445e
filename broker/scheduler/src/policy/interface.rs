// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interface of a policy: the core's questions, and the observations that the core passes on.
//!
//! A policy reads the state and gives one verdict at a time. The core carries it out and asks again
//! until the verdict is "nothing". All but [`Policy::next`] and [`Policy::forget_turn`] have a
//! default, so a simple policy is one short file.

use std::fmt::Debug;

use weft_profiles::{Profile, predictor::Quality};
use weft_protocol::{Ns, credit::RunAheadWindow};

use crate::{
    busy_model::Phase,
    client::KernelAtGate,
    queue::{ClientSlot, QueueEntry},
    state::SchedulerState,
    stretch_times::StretchTimes,
    tally::{Lateness, RoleTally},
};

/// A policy's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantVerdict {
    /// Grant this client credit, so that it has `total` ns left.
    Grant {
        slot: ClientSlot,
        total: Ns,
        /// Whether a more important launch voids it.
        bound: bool,
    },
    /// Revoke this client's unused credit.
    Revoke(ClientSlot),
    /// Ask again at this time if nothing happens before.
    Nothing(Option<Ns>),
}

/// Whether a background job gets credit before it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TopUp {
    /// Now, so that it has this much left, ns.
    To(Ns),
    /// Ask again at this time.
    At(Ns),
    No,
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
    /// The client's profile does not fit its device.
    Unprofiled { slot: ClientSlot },
    /// The client's mode changed. Its activity in the meantime was not reported.
    ModeChanged { slot: ClientSlot },
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
}

/// Rule that decides which background job may launch when.
pub(crate) trait Policy: Debug + Send {
    /// The next verdict. Asked while a client waits.
    fn next(&mut self, state: &SchedulerState, now: Ns) -> GrantVerdict;

    /// Forgets the turn of a client.
    fn forget_turn(&mut self, slot: ClientSlot);

    /// Learns from an observation.
    fn observe(&mut self, _state: &SchedulerState, _seen: &Observed<'_>) {}

    /// Time of a waiting kernel that must fit into a gap, ns.
    fn long_estimate(&self, _state: &SchedulerState, _slot: ClientSlot, wait: &KernelAtGate) -> Ns {
        wait.cost
    }

    /// When the minimum share lets a waiting kernel through.
    fn due(&self, state: &SchedulerState, _slot: ClientSlot, wait: &KernelAtGate, long: Ns) -> Ns {
        wait.since.saturating_add(state.share_interval(long))
    }

    /// Credit of a client that is due, ns.
    fn due_portion(&self, _state: &SchedulerState, entry: &QueueEntry) -> Ns {
        entry.cost
    }

    /// When to look again whether the minimum share goes to a due client, if a better moment is
    /// near.
    fn share_waits(&self, _state: &SchedulerState, _entry: &QueueEntry, _now: Ns) -> Option<Ns> {
        None
    }

    /// Whether a background job will soon starve without a gap, and so keeps its credit.
    fn is_starving(&self, _state: &SchedulerState, _slot: ClientSlot, _now: Ns) -> bool {
        false
    }

    /// Background work in front of a foreground launch at `at`, ns.
    fn work_ahead(&self, state: &SchedulerState, _at: Ns) -> Ns {
        state.exposure
    }

    /// Whether kernels are granted before earlier ones are seen to end. If so, a long kernel counts
    /// until its end is seen, and credit is topped up at the end of an iteration.
    fn grants_by_clock(&self) -> bool {
        false
    }

    /// Whether the only background job that wants credit gets more before it asks.
    fn top_up(&self, state: &SchedulerState, slot: ClientSlot, now: Ns) -> TopUp {
        let bound = state.config.delay_bound;
        let low = state.get(slot).is_some_and(|client| client.ledger.usable() < bound / 4);
        if low && state.exposure <= bound / 2 && matches!(state.phase(now), Phase::Open { .. }) {
            return TopUp::To(bound - state.exposure_before(slot));
        }
        TopUp::No
    }

    /// Run-ahead window of a client, and when to look at it again.
    fn window(&self, _state: &SchedulerState, _slot: ClientSlot, _now: Ns) -> Option<(RunAheadWindow, Ns)> {
        None
    }

    /// Foreground launches that bound credit outlives.
    fn outlives(&self, _state: &SchedulerState, _now: Ns) -> u64 {
        0
    }

    /// Whether background jobs run next to the foreground jobs without restriction. If so, neither
    /// a wait nor a wake-up hint ends their credit.
    fn is_open(&self, _state: &SchedulerState, _now: Ns) -> bool {
        false
    }

    /// Whether to start (`true`) or stop timing a client's launches. `None`: no change.
    fn timing_change(&mut self, _slot: ClientSlot, _background: bool) -> Option<bool> {
        None
    }

    /// A kernel, and the time in ns that a client is to charge for it from now on, if the time is
    /// new. Kernel 0: kernels without a known time.
    fn next_charge(&mut self, _state: &SchedulerState, _slot: ClientSlot) -> Option<(u64, Ns)> {
        None
    }

    /// Lateness that background jobs caused a foreground job, if the policy measures it.
    fn lateness(&self, _slot: ClientSlot) -> Option<Lateness> {
        None
    }

    /// Lengths of a foreground job's stretches, if the policy sees them. `None`: there were none.
    fn stretch_times(&self, _slot: ClientSlot) -> Option<&StretchTimes> {
        None
    }

    /// Whether the policy provides [`Policy::background_tally`].
    fn tallies_background(&self) -> bool {
        false
    }

    /// Tally of a background job by learnt times, if the policy learns them.
    fn background_tally(&self, _slot: ClientSlot, _now: Ns) -> Option<RoleTally> {
        None
    }

    /// Quality of a client's forecasts of gaps and of kernel times, each with the number of
    /// contexts.
    fn quality(&self, _slot: ClientSlot) -> [(Quality, usize); 2] {
        Default::default()
    }
}
