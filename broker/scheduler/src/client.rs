// SPDX-License-Identifier: MIT OR Apache-2.0
//! The core's state of one client.

use crate::{
    Client, Config, busy_model::BusyModel, guarantee::Guarantee, ledger::CreditLedger, mean_times::MeanTimes,
    queue::QueueEntry, tally::RoleTally,
};
use weft_protocol::{
    Ns,
    credit::RunAheadWindow,
    lane::{Mode, is_transfer},
};

#[derive(Debug)]
pub(super) struct ClientState {
    pub id: Client,
    pub priority: u8,
    /// Class in the queue; the priority, if the policy goes by it.
    pub class: usize,
    pub mode: Mode,
    pub times: MeanTimes,
    /// When its submitted work ends, as a foreground job.
    pub busy: BusyModel,
    /// Amount that its foreground work may lose.
    pub budget: SlowdownBudget,
    /// Device time that it has at least as a background job.
    pub guarantee: Guarantee,
    pub ledger: CreditLedger,
    pub wait: Option<KernelAtGate>,
    pub queued: Option<QueueEntry>,
    /// Whether a foreground job's launch voids the credit.
    pub bound: bool,
    /// Foreground launches that the credit outlives.
    pub outlives: u64,
    pub window: Option<RunAheadWindow>,
    /// Whether its credit may come back as its work ends: under a window, and until a revocation
    /// of the window is answered.
    pub regrows: bool,
    /// The last granted kernel longer than half the delay bound.
    pub long: Option<LongKernel>,
    /// When a still unanswered revocation was ordered.
    pub revoking: Option<Ns>,
    /// Length of its turns, ns, if its memory does not fit together with others'.
    pub oversubscribed: Option<Ns>,
    /// Out of turn, so not in the queue.
    pub not_its_turn: bool,
    /// When its last long turn ended.
    pub turned_at: Ns,
    /// Credit was granted after `revoking`.
    pub granted_since: bool,
    /// Credit was granted, and no use of it reported since.
    pub unreported: bool,
    /// Credit in the books but not in its word while it waited: taken and not reported yet, ns.
    pub untold: Ns,
    /// Time that credit has lain unused in its word since it last took any, ns. Each rest starts
    /// the count anew.
    pub untouched: Ns,
    /// Its last rest, ns. 0: it has taken credit since.
    pub rest: Ns,
    /// End of its rest, or 0. It is not queued before.
    pub rests_until: Ns,
    /// Whether it takes no credit: it has been idle for a while, or rested.
    pub away: bool,
    /// Since when its credit word is empty.
    pub emptied_at: Option<Ns>,
    pub attached_at: Ns,
    pub granted_at: Ns,
    /// Last sign that credit is used or work ends.
    pub progress_at: Ns,
    /// When its work was last seen to end, or when it came to a device without any of its work.
    pub ended_at: Ns,
    /// Time that its work was on the device or behind others' work there, ns.
    pub occupied: Ns,
    /// Last sign of work of its own.
    pub active_at: Ns,
    /// When it starves without a gap, if the policy says so.
    pub starves_at: Ns,
    /// The most that one of its kernels was measured to take, ns; 0: unknown.
    pub longest_kernel: Ns,
    /// Credit used, ns: turns are shared out by it.
    pub served: Ns,
    pub launches: u64,
    pub work: Ns,
    pub starved: u64,
    /// Grants to it while its own work did not end.
    pub stuck: u64,
    /// Launches of kernels for which its profile has a time, and launches of others.
    pub known_launches: u64,
    pub unknown_launches: u64,
    pub foreground: RoleTally,
    pub background: RoleTally,
    /// Its part of the sum of exposures, ns.
    pub counted: Ns,
    /// Index in the list of exposed clients.
    pub exposed_at: Option<usize>,
}

/// Amount that a client's foreground work may lose to background jobs, if it differs from the
/// configured one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct SlowdownBudget {
    slowdown: Option<f64>,
    slo: Option<Ns>,
}

impl SlowdownBudget {
    /// Highest meaningful slowdown.
    const MOST: f64 = 1.0;

    /// A slowdown that is not a number counts as not given.
    pub(super) fn new(slowdown: Option<f64>, slo: Option<Ns>) -> SlowdownBudget {
        let slowdown = slowdown.filter(|slowdown| !slowdown.is_nan());
        SlowdownBudget {
            slowdown: slowdown.map(|slowdown| slowdown.clamp(0.0, SlowdownBudget::MOST)),
            slo,
        }
    }

    /// Allowed slowdown, a part of the job's time.
    pub(super) fn slowdown(&self, config: &Config) -> f64 {
        self.slowdown.unwrap_or(config.slowdown)
    }

    /// Whether the client asked for a slowdown. Then the slowdown is a promise, not an aim.
    pub(super) fn is_promised(&self) -> bool {
        self.slowdown.is_some()
    }

    /// Allowed slowdown and SLO.
    pub(super) fn allowed(&self, config: &Config) -> (f64, Option<Ns>) {
        (self.slowdown(config), self.slo(config))
    }

