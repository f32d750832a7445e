//! `timeslice`: turns of fixed length among all jobs that have work. Priorities do not count.
//!
//! Nobody is a foreground job: a launch-ahead of a thousand kernels would run far beyond the turn.
//! Everybody works on credit, within the delay bound, so a turn ends within that bound. A turn ends
//! early when its job has nothing to launch.

use super::{
    super::{queue::Slot, state::State},
    Policy, Verdict,
    turns::Turns,
};
use weft_protocol::{Ns, lane::Mode};

#[derive(Debug, Default)]
pub(super) struct Timeslice {
    turns: Turns,
}

impl Policy for Timeslice {
    fn mode(&self, _priority: u8, _first: u8) -> Mode {
        Mode::Background
    }

    fn class(&self, _priority: u8) -> usize {
        0
    }

    fn next(&mut self, state: &State, now: Ns) -> Verdict {
        self.turns.next(0, state, now, false)
    }

    fn shares_minimum(&self) -> bool {
        false
    }

    /// Its turns are of fixed length.
    fn long_turns(&self) -> bool {
        false
    }

    fn forget(&mut self, slot: Slot) {
        self.turns.forget(slot);
    }
}
