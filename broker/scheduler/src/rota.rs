//! Turn scheduler: long turns among equals whose memory does not fit the device together.
//!
//! Two jobs of one priority that work at once take the memory from each other, page by page. So the
//! members of a class (named by [`Event::Crowded`](super::Event::Crowded)) take turns: one has the
//! device while the next one's memory comes in. This holds under every policy but `timeslice`,
//! whose turns have a fixed length. Policies see nothing of it: a client out of turn is not in the
//! queue.
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
//! that work is written off. A turn does not end while no other member waits. The member without a
//! turn for longest is next: it waits for the others' turns and a delay bound each. (Below a
//! foreground job that leaves only the minimum share: for their turns and that.)
//!
//! Of two members or more, at most one is in the queue. The others have no usable credit, except to
//! pass work of their own that does not end.
#![forbid(unsafe_code)]

use super::{
    Core, Decision, Ns,
    client::ClientState,
    policy::{self, Verdict},
    queue::Slot,
    state::State,
};
use weft_protocol::{PRIORITIES, lane::Mode};

/// The client of a turn counts as present for 1/8 of the turn after its last sign of work.
const PRESENT: Ns = 8;

/// Bounds of a turn's length in ns, whatever the planner says.
const SHORTEST: Ns = 1_000_000;
const LONGEST: Ns = 60_000_000_000;

/// The turn of each class.
#[derive(Debug, Default)]
pub(super) struct Rota {
    turns: [Option<Turn>; PRIORITIES],
    /// Number of members in each class.
    members: [usize; PRIORITIES],
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    slot: Slot,
    begun: Ns,
    until: Ns,
}

impl Rota {
    /// Whether this client takes long turns with others.
    pub(super) fn has(&self, client: &ClientState) -> bool {
        client.crowded.is_some() && self.members.get(client.class).is_some_and(|members| *members > 1)
    }

    /// Counts the members.
    pub(super) fn count(&mut self, state: &State) {
        self.members = [0; PRIORITIES];
        for client in state.clients().filter(|client| client.crowded.is_some()) {
            if let Some(members) = self.members.get_mut(client.class) {
                *members += 1;
            }
        }
    }

    /// Forgets a client that is gone or in another class.
    pub(super) fn forget(&mut self, slot: Slot) {
        for turn in &mut self.turns {
            if turn.is_some_and(|turn| turn.slot == slot) {
                *turn = None;
            }
        }
    }

    fn is_owner(&self, client: &ClientState, slot: Slot) -> bool {
        self.turns
            .get(client.class)
            .is_some_and(|turn| turn.is_some_and(|turn| turn.slot == slot))
    }
}

/// Until when the client of this turn counts as present.
fn absent_at(state: &State, client: &ClientState, turn: &Turn) -> Ns {
    // A client that waits for credit is present. An unused grant shows absence, unless a foreground
    // launch may have voided it.
    let waits_for_more = client
        .wait
        .is_some_and(|wait| client.granted_at <= wait.since || client.bound);
    // With work on the device, however slow, a client is present: its memory may still be on the
    // way.
    if client.queued.is_some() && waits_for_more || client.ledger.outstanding() > 0 {
        return turn.until;
    }
    let waits = client.wait.map_or(0, |wait| wait.since);
    let epoch = client.progress_at.max(turn.begun).max(waits);
    let length = turn.until.saturating_sub(turn.begun);
    epoch.saturating_add(state.config.open_after.max(length / PRESENT))
}

impl Core {
    /// Takes in whether a client's memory finds no room beside others', and how long its turns are.
    pub(super) fn crowded(&mut self, slot: Slot, turn: Option<Ns>, out: &mut Vec<Decision>) {
        let turn = match self.policy.long_turns() {
            true => turn.map(|turn| turn.clamp(SHORTEST, LONGEST)),
            false => None,
        };
        let Some(client) = self.state.get_mut(slot) else { return };
        let before = std::mem::replace(&mut client.crowded, turn);
        if before.is_some() != turn.is_some() {
            self.assign_modes(out);
        }
    }

    /// Mode of a client, given the policy's: a member cannot be a foreground job, since it must
    /// stop within the delay bound.
    pub(super) fn mode_in_turns(&self, client: &ClientState, mode: Mode) -> Mode {
        match mode {
            Mode::Foreground if self.rota.has(client) => Mode::Background,
            mode => mode,
        }
    }