    /// [`Config::slo`] of this client.
    pub(super) fn slo(&self, config: &Config) -> Option<Ns> {
        self.slo.or(config.slo)
    }
}

/// A kernel at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelAtGate {
    pub kernel: u64,
    pub cost: Ns,
    pub since: Ns,
    /// Work issued when the wait was reported, ns.
    pub issued: Ns,
}

/// Granted kernel whose cost alone may exceed that of all others together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LongKernel {
    pub cost: Ns,
    /// The ledger's `issued` once it is launched, and `settled` once it has ended, ns.
    pub total: Ns,
}

impl ClientState {
    pub(super) fn new(id: Client, priority: u8, times: MeanTimes, margin: f64, now: Ns) -> ClientState {
        ClientState {
            id,
            priority,
            class: usize::from(priority),
            mode: Mode::Free,
            times,
            busy: BusyModel::new(margin),
            budget: SlowdownBudget::default(),
            guarantee: Guarantee::default(),
            ledger: CreditLedger::default(),
            wait: None,
            queued: None,
            bound: false,
            outlives: 0,
            window: None,
            regrows: false,
            long: None,
            revoking: None,
            oversubscribed: None,
            not_its_turn: false,
            turned_at: 0,
            granted_since: false,
            unreported: false,
            untold: 0,
            untouched: 0,
            rest: 0,
            rests_until: 0,
            away: false,
            emptied_at: None,
            attached_at: now,
            granted_at: now,
            progress_at: now,
            ended_at: now,
            occupied: 0,
            active_at: now,
            starves_at: Ns::MAX,
            longest_kernel: 0,
            served: 0,
            launches: 0,
            work: 0,
            starved: 0,
            stuck: 0,
            known_launches: 0,
            unknown_launches: 0,
            foreground: RoleTally::default(),
            background: RoleTally::default(),
            counted: 0,
            exposed_at: None,
        }
    }

    /// Counts a launch by whether the profile has a time of its kernel.
    pub(super) fn count_known(&mut self, kernel: u64, known: bool) {
        if known {
            self.known_launches += 1;
        } else if !is_transfer(kernel) {
            self.unknown_launches += 1;
        }
    }

    /// The wait that has no credit, in the queue or out of turn.
    pub(super) fn wants(&self) -> Option<KernelAtGate> {
        self.wait.filter(|_| self.queued.is_some() || self.not_its_turn)
    }

    /// Predicted time of the long kernel on the device, or 0.
    pub(super) fn long_out(&self) -> Ns {
        let ledger = &self.ledger;
        match self.long {
            // Streams end in no order: if less than its cost is out, the kernel has ended.
            Some(long) if ledger.outstanding() < long.cost => 0,
            Some(long) if ledger.issued() >= long.total && ledger.settled() < long.total => long.cost,
            _ => 0,
        }
    }

    /// Notes that its process runs: it came to the gate or took credit. Returns whether it was
    /// away.
    pub(super) fn lives(&mut self) -> bool {
        (self.untouched, self.rest, self.rests_until) = (0, 0, 0);
        std::mem::take(&mut self.away)
    }

    /// Takes in that a revocation is over. Returns when it was ordered.
    pub(super) fn revoked(&mut self) -> Option<Ns> {
        self.regrows = self.window.is_some();
        if !self.regrows {
            self.ledger.close();
        }
        self.revoking.take()
    }

    /// Credit that may still come back, ns, beyond its part of the exposure.
    pub(super) fn regrowth(&self) -> Ns {
        match self.regrows {
            true => self.ledger.regrown().saturating_sub(self.counted),
            false => 0,
        }
    }

    /// Whether it has a window to revoke.
    pub(super) fn has_window(&self) -> bool {
        self.window.is_some() && self.revoking.is_none()
    }

    /// Whether its word has credit to revoke.
    pub(super) fn revocable(&self) -> bool {
        self.ledger.usable() > 0 && self.revoking.is_none() && self.emptied_at.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND_NS: Ns = 500;

    #[test]
    fn a_long_kernel_is_out_from_its_launch_to_its_end() {
        let mut client = ClientState::new(Client(1), 5, MeanTimes::default(), 0.0, 0);
        client.ledger.grant(1_100);
        client.ledger.report(100, 0, BOUND_NS);
        assert_eq!(client.long_out(), 0, "none was granted");
        client.long = Some(LongKernel {
            cost: 1_000,
            total: 1_100,
        });
        assert_eq!(client.long_out(), 0, "it is not launched yet");
        client.ledger.report(1_100, 0, BOUND_NS);
        assert_eq!(client.long_out(), 1_000);
        client.ledger.report(1_100, 100, BOUND_NS);
        assert_eq!(client.long_out(), 1_000, "what was before it has ended");
        // Less work is out than the kernel takes, so it has ended on some stream.
        client.ledger.report(1_100, 200, BOUND_NS);
        assert_eq!(client.long_out(), 0);
        client.ledger.report(1_100, 1_100, BOUND_NS);
        assert_eq!(client.long_out(), 0);
    }
}
