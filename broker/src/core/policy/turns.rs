//! Turns among equals: one of them keeps the device for a while, then the one with the fewest turns has it.
//!
//! Going from one process to another costs the device about 100 us where it slices time, so equals are not interleaved kernel by kernel.

use super::{
    super::{client::ClientState, queue::Slot, state::State},
    Verdict,
};
use crate::protocol::{Ns, PRIORITIES};

/// Whose turn it is, for each class.
#[derive(Debug, Default)]
pub(super) struct Turns([Option<Turn>; PRIORITIES]);

#[derive(Debug, Clone, Copy)]
struct Turn {
    slot: Slot,
    until: Ns,
}

impl Turns {
    /// What to do for the clients of a class in which somebody waits, when fillers may run freely within the delay bound.
    pub(super) fn next(&mut self, class: usize, state: &State, now: Ns, bound: bool) -> Verdict {
        match self.whose(class, state, now) {
            Ok(slot) => grant_freely(state, slot, now, bound),
            Err(verdict) => verdict,
        }
    }

    /// Whose turn it is, of a class in which somebody waits; or else what to do until that is clear.
    pub(super) fn whose(&mut self, class: usize, state: &State, now: Ns) -> Result<Slot, Verdict> {
        let Some(first) = state.queue.first_in_turn(class) else {
            return Err(Verdict::Nothing(None));
        };
        if let Some(silent) = more_important_runs(class, state, now) {
            return Err(Verdict::Nothing(Some(silent)));
        }
        let slot = match self.0[class] {
            Some(turn) if now < turn.until && turn.slot != first => {
                match state.get(turn.slot) {
                    Some(client) if client.queued.is_some_and(|entry| entry.class == class) => turn.slot,
                    // It runs on the credit it has; whoever else waits, waits for the end of its turn or of its work.
                    Some(client) if runs(state, client, now) => {
                        let silent = silent_at(state, client);
                        return Err(Verdict::Nothing(Some(turn.until.min(silent).max(now + 1))));
                    }
                    _ => self.begin(class, first, state, now),
                }
            }
            Some(turn) if now < turn.until => turn.slot,
            Some(turn) => {
                self.begin(class, first, state, now);
                // Its turn is over: what it has not used is the next one's.
                if turn.slot != first && revocable(state, turn.slot) {
                    return Err(Verdict::Revoke(turn.slot));
                }
                first
            }
            None => self.begin(class, first, state, now),
        };
        Ok(slot)
    }

    fn begin(&mut self, class: usize, slot: Slot, state: &State, now: Ns) -> Slot {
        self.0[class] = Some(Turn {
            slot,
            until: now.saturating_add(state.config.turn),
        });
        slot
    }

    pub(super) fn forget(&mut self, slot: Slot) {
        for turn in &mut self.0 {
            if turn.is_some_and(|turn| turn.slot == slot) {
                *turn = None;
            }
        }
    }
}

/// Until when a more important client is at work on the credit it has, although it does not wait for more.
pub(super) fn more_important_runs(class: usize, state: &State, now: Ns) -> Option<Ns> {
    state
        .exposed
        .iter()
        .filter_map(|slot| state.get(*slot))
        .filter(|client| client.class < class && client.queued.is_none() && runs(state, client, now))
        .map(|client| silent_at(state, client))
        .max()
}

/// Whether a client has credit in others' way that can be taken back.
fn revocable(state: &State, slot: Slot) -> bool {
    state
        .get(slot)
        .is_some_and(|client| client.queued.is_none() && client.revocable())
}

/// Until when a client counts as working on its credit: it last got some or made use of it, its work has to end, and then it is silent
/// for a while.
fn silent_at(state: &State, client: &ClientState) -> Ns {
    let used = client.progress_at.max(client.granted_at);
    used.saturating_add(client.ledger.outstanding())
        .saturating_add(state.config.open_after)
}

/// Whether a client that does not wait is working on the credit it has.
fn runs(state: &State, client: &ClientState, now: Ns) -> bool {
    now < silent_at(state, client)
}

/// Grants a waiting client as much as the delay bound has room for, or makes room, or waits for it.
pub(super) fn grant_freely(state: &State, slot: Slot, now: Ns, bound: bool) -> Verdict {
    let Some(entry) = state.get(slot).and_then(|client| client.queued) else {
        return Verdict::Nothing(None);
    };
    if !state.admits(slot, entry.cost) {
        return make_room(state, slot, entry.cost, now);
    }
    let room = state.most_out().saturating_sub(state.exposure_before(slot));
    Verdict::Grant {
        slot,
        total: entry.cost.max(room),
        bound,
    }
}

/// Others' credit that lies unused makes room for this one: at once if they are less important or have had their turn, else when it
/// has lain for a while.
pub(in crate::core) fn make_room(state: &State, slot: Slot, cost: Ns, now: Ns) -> Verdict {
    let class_of = |slot: Slot| state.get(slot).map_or(PRIORITIES, |client| client.class);
    let class = class_of(slot);
    let mut again = state.drained(slot, cost, now);
    for other in state.exposed.iter().copied().filter(|other| *other != slot) {
        let Some(client) = state.get(other).filter(|_| revocable(state, other)) else {
            continue;
        };
        let stale = silent_at(state, client);
        // Credit that is not bound was given so that its client does not starve.
        if (class_of(other) > class && client.bound) || now >= stale {
            return Verdict::Revoke(other);
        }
        again = again.min(stale);
    }
    Verdict::Nothing(Some(again))
}
