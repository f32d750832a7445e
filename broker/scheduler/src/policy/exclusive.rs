//! Policy `exclusive`: the most important active job runs alone.
//!
//! A job is active while it has work and for `idle_grace` after it. Less important jobs do not run
//! meanwhile, not even in gaps. Then the next class runs within the delay bound, so that the more
//! important job finds the device nearly free. Equals share: foreground jobs side by side,
//! background jobs in turns.

use super::{
    super::{queue::Slot, state::State},
    Policy, Verdict, foreground_and_background,
    turns::Turns,
};
use weft_protocol::{Ns, lane::Mode};

#[derive(Debug, Default)]
pub(super) struct Exclusive {
    turns: Turns,
}

impl Policy for Exclusive {
    fn mode(&self, priority: u8, first: u8) -> Mode {
        foreground_and_background(priority, first)
    }

    fn next(&mut self, state: &State, now: Ns) -> Verdict {
        let Some(class) = state.queue.first_class() else {
            return Verdict::Nothing(None);
        };
        let grace = state.config.idle_grace;
        let foreground_jobs = state
            .foreground_jobs
            .iter()
            .filter_map(|slot| state.get(*slot)?.timeline.last_active())
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
            return Verdict::Nothing(Some(active_until));
        }
        self.turns.next(class, state, now, true)
    }

    fn forget(&mut self, slot: Slot) {
        self.turns.forget(slot);
    }
}
