// SPDX-License-Identifier: MIT OR Apache-2.0
//! Minimum share: part of the device's time for background jobs that find no gap. A job with a
//! guaranteed part has that instead.

use weft_protocol::Ns;

use crate::{action::Action, delay_bound::make_room, dispatcher::Dispatcher, queue::QueueEntry, state::SchedulerState};

/// Time that a job is behind its guaranteed part for each ns of work that may be out beyond the
/// delay bound, ns.
const BEHIND_PER_ROOM_RATIO: Ns = 4;

/// Credit of a due client, and its price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Portion {
    /// Its credit, ns.
    pub credit: Ns,
    /// Time for which the share is then used up, as the kernel's time, ns.
    pub price: Ns,
}

/// The minimum share of all background jobs together.
#[derive(Debug, Default)]
pub(super) struct MinimumShare {
    /// Nothing is granted before this.
    next: Ns,
}

impl MinimumShare {
    /// Grants due clients one kernel each ([`MinimumShare::serve_by`]).
    pub(super) fn serve(&mut self, to: &mut Dispatcher<'_>) -> bool {
        self.serve_by(to, |_, entry, _| {
            Ok(Portion {
                credit: entry.cost,
                price: entry.long,
            })
        })
    }

    /// Grants to due clients one at a time, at most the minimum share in total. False: the due
    /// client waits for work to end, and comes first. Else the policy would repeatedly grant credit
    /// that was revoked for it.
    ///
    /// `portion`: that of a due client. Error: when to look again, if a better moment is near.
    pub(super) fn serve_by(
        &mut self,
        to: &mut Dispatcher<'_>,
        portion: impl Fn(&SchedulerState, &QueueEntry, Ns) -> Result<Portion, Ns>,
    ) -> bool {
        if !serve_guaranteed(to) {
            return false;
        }
        if to.state().config.minimum_share <= 0.0 {
            return true;
        }
        let now = to.now;
        while let Some((due, slot)) = to.state().queue.first_due() {
            let at = due.max(self.next);
            if now < at {
                to.wake_at(at);
                return true;
            }
            let Some(entry) = to.state().get(slot).and_then(|client| client.queued) else {
                return true;
            };
            let portion = match portion(to.state(), &entry, now) {
                Ok(portion) => portion,
                Err(again) => {
                    to.wake_at(again);
                    return true;
                }
            };
            if !is_admitted(to, &entry) {
                return false;
            }
            let interval = to.state().share_interval(portion.price.max(portion.credit));
            self.next = now.saturating_add(interval);
            to.grant_share(slot, portion.credit);
        }
        true
    }
}

/// Grants jobs what is due of their guaranteed parts. False: the due job waits for work to end.
fn serve_guaranteed(to: &mut Dispatcher<'_>) -> bool {
    let now = to.now;
    while let Some((due, slot)) = to.state().first_guaranteed(now) {
        if now < due {
            to.wake_at(due);
            return true;
        }
        let Some(client) = to.state().get(slot) else {
            return true;
        };
        let (Some(entry), owed) = (client.queued, client.guarantee.owed(now) as Ns) else {
            return true;
        };
        // A device that gives other jobs a slice after each portion needs longer ones.
        let most = to.state().delay_bound().saturating_add(owed / BEHIND_PER_ROOM_RATIO);
        let room = most.saturating_sub(to.state().exposure_before(slot));
        if room < entry.cost && !is_admitted(to, &entry) {
            return false;
        }
        to.grant_share(slot, entry.cost.max(owed.min(room)));
    }
    true
}

/// Whether a due kernel may be granted. If not, makes room for it.
fn is_admitted(to: &mut Dispatcher<'_>, entry: &QueueEntry) -> bool {
    let (slot, now) = (entry.slot, to.now);
    if to.state().admits(slot, entry.cost) {
        return true;
    }
    let room = make_room(to.state(), slot, entry.cost, now);
    if let Action::Revoke(other) = room {
        to.revoke(other);
    }
    let again = match room {
        Action::Nothing(Some(again)) => again,
        _ => to.state().drained(slot, entry.cost, now),
    };
    to.wake_at(again);
    false
}
