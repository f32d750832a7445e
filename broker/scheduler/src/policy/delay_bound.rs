// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grants within the delay bound, and room for them by revoking unused credit.

use weft_protocol::{Ns, PRIORITIES};

use super::interface::GrantVerdict;
use crate::{client::ClientState, queue::ClientSlot, state::SchedulerState};

/// End of the time for which a more important client that does not wait works on its credit.
pub(super) fn more_important_runs(class: usize, state: &SchedulerState, now: Ns) -> Option<Ns> {
    state
        .exposed
        .iter()
        .filter_map(|slot| state.get(*slot))
        .filter(|client| client.class < class && client.queued.is_none() && now < state.silent_at(client))
        .map(|client| state.silent_at(client))
        .max()
}

pub(super) fn revocable(state: &SchedulerState, slot: ClientSlot) -> bool {
    state
        .get(slot)
        .is_some_and(|client| client.queued.is_none() && client.revocable())
}

/// The other client whose credit has been unused for longest, and since when.
pub(super) fn unused(state: &SchedulerState, slot: ClientSlot) -> Option<(ClientSlot, Ns)> {
    let others = state
        .exposed
        .iter()
        .copied()
        .filter(|other| *other != slot && revocable(state, *other));
    let silent = others.filter_map(|other| Some((other, state.silent_at(state.get(other)?))));
    silent.min_by_key(|(_, at)| *at)
}

/// `starving` of [`make_room`] for policies under which no job starves in gaps.
pub(super) fn none_starves(_: ClientSlot) -> bool {
    false
}

/// Grants a client as much as the delay bound has room for, or makes room. `starving`: whether
/// another client's credit stays.
pub(crate) fn grant_freely(
    state: &SchedulerState,
    slot: ClientSlot,
    now: Ns,
    bound: bool,
    starving: impl Fn(ClientSlot) -> bool,
) -> GrantVerdict {
    let Some(entry) = state.get(slot).and_then(|client| client.queued) else {
        return GrantVerdict::Nothing(None);
    };
    if !state.admits(slot, entry.cost) {
        return make_room(state, slot, entry.cost, now, starving);
    }
    let room = state.most_out().saturating_sub(state.exposure_before(slot));
    GrantVerdict::Grant {
        slot,
        total: entry.cost.max(room),
        bound,
    }
}

/// Makes room by revoking unused credit: at once from less important clients, else after a while.
pub(crate) fn make_room(
    state: &SchedulerState,
    slot: ClientSlot,
    cost: Ns,
    now: Ns,
    starving: impl Fn(ClientSlot) -> bool,
) -> GrantVerdict {
    let class_of = |slot: ClientSlot| state.get(slot).map_or(PRIORITIES, |client| client.class);
    let class = class_of(slot);
    let mut again = state.drained(slot, cost, now);
    let part = state.window_part();
    for other in state.exposed.iter().copied().filter(|other| *other != slot) {
        // Its window may be older than the jobs that it shares the bound with.
        let exceeds = |client: &ClientState| client.has_window() && client.ledger.regrown() > part;
        if state.get(other).is_some_and(exceeds) && !starving(other) {
            return GrantVerdict::Revoke(other);
        }
        let Some(client) = state.get(other).filter(|_| revocable(state, other)) else {
            continue;
        };
        let stale = state.silent_at(client);
        // Credit that is not bound was given against starvation.
        let yields = class_of(other) > class && client.bound && !starving(other);
        if yields || now >= stale {
            return GrantVerdict::Revoke(other);
        }
        again = again.min(stale);
    }
    GrantVerdict::Nothing(Some(again))
}
