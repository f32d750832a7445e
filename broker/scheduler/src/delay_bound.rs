// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grants within the delay bound, and room for them by revoking unused credit.

use weft_protocol::{Ns, PRIORITIES};

use crate::{
    action::{Action, CreditGrant},
    busy_model::Phase,
    client::ClientState,
    queue::ClientSlot,
    state::SchedulerState,
};

/// End of the time for which a more important client that does not wait works on its credit.
pub(crate) fn more_important_runs(class: usize, state: &SchedulerState, now: Ns) -> Option<Ns> {
    state
        .exposed
        .iter()
        .filter_map(|slot| state.get(*slot))
        .filter(|client| client.class < class && client.queued.is_none() && now < state.silent_at(client))
        .map(|client| state.silent_at(client))
        .max()
}

pub(crate) fn revocable(state: &SchedulerState, slot: ClientSlot) -> bool {
    state
        .get(slot)
        .is_some_and(|client| client.queued.is_none() && client.revocable())
}

/// The other client whose credit has been unused for longest, and since when.
pub(crate) fn unused(state: &SchedulerState, slot: ClientSlot) -> Option<(ClientSlot, Ns)> {
    let others = state
        .exposed
        .iter()
        .copied()
        .filter(|other| *other != slot && revocable(state, *other));
    let silent = others.filter_map(|other| Some((other, state.silent_at(state.get(other)?))));
    silent.min_by_key(|(_, at)| *at)
}

/// Grants a client as much as the delay bound has room for, or makes room.
pub(crate) fn grant_freely(state: &SchedulerState, slot: ClientSlot, now: Ns, bound: bool) -> Action {
    let Some(entry) = state.get(slot).and_then(|client| client.queued) else {
        return Action::Nothing(None);
    };
    if !state.admits(slot, entry.cost) {
        return make_room(state, slot, entry.cost, now);
    }
    let room = state.most_out().saturating_sub(state.exposure_before(slot));
    Action::Grant(CreditGrant {
        bound,
        ..CreditGrant::bound(slot, entry.cost.max(room))
    })
}

/// Makes room by revoking unused credit: at once from less important clients, else after a while.
/// Credit of a job that is about to starve stays.
pub(crate) fn make_room(state: &SchedulerState, slot: ClientSlot, cost: Ns, now: Ns) -> Action {
    let class_of = |slot: ClientSlot| state.get(slot).map_or(PRIORITIES, |client| client.class);
    let class = class_of(slot);
    let mut again = state.drained(slot, cost, now);
    let part = state.window_part();
    for other in state.exposed.iter().copied().filter(|other| *other != slot) {
        // Its window may be older than the jobs that it shares the bound with.
        let exceeds = |client: &ClientState| client.has_window() && client.ledger.regrown() > part;
        if state.get(other).is_some_and(exceeds) && !state.is_starving(other, now) {
            return Action::Revoke(other);
        }
        let Some(client) = state.get(other).filter(|_| revocable(state, other)) else {
            continue;
        };
        let stale = state.silent_at(client);
        // Credit that is not bound was given against starvation.
        let yields = class_of(other) > class && client.bound && !state.is_starving(other, now);
        if yields || now >= stale {
            return Action::Revoke(other);
        }
        again = again.min(stale);
    }
    Action::Nothing(Some(again))
}

/// Total to which the only background job that wants credit gets more before it asks, ns.
pub(crate) fn top_up(state: &SchedulerState, slot: ClientSlot, now: Ns) -> Option<Ns> {
    let bound = state.config.delay_bound;
    let low = state.get(slot)?.ledger.usable() < bound / 4;
    let fits = low && state.exposure <= bound / 2 && matches!(state.phase(now), Phase::Open { .. });
    fits.then(|| bound - state.exposure_before(slot))
}
