//! What a policy is, and what several of them share.
//!
//! A policy reads the state and says one thing at a time: whom to grant credit, from whom to take
//! it back, or when to ask again. The core carries it out and asks again until the answer is
//! "nothing".

mod copies;
mod exclusive;
mod fikit;
mod timeslice;
mod turns;
mod weft;

pub(super) use turns::{grant_freely, make_room};

use std::fmt::Debug;

use super::{PolicyName, queue::Slot, state::State, timeline::Phase};
use weft_protocol::{Ns, credit::RunAheadWindow, lane::Mode};

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Give this waiting client credit, so that it has `total` left.
    Grant {
        slot: Slot,
        total: Ns,
        /// Void when a more important foreground job launches.
        bound: bool,
    },
    /// Take this client's unused credit back.
    Revoke(Slot),
    /// Nothing. Ask again at this time if nothing happens before.
    Nothing(Option<Ns>),
}

/// Whether a background job gets more before it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopUp {
    /// Now, so that it has so much left.
    To(Ns),
    /// Ask again at this time.
    At(Ns),
    /// No.
    No,
}

pub(super) trait Policy: Debug + Send {
    /// The mode of a client that is not alone. `first` is the most important priority attached.
    fn mode(&self, priority: u8, first: u8) -> Mode;

    /// The class in which a client of this priority queues.
    fn class(&self, priority: u8) -> usize {
        usize::from(priority)
    }

    /// What to do next. Asked only while somebody waits.
    fn next(&mut self, state: &State, now: Ns) -> Verdict;

    /// Whether those who never fit get a minimum share. Not where everybody gets a turn.
    fn shares_minimum(&self) -> bool {
        true
    }

    /// Whether equals take long turns where their memory does not fit the device together.
    fn long_turns(&self) -> bool {
        true
    }

    /// Whether a background job that runs on credit while nobody else wants any gets more before it
    /// asks: one stop at the gate less.
    fn top_up(&self, state: &State, slot: Slot, now: Ns) -> TopUp {
        let bound = state.config.delay_bound;
        let low = state.get(slot).is_some_and(|client| client.ledger.usable() < bound / 4);
        if low && state.exposure <= bound / 2 && matches!(state.phase(now), Phase::Open { .. }) {
            return TopUp::To(bound - state.exposure_before(slot));
        }
        TopUp::No
    }

    /// What a client may do by itself with credit that is bound to the foreground job's launch
    /// epoch, and when that is to be looked at again.
    fn window(&self, _state: &State, _slot: Slot, _now: Ns) -> Option<(RunAheadWindow, Ns)> {
        None
    }

    /// The client in this slot is gone, or changed its class.
    fn forget(&mut self, slot: Slot);
}

pub(super) fn by_name(name: PolicyName) -> Box<dyn Policy> {
    match name {
        PolicyName::Exclusive => Box::new(exclusive::Exclusive::default()),
        PolicyName::Timeslice => Box::new(timeslice::Timeslice::default()),
        PolicyName::Fikit => Box::new(fikit::Fikit::default()),
        PolicyName::Weft => Box::new(weft::Weft::default()),
    }
}

/// The most important is the foreground job, everybody else a background job.
fn foreground_and_background(priority: u8, first: u8) -> Mode {
    if priority == first {
        Mode::Foreground
    } else {
        Mode::Background
    }
}
