//! Long turns among equals whose memory does not fit the device together.
//!
//! Two jobs of one priority that work at once take the memory from each other, page by page. So
//! where the memory planner says that room is short ([`Event::Crowded`](super::Event::Crowded)) the
//! members of a class (those of one priority that it names) take turns of the length that it says:
//! one has the device, the next one's memory comes in meanwhile. It holds under every policy but
//! `timeslice`, whose turns have a fixed length; the policies know nothing of it, since whose turn
//! it is not is not in the queue.
//!
//! | who | what |
//! |---|---|
//! | equals at the top, with nobody above them | would be foreground jobs side by side: as members they are background jobs. Whose turn it is gets all that the delay bound allows, so that its turn ends within it |
//! | equals below a foreground job | whose turn it is fills the foreground job's gaps, as the policy says. The foreground job's precedence is what it was |
//! | others of the same priority | those that the planner does not name (their memory is not managed) stay what they were and wait for no turn |
//! | less important ones | what they were: they run while nobody above them is at work |
//!
//! A turn ends early when its client falls silent for [`PRESENT`] of it (a Python host pauses for
//! milliseconds between two steps), so one that stops wastes no more than that, one that stalls
//! with work on the device a turn until that is written off, and one that is gone nothing. While
//! nobody else of the class waits it does not end. Who had no turn for longest is next, so nobody
//! waits for longer than the turns of all the others and a delay bound each (below a foreground job
//! that leaves nothing but the minimum share: than theirs and that).
//!
//! What holds: of a class with two members or more, one at most is in the queue. A member that is
//! not, has no credit that it could use, but what lets it past work of its own that does not end.
#![forbid(unsafe_code)]

use super::{
    Core, Decision, Ns,
    client::ClientState,
    policy::{self, Verdict},
    queue::Slot,
    state::State,
};
use weft_protocol::{PRIORITIES, lane::Mode};

/// A turn's client counts as present for such a part of the turn after its last launch epoch.
const PRESENT: Ns = 8;

/// Turns are no shorter and no longer than that, whatever the planner says.
const SHORTEST: Ns = 1_000_000;
const LONGEST: Ns = 60_000_000_000;

/// Whose turn it is, for each class.
#[derive(Debug, Default)]
pub(super) struct Rota {
    turns: [Option<Turn>; PRIORITIES],
    /// How many there are in each class.
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

    /// Counts the members anew.
    pub(super) fn count(&mut self, state: &State) {
        self.members = [0; PRIORITIES];
        for client in state.clients().filter(|client| client.crowded.is_some()) {
            if let Some(members) = self.members.get_mut(client.class) {
                *members += 1;
            }
        }
    }

    /// A client is gone, or is in another class.
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

/// Until when whose turn it is counts as there.
fn absent_at(state: &State, client: &ClientState, turn: &Turn) -> Ns {
    // One that waits for credit is there; that it has got some and does not go is no sign of life,
    // unless a foreground job's launch epoch may have voided it.
    let waits_for_more = client
        .wait
        .is_some_and(|wait| client.granted_at <= wait.since || client.bound);
    // One whose work is on the device is there, however slow that is: its memory may still be on
    // the way.
    if client.queued.is_some() && waits_for_more || client.ledger.outstanding() > 0 {
        return turn.until;
    }
    let waits = client.wait.map_or(0, |wait| wait.since);
    let epoch = client.progress_at.max(turn.begun).max(waits);
    let length = turn.until.saturating_sub(turn.begun);
    epoch.saturating_add(state.config.open_after.max(length / PRESENT))
}

impl Core {
    /// The memory planner says of a client whether its memory finds no room beside that of others,
    /// and how long turns should be.
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

    /// What a client's mode is among others that it takes turns with: nobody who is to stop within
    /// the delay bound can launch as he likes.
    pub(super) fn mode_in_turns(&self, client: &ClientState, mode: Mode) -> Mode {
        match mode {
            Mode::Foreground if self.rota.has(client) => Mode::Background,
            mode => mode,
        }
    }

    /// Puts those whose turn it is not out of the queue, and everybody else (back) in.
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
            // The answer to a revocation brings it back by itself.
            self.requeue(slot);
        }
    }

    /// Hands turns over where they are due.
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
            // Below a foreground job that hardly pauses the minimum share may come once in many
            // turns, and always in the same one's: who had nothing yet keeps his until he had.
            let had_nothing = owner.queued.is_some() && owner.granted_at < turn.begun;
            if self.now < ends {
                self.wake_at(Some(ends));
            } else if !had_nothing {
                self.hand_over(class, next, out);
            }
        }
    }

    /// Who waits for his turn and had none for longest.
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

    /// What to do for equals at the top whose turn it is: no foreground job is above them, so the
    /// policy's rules have nobody to protect.
    pub(super) fn serve_turn(&self) -> Option<Verdict> {
        let class = self.state.queue.first_class()?;
        let slot = self.state.queue.first_in_turn(class)?;
        let client = self.state.get(slot).filter(|client| self.rota.has(client))?;
        let first = self.state.most_important()?;
        let at_the_top = self.policy.mode(client.priority, first) == Mode::Foreground;
        // Not bound: equals that are no members may be foreground jobs, and their launches are no
        // reason to stop.
        at_the_top.then(|| policy::grant_freely(&self.state, slot, self.now, false))
    }
}

#[cfg(test)]
mod tests;
