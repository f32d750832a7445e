//! Policy `timeslice`: turns of fixed length among all jobs with work. Priorities do not count.
//!
//! There is no foreground job: a thousand kernels launched ahead would run far beyond the turn.
//! With credit a turn ends within the delay bound, and early when its job has no kernel to launch.

use weft_protocol::{Ns, lane::Mode};

use super::{
    interface::{GrantVerdict, Policy},
    round_robin::RoundRobin,
};
use crate::{queue::ClientSlot, state::SchedulerState};

#[derive(Debug, Default)]
pub(super) struct Timeslice {
    turns: RoundRobin,
}

impl Policy for Timeslice {
    fn mode(&self, _priority: u8, _first: u8) -> Mode {
        Mode::Background
    }

    fn class(&self, _priority: u8) -> usize {
        0
    }

    fn next(&mut self, state: &SchedulerState, now: Ns) -> GrantVerdict {
        self.turns.next(0, state, now, false)
    }

    fn shares_minimum(&self) -> bool {
        false
    }

    /// False: turns have a fixed length.
    fn long_turns(&self) -> bool {
        false
    }

    fn forget_turn(&mut self, slot: ClientSlot) {
        self.turns.forget(slot);
    }
}
