// SPDX-License-Identifier: MIT OR Apache-2.0
//! Minimum share: part of the device's time for background jobs that find no gap.

use weft_protocol::Ns;

use crate::{action::Action, delay_bound::make_room, dispatcher::Dispatcher, queue::QueueEntry, state::SchedulerState};

/// The minimum share of all background jobs together.
#[derive(Debug, Default)]
pub(super) struct MinimumShare {
    /// Nothing is granted before this.
    next: Ns,
}

impl MinimumShare {
    /// Grants due clients one kernel each ([`MinimumShare::serve_by`]).
    pub(super) fn serve(&mut self, to: &mut Dispatcher<'_>) -> bool {
        self.serve_by(to, |_, entry, _| Ok(entry.cost))
    }

    /// Grants to due clients one at a time, at most the minimum share in total. False: the due
    /// client waits for work to end, and comes first. Else the policy would repeatedly grant credit
    /// that was revoked for it.
    ///
    /// `portion`: credit of a due client, ns. Error: when to look again, if a better moment is
    /// near.
    pub(super) fn serve_by(
        &mut self,
        to: &mut Dispatcher<'_>,
        portion: impl Fn(&SchedulerState, &QueueEntry, Ns) -> Result<Ns, Ns>,
    ) -> bool {
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
            if !to.state().admits(slot, entry.cost) {
                let room = make_room(to.state(), slot, entry.cost, now);
                if let Action::Revoke(other) = room {
                    to.revoke(other);
                }
                let again = match room {
                    Action::Nothing(Some(again)) => again,
                    _ => to.state().drained(slot, entry.cost, now),
                };
                to.wake_at(again);
                return false;
            }
            let interval = to.state().share_interval(entry.long.max(portion));
            self.next = now.saturating_add(interval);
            to.grant_share(slot, portion);
        }
        true
    }
}
