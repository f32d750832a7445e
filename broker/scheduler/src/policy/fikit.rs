// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policy `fikit`: kernels of other jobs fill the gaps of the more important job.
//!
//! The rule of "FIKIT: Priority-Based Real-time GPU Multi-tasking Scheduling with Kernel
//! Identification" (arXiv 2311.10359), recalled from its published description: the paper's full
//! text was not at hand.
//!
//! | paper | here |
//! |---|---|
//! | `SK[id]`, mean time of a kernel | the cost that a client is charged |
//! | `SG[id]`, mean gap after a kernel | `MeanTimes::gap_after` |
//! | EPS, gaps not worth filling | [`Config::small_gap`](crate::Config::small_gap) |
//! | the queues 0..9 | `GateQueue`, a class for each priority |
//! | BestPrioFit | `GateQueue::best_prio_fit` |
//! | feedback, early stop | credit is bound to the launch epoch and revoked at a foreground launch |
//!
//! It differs from the paper:
//!
//! * A job launches ahead, on credit; the paper releases one kernel at a time.
//! * A gap begins when the foreground job's last launch is predicted to *end*.
//! * Exposure never exceeds the delay bound, since a predicted gap may be wrong. A longer kernel is
//!   granted with no other work out, if the gap has room.
//! * On a switching device each switch to a background job takes part of the gap. The switch back
//!   begins with the foreground job's next kernel.
//! * Copies between host and device go while the foreground job runs kernels.
//! * Without a predicted gap, or after it, background jobs take turns within the bound.

use weft_protocol::Ns;

use super::{
    copies,
    interface::{Observed, Policy},
    minimum_share::MinimumShare,
    round_robin::RoundRobin,
};
use crate::{
    action::{Action, CreditGrant},
    busy_model::Phase,
    delay_bound::{make_room, more_important_runs},
    dispatcher::Dispatcher,
    queue::ClientSlot,
    state::SchedulerState,
};

#[derive(Debug, Default)]
pub(super) struct Fikit {
    turns: RoundRobin,
    share: MinimumShare,
    /// The job that last had the device, and the start of that gap.
    there: Option<(ClientSlot, Ns)>,
}

impl Policy for Fikit {
    fn observe(&mut self, _: &mut Dispatcher<'_>, seen: &Observed<'_>) {
        self.turns.observe(seen);
        self.there = self.there.filter(|(there, _)| seen.ends_turn() != Some(*there));
    }

    fn decide(&mut self, to: &mut Dispatcher<'_>) {
        if self.share.serve(to) {
            to.carry_out(|state, now| self.next(state, now));
        }
    }
}

impl Fikit {
    fn next(&mut self, state: &SchedulerState, now: Ns) -> Action {
        match state.phase(now) {
            Phase::Busy { until } => copies::beside_foreground(state, until, now),
            Phase::Gap { since, until, over } => {
                let there = self.there.filter(|(_, gap)| *gap == since).map(|(slot, _)| slot);
                let action = fill(state, there, until, over, now);
                if let Action::Grant(CreditGrant { slot, .. }) = action
                    && !copies::waits_with_one(state, slot)
                {
                    self.there = Some((slot, since));
                }
                action
            }
            Phase::Open { .. } => match state.queue.first_class() {
                Some(class) => self.turns.next(class, state, now),
                None => Action::Nothing(None),
            },
        }
    }
}

/// Fills a gap that lasts until `until` and is open-ended from `over`. `there`: the job that had
/// the device in this gap.
fn fill(state: &SchedulerState, there: Option<ClientSlot>, until: Ns, over: Ns, now: Ns) -> Action {
    let gap = until.saturating_sub(now).saturating_sub(state.exposure);
    let room = state.config.delay_bound.saturating_sub(state.exposure);
    let no_later_than = |at: Option<Ns>| Action::Nothing(at.map(|at| at.min(over)));
    // BestPrioFit takes kernels shorter than the gap. Within its class prefer one within the bound
    // (which may be met exactly). A longer one is granted with no other work out.
    let best_fit = |gap: Ns| {
        state.queue.best_prio_fit(gap).and_then(|slot| {
            let class = state.get(slot)?.class;
            let within = gap.min(room.saturating_add(1));
            state.queue.best_fit(class, within).or(Some(slot))
        })
    };
    // Rest of the gap after the switch to a background job.
    let left = |slot: ClientSlot| match there == Some(slot) || copies::waits_with_one(state, slot) {
        true => gap,
        false => gap.saturating_sub(state.config.switch_cost),
    };
    let fits = |slot: &ClientSlot| {
        let entry = state.get(*slot).and_then(|client| client.queued);
        entry.is_some_and(|entry| entry.cost < left(*slot))
    };
    let best = best_fit(gap)
        .filter(fits)
        .or_else(|| best_fit(gap.saturating_sub(state.config.switch_cost)));
    let Some(entry) = best.and_then(|slot| state.get(slot)?.queued) else {
        // Outstanding work may end earlier than predicted.
        let least = state.delay_bound() / 16;
        let drained = (state.exposure > 0).then(|| now.saturating_add(state.exposure.max(least)));
        return no_later_than(Some(drained.unwrap_or(over)));
    };
    if !state.admits(entry.slot, entry.cost) {
        return match make_room(state, entry.slot, entry.cost, now) {
            Action::Nothing(again) => no_later_than(again),
            other => other,
        };
    }
    // A more important background job keeps the device while it works on its credit: two switches
    // would slow down both.
    if let Some(silent) = more_important_runs(entry.class, state, now) {
        return no_later_than(Some(silent));
    }
    // Credit for unknown kernels only if no equal could use the rest of the gap.
    let ahead = if state.queue.len_of(entry.class) == 1 {
        left(entry.slot).min(room)
    } else {
        0
    };
    Action::Grant(CreditGrant::bound(entry.slot, entry.cost.max(ahead)))
}
