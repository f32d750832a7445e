//! `weft`: gaps are filled by what was seen to follow, with quantiles in place of means.
//!
//! Between requests fillers go in turns within the delay bound, as under `fikit`.

use super::{
    super::{queue::Slot, state::State, timeline::Phase},
    Policy, Verdict, copies, fikit, holder_and_fillers,
    turns::Turns,
};
use crate::protocol::{Ns, lane::Mode};

#[derive(Debug, Default)]
pub(super) struct Weft {
    turns: Turns,
}

impl Policy for Weft {
    fn mode(&self, priority: u8, first: u8) -> Mode {
        holder_and_fillers(priority, first)
    }

    fn next(&mut self, state: &State, now: Ns) -> Verdict {
        match state.phase(now) {
            Phase::Busy { until } => copies::beside_holder(state, until, now),
            Phase::Gap { until, over, .. } => fikit::fill(state, until, over, now),
            Phase::Open { .. } => match state.queue.first_class() {
                Some(class) => self.turns.next(class, state, now, true),
                None => Verdict::Nothing(None),
            },
        }
    }

    fn forget(&mut self, slot: Slot) {
        self.turns.forget(slot);
    }
}