    /// Takes clients out of turn from the queue and puts all others in.
    pub(super) fn bar(&mut self, out: &mut Vec<Decision>) {
        for class in 0..PRIORITIES {
            let slot = self.rota.turns[class].map(|turn| turn.slot);
            let takes_turns = |slot| {
                self.state
                    .get(slot)
                    .is_some_and(|client| client.class == class && self.rota.has(client))
            };
            if !slot.is_some_and(takes_turns) {
                self.rota.turns[class] = None;
            }
        }
        for at in 0..self.state.order.len() {
            let slot = self.state.order[at];
            let Some(client) = self.state.get(slot) else { continue };
            let barred = self.rota.has(client) && !self.rota.is_owner(client, slot) && client.mode == Mode::Background;
            if barred != client.barred {
                self.set_barred(slot, barred, out);
            }
        }
    }

    fn set_barred(&mut self, slot: Slot, barred: bool, out: &mut Vec<Decision>) {
        let Some(client) = self.state.get_mut(slot) else { return };
        client.barred = barred;
        if barred {
            self.state.unqueue(slot);
            self.order_revocation(slot, out);
        } else if client.revoking.is_none() {
            // The answer to a revocation puts it back.
            self.requeue(slot);
        }
    }

    /// Hands over turns that are due.
    pub(super) fn look_after_turns(&mut self, out: &mut Vec<Decision>) {
        for class in 0..PRIORITIES {
            if self.rota.members[class] < 2 {
                continue;
            }
            let next = self.next_in_turn(class);
            let Some(turn) = self.rota.turns[class] else {
                if let Some(slot) = next {
                    self.hand_over(class, slot, out);
                }
                continue;
            };
            let Some(next) = next else { continue };
            let Some(owner) = self.state.get(turn.slot) else {
                continue;
            };
            let ends = absent_at(&self.state, owner, &turn).min(turn.until);
            // Below a foreground job that hardly pauses, the minimum share may always come in one
            // member's turn. So a turn lasts until its client was granted something.
            let had_nothing = owner.queued.is_some() && owner.granted_at < turn.begun;
            if self.now < ends {
                self.wake_at(Some(ends));
            } else if !had_nothing {
                self.hand_over(class, next, out);
            }
        }
    }

    /// The waiting member that had no turn for longest.
    fn next_in_turn(&self, class: usize) -> Option<Slot> {
        let waits = |slot: &&Slot| {
            self.state
                .get(**slot)
                .is_some_and(|client| client.barred && client.class == class && client.wait.is_some())
        };
        let longest = |slot: &&Slot| {
            let client = self.state.get(**slot);
            client.map_or((0, 0), |client| {
                (client.turned_at, client.wait.map_or(0, |wait| wait.since))
            })
        };
        self.state.order.iter().filter(waits).min_by_key(longest).copied()
    }

    fn hand_over(&mut self, class: usize, slot: Slot, out: &mut Vec<Decision>) {
        let now = self.now;
        let length = self.state.get(slot).and_then(|client| client.crowded);
        let turn = Turn {
            slot,
            begun: now,
            until: now.saturating_add(length.unwrap_or(SHORTEST)),
        };
        if let Some(before) = self.rota.turns[class].replace(turn) {
            if let Some(client) = self.state.get_mut(before.slot) {
                client.turned_at = now;
            }
            self.policy.forget(before.slot);
            self.set_barred(before.slot, true, out);
        }
        self.state.counters.long_turns += 1;
        self.set_barred(slot, false, out);
        self.wake_at(Some(turn.until));
    }

    /// Verdict for members at the top: no foreground job is above them, so the policy has none to
    /// protect.
    pub(super) fn serve_turn(&self) -> Option<Verdict> {
        let class = self.state.queue.first_class()?;
        let slot = self.state.queue.first_in_turn(class)?;
        let client = self.state.get(slot).filter(|client| self.rota.has(client))?;
        let first = self.state.most_important()?;
        let at_the_top = self.policy.mode(client.priority, first) == Mode::Foreground;
        // Not bound: equals that are no members may be foreground jobs, whose launches are no
        // reason to stop.
        at_the_top.then(|| policy::grant_freely(&self.state, slot, self.now, false))
    }
}

#[cfg(test)]
mod tests;
