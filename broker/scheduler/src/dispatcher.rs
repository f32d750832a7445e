// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dispatcher: carries out the actions of the policy and of the core, and returns them as
//! decisions.
//!
//! A policy reads the state through it. Each action takes effect at once, so the policy sees its
//! own last action.

use weft_protocol::{Ns, credit::RunAheadWindow};

use crate::{
    action::{Action, CreditGrant},
    delay_bound::grant_freely,
    event::Decision,
    queue::ClientSlot,
    state::SchedulerState,
    turn_scheduler::TurnScheduler,
};

/// The state at one time, and the actions.
#[derive(Debug)]
pub(crate) struct Dispatcher<'a> {
    pub(super) state: &'a mut SchedulerState,
    pub(super) turns: &'a TurnScheduler,
    pub(super) wake: &'a mut Option<Ns>,
    pub(super) out: &'a mut Vec<Decision>,
    pub now: Ns,
}

impl Dispatcher<'_> {
    /// The state.
    pub(crate) fn state(&self) -> &SchedulerState {
        self.state
    }

    /// Has the core ask again at this time.
    pub(crate) fn wake_at(&mut self, at: Ns) {
        *self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Brings a background job's unused credit up to a total.
    pub(crate) fn grant(&mut self, grant: &CreditGrant) {
        let (slot, now) = (grant.slot, self.now);
        let window = grant.window.and_then(|(window, again)| {
            self.wake_at(again);
            self.state.with_non_refundable(slot, window, grant.total)
        });
        self.state.set_window(slot, window, self.out);
        self.state.grant(grant, now, self.out);
        // An unreported launch epoch may have voided the credit.
        if self.state.get(slot).is_some_and(|client| client.wait.is_some()) {
            self.wake_at(now.saturating_add(self.state.config.stuck_after));
        }
    }

    /// Grants a client a portion of the minimum share.
    pub(crate) fn grant_share(&mut self, slot: ClientSlot, portion: Ns) {
        self.state.counters.starvation_grants += 1;
        if let Some(client) = self.state.get_mut(slot) {
            client.starved += 1;
        }
        self.grant(&CreditGrant::kept(slot, portion));
    }

    /// Revokes a client's unused credit.
    pub(crate) fn revoke(&mut self, slot: ClientSlot) {
        self.state.order_revocation(slot, self.now, self.out);
    }

    /// Carries out the actions that `next` gives, until it gives none or no client waits.
    pub(crate) fn carry_out(&mut self, mut next: impl FnMut(&SchedulerState, Ns) -> Action) {
        while !self.state.queue.is_empty() {
            let action = match self.long_turn() {
                Some(action) => action,
                None => next(self.state, self.now),
            };
            match action {
                Action::Grant(grant) => {
                    self.state.count_gap(self.now);
                    self.grant(&grant);
                }
                Action::Revoke(slot) => self.revoke(slot),
                Action::Nothing(again) => {
                    again.into_iter().for_each(|again| self.wake_at(again));
                    return;
                }
            }
        }
    }

    /// Action for members of long turns with no foreground job above them.
    fn long_turn(&self) -> Option<Action> {
        let state = &*self.state;
        let class = state.queue.first_class()?;
        let slot = state.queue.first_in_turn(class)?;
        let client = state.get(slot).filter(|client| self.turns.has(client))?;
        let at_the_top = client.priority == state.most_important()?;
        // Not bound: launches of equals that are not members are not a reason to stop.
        at_the_top.then(|| grant_freely(state, slot, self.now, false))
    }

    /// Whether a run-ahead window may be out.
    pub(crate) fn windows_out(&mut self) -> bool {
        self.state.windows_out()
    }

    /// Changes or ends a client's run-ahead window.
    pub(crate) fn set_window(&mut self, slot: ClientSlot, window: Option<RunAheadWindow>) {
        self.state.set_window(slot, window, self.out);
    }

    /// Lets background jobs run next to the foreground jobs without restriction, or no longer. If
    /// so, neither a wait nor a wake-up hint ends their credit.
    pub(crate) fn set_open(&mut self, open: bool) {
        self.state.open = open;
    }

    /// Sets when a background job starves without a gap. Shortly before, its credit is kept for it.
    pub(crate) fn set_starves_at(&mut self, slot: ClientSlot, at: Ns) {
        if let Some(client) = self.state.get_mut(slot) {
            client.starves_at = at;
        }
    }

    /// Starts or stops timing a client's launches.
    pub(crate) fn time_launches(&mut self, slot: ClientSlot, times: bool) {
        if let Some(client) = self.state.get(slot) {
            self.out.push(Decision::Times(client.id, times));
        }
    }

    /// Has a client charge this time for a kernel from now on, ns. Kernel 0: kernels without a
    /// known time.
    pub(crate) fn charge(&mut self, slot: ClientSlot, kernel: u64, time: Ns) {
        if let Some(client) = self.state.get(slot) {
            self.out.push(Decision::Charge(client.id, kernel, time));
        }
    }
}
