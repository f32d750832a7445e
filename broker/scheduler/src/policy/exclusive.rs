//! Policy `exclusive`: the most important active job runs alone.
//!
//! A job is active while it has work and for `idle_grace` after it. Then the next class runs within
//! the delay bound, so that the more important job finds the device nearly free. Equals share:
//! foreground jobs at the same time, background jobs in turns.

use weft_protocol::Ns;

use super::{
    interface::{GrantVerdict, Policy},
    round_robin::RoundRobin,
};
use crate::{queue::ClientSlot, state::SchedulerState};

#[derive(Debug, Default)]
pub(super) struct Exclusive {
    turns: RoundRobin,
}

impl Policy for Exclusive {
    fn next(&mut self, state: &SchedulerState, now: Ns) -> GrantVerdict {
        let Some(class) = state.queue.first_class() else {
            return GrantVerdict::Nothing(None);
        };
        let grace = state.config.idle_grace;
        let foreground_jobs = state
            .foreground()
            .filter_map(|(_, client)| client.busy.last_activity())
            .max();
        // Class 0 of background jobs would be the foreground jobs' own. A class that never had work
        // is not active.
        let background_jobs = state
            .class_active_at
            .iter()
            .take(class)
            .copied()
            .filter(|at| *at > 0)
            .max();
        let active_until = foreground_jobs
            .max(background_jobs)
            .map_or(0, |last| last.saturating_add(grace));
        if now < active_until {
            return GrantVerdict::Nothing(Some(active_until));
        }
        self.turns.next(class, state, now, true)
    }

    fn forget_turn(&mut self, slot: ClientSlot) {
        self.turns.forget(slot);
    }
}
