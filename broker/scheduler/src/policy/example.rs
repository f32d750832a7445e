// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policy `example`: background jobs take turns while the foreground jobs are silent.

use weft_protocol::Ns;

use super::{
    interface::{Observed, Policy},
    minimum_share::MinimumShare,
    round_robin::RoundRobin,
};
use crate::{action::Action, busy_model::Phase, dispatcher::Dispatcher, state::SchedulerState};

#[derive(Debug, Default)]
pub(super) struct Example {
    turns: RoundRobin,
    share: MinimumShare,
}

impl Policy for Example {
    fn observe(&mut self, _: &mut Dispatcher<'_>, seen: &Observed<'_>) {
        self.turns.observe(seen);
    }

    fn decide(&mut self, to: &mut Dispatcher<'_>) {
        if self.share.serve(to) {
            to.carry_out(|state, now| self.next(state, now));
        }
    }
}

impl Example {
    /// The next action for the clients that wait.
    fn next(&mut self, state: &SchedulerState, now: Ns) -> Action {
        match (state.phase(now), state.queue.first_class()) {
            (Phase::Busy { until }, _) => Action::Nothing(Some(until)),
            (Phase::Gap { over, .. }, _) => Action::Nothing(Some(over)),
            (Phase::Open { .. }, Some(class)) => self.turns.next(class, state, now),
            (Phase::Open { .. }, None) => Action::Nothing(None),
        }
    }
}
