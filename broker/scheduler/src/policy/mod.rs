//! The policy trait, and what several policies share.
//!
//! A policy reads the state and gives one verdict at a time: grant, revoke, or ask again later. The
//! core carries it out and asks again until the verdict is "nothing".

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

/// A policy's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Grant this waiting client credit, so that it has `total` ns left.
    Grant {
        slot: Slot,
        total: Ns,
        /// Whether the launch of a more important foreground job voids it.
        bound: bool,
    },
    /// Revoke this client's unused credit.
    Revoke(Slot),
    /// Do nothing. Ask again at this time if nothing happens before.
    Nothing(Option<Ns>),
}

/// Whether a background job gets more credit before it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopUp {
    /// Now, so that it has this much left, ns.
    To(Ns),
    /// Ask again at this time.
    At(Ns),
    /// No more.
    No,
}

pub(super) trait Policy: Debug + Send {
    /// Mode of a client that is not alone. `first`: the most important priority attached.
    fn mode(&self, priority: u8, first: u8) -> Mode;

    /// Class in which a client of this priority queues.
    fn class(&self, priority: u8) -> usize {
        usize::from(priority)
    }

    /// The next verdict. Asked only while a client waits.
    fn next(&mut self, state: &State, now: Ns) -> Verdict;

    /// Whether clients that never fit get a minimum share. Not where every client has turns.
    fn shares_minimum(&self) -> bool {
        true
    }

    /// Whether equals take long turns where their memory does not fit the device together.
    fn long_turns(&self) -> bool {
        true
    }

    /// Whether a background job that is alone in wanting credit gets more before it asks: one stop
    /// at the gate less.
    fn top_up(&self, state: &State, slot: Slot, now: Ns) -> TopUp {
        let bound = state.config.delay_bound;
        let low = state.get(slot).is_some_and(|client| client.ledger.usable() < bound / 4);
        if low && state.exposure <= bound / 2 && matches!(state.phase(now), Phase::Open { .. }) {
            return TopUp::To(bound - state.exposure_before(slot));
        }
        TopUp::No
    }

    /// Run-ahead window of a client, for credit bound to the foreground launch epoch; and when to
    /// look at it again.
    fn window(&self, _state: &State, _slot: Slot, _now: Ns) -> Option<(RunAheadWindow, Ns)> {
        None
    }

    /// Forgets a client that is gone or in another class.
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

/// Foreground mode for the most important priority, else background mode.
fn foreground_and_background(priority: u8, first: u8) -> Mode {
    if priority == first {
        Mode::Foreground
    } else {
        Mode::Background
    }
}
