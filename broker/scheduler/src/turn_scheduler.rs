// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turn scheduler: long turns among equals whose memory does not fit the device together.
//!
//! Two such jobs at once would take the memory from each other, page by page. So the members of a
//! class ([`Event::Oversubscribed`](crate::Event::Oversubscribed)) take turns: one has the device
//! while the next one's memory comes in. Policies do not see the turns, because a client out of
//! turn is not in the queue.
//!
//! | client | what happens |
//! |---|---|
//! | member at the top | no foreground job; has all of the delay bound in its turn |
//! | member below a foreground job | fills that job's gaps in its turn, by the policy |
//! | other client of the priority | no managed memory: unchanged, waits for no turn |
//! | less important client | unchanged: runs while no client above it is at work |
//!
//! A turn ends early when its client is silent for 1/[`PRESENT`] of it: a Python host pauses for
//! milliseconds between two steps. A job that stalls with work on the device wastes its turn until
//! that work is written off. A turn continues while no other member waits. The member that has gone
//! longest without a turn is next. It waits for the others' turns and a delay bound each.
//!
//! At most one of several members is in the queue. The others have no usable credit, except to pass
//! work of their own that does not end.

use weft_protocol::{Ns, PRIORITIES, lane::Mode};

use crate::{client::ClientState, queue::ClientSlot, state::SchedulerState};

/// Inverse of the part of a turn for which its client counts as present after its last sign of
/// work.
const PRESENT: u64 = 8;

/// Bounds of a turn's length.
const SHORTEST_NS: Ns = 1_000_000;
const LONGEST_NS: Ns = 60_000_000_000;

/// The turn of each class.
#[derive(Debug, Default)]
pub(super) struct TurnScheduler {
    turns: [Option<LongTurn>; PRIORITIES],
    /// Members of each class.
    members: [usize; PRIORITIES],
}

#[derive(Debug, Clone, Copy)]
struct LongTurn {
    slot: ClientSlot,
    begun: Ns,
    until: Ns,
}

/// Next step for the turn of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextTurn {
    /// No step until another event comes.
    Nothing,
    /// Look again at this time.
    At(Ns),
    /// This client's turn begins.
    Of(ClientSlot),
}

impl TurnScheduler {
    pub(super) fn length(planned: Ns) -> Ns {
        planned.clamp(SHORTEST_NS, LONGEST_NS)
    }

    /// Whether this client takes long turns.
    pub(super) fn has(&self, client: &ClientState) -> bool {
        client.oversubscribed.is_some() && self.members.get(client.class).is_some_and(|members| *members > 1)
    }

    /// Mode of a client that is not the only one. `first`: the most important priority attached. A
    /// member is not a foreground job: it must stop within the delay bound.
    pub(super) fn mode(&self, client: &ClientState, first: u8) -> Mode {
        match client.priority == first && !self.has(client) {
            true => Mode::Foreground,
            false => Mode::Background,
        }
    }

    /// Whether a client has to wait for its turn.
    pub(super) fn keeps_out(&self, client: &ClientState, slot: ClientSlot) -> bool {
        self.has(client) && !self.is_owner(client, slot) && client.mode == Mode::Background
    }

    fn is_owner(&self, client: &ClientState, slot: ClientSlot) -> bool {
        self.turns
            .get(client.class)
            .is_some_and(|turn| turn.is_some_and(|turn| turn.slot == slot))
    }

    pub(super) fn count(&mut self, state: &SchedulerState) {
        self.members = [0; PRIORITIES];
        for client in state.clients().filter(|client| client.oversubscribed.is_some()) {
            if let Some(members) = self.members.get_mut(client.class) {
                *members += 1;
            }
        }
    }

    /// Forgets a client that is gone or in another class.
    pub(super) fn forget(&mut self, slot: ClientSlot) {
        for turn in &mut self.turns {
            if turn.is_some_and(|turn| turn.slot == slot) {
                *turn = None;
            }
        }
    }

    /// Ends the turns of clients that are no longer members.
    pub(super) fn end_stale(&mut self, state: &SchedulerState) {
        for class in 0..PRIORITIES {
            let slot = self.turns[class].map(|turn| turn.slot);
            let takes_turns = |slot| {
                state
                    .get(slot)
                    .is_some_and(|client| client.class == class && self.has(client))
            };
            if !slot.is_some_and(takes_turns) {
                self.turns[class] = None;
            }
        }
    }

    /// Next step for the turn of a class now.
    pub(super) fn next(&self, class: usize, state: &SchedulerState, now: Ns) -> NextTurn {
        if self.members[class] < 2 {
            return NextTurn::Nothing;
        }
        let Some(next) = next_in_turn(class, state) else {
            return NextTurn::Nothing;
        };
        let Some(turn) = self.turns[class] else {
            return NextTurn::Of(next);
        };
        let Some(owner) = state.get(turn.slot) else {
            return NextTurn::Nothing;
        };
        let ends = absent_at(state, owner, &turn).min(turn.until);
        // Below a foreground job that hardly pauses, the minimum share may always come in one
        // member's turn. So a turn lasts until its client has received a grant.
        let had_nothing = owner.queued.is_some() && owner.granted_at < turn.begun;
        if now < ends {
            NextTurn::At(ends)
        } else if had_nothing {
            NextTurn::Nothing
        } else {
            NextTurn::Of(next)
        }
    }

    /// Begins a client's turn. Returns the client before it, and the turn's end.
    pub(super) fn begin(
        &mut self,
        class: usize,
        slot: ClientSlot,
        state: &SchedulerState,
        now: Ns,
    ) -> (Option<ClientSlot>, Ns) {
        let length = state.get(slot).and_then(|client| client.oversubscribed);
        let turn = LongTurn {
            slot,
            begun: now,
            until: now.saturating_add(length.unwrap_or(SHORTEST_NS)),
        };
        let before = self.turns[class].replace(turn);
        (before.map(|turn| turn.slot), turn.until)
    }
}

/// The waiting member that has gone longest without a turn.
fn next_in_turn(class: usize, state: &SchedulerState) -> Option<ClientSlot> {
    let waits = |slot: &&ClientSlot| {
        state
            .get(**slot)
            .is_some_and(|client| client.not_its_turn && client.class == class && client.wait.is_some())
    };
    let longest = |slot: &&ClientSlot| {
        let client = state.get(**slot);
        client.map_or((0, 0), |client| {
            (client.turned_at, client.wait.map_or(0, |wait| wait.since))
        })
    };
    state.order.iter().filter(waits).min_by_key(longest).copied()
}

/// End of the time for which the client of this turn counts as present.
fn absent_at(state: &SchedulerState, client: &ClientState, turn: &LongTurn) -> Ns {
    // An unused grant shows absence, unless a foreground launch may have voided it.
    let waits_for_more = client
        .wait
        .is_some_and(|wait| client.granted_at <= wait.since || client.bound);
    // With work on the device, however slow, a client is present: its memory may still be on the
    // way.
    if client.queued.is_some() && waits_for_more || client.ledger.outstanding() > 0 {
        return turn.until;
    }
    let waits = client.wait.map_or(0, |wait| wait.since);
    let last_activity = client.progress_at.max(turn.begun).max(waits);
    let length = turn.until.saturating_sub(turn.begun);
    last_activity.saturating_add(state.config.open_after.max(length / PRESENT))
}

#[cfg(test)]
mod tests;
