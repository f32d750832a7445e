//! What is left to do after a launch.
#![forbid(unsafe_code)]

use weft_protocol::Ns;

use super::streams::Place;
use crate::driver::stream::Stream;

/// What is left to do after a launch. Two plain words, so that it goes around the driver's call in
/// registers: as an enum of its own it would be written to the stack in pieces and read as a whole,
/// which stalls every launch by some four nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The lowest byte says which [`Rest`], the next one whether an account is a stream's own, the
    /// upper half of the word is a place.
    what: u64,
    /// A time or a number.
    number: u64,
}

const NOTHING: u64 = 0;
const BACKGROUND: u64 = 1;
const SAMPLED: u64 = 2;
const WAITS: u64 = 3;
const KIND: u64 = 0xff;
const OWN: u64 = 0x100;
const FIRST: u64 = 0x200;
const PLACE: u32 = 32;

/// The same, to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Nothing.
    Nothing,
    /// The work of a background job may want a mark behind it.
    Background {
        /// Its stream's account.
        place: Place,
        /// When it went.
        at: Ns,
    },
    /// The second event of a sample.
    Sampled {
        /// Where the sampler keeps the launch.
        place: u16,
        /// The launch's number in the process.
        sequence: u64,
    },
}

impl Step {
    /// Nothing is left to do.
    pub const NOTHING: Step = Step {
        what: NOTHING,
        number: 0,
    };

    /// The launch did not go: it has to wait at the gate.
    pub const WAITS: Step = Step { what: WAITS, number: 0 };

    /// Whether the launch has yet to go through the gate.
    #[inline(always)]
    pub fn waits(self) -> bool {
        self.what == WAITS
    }

    /// See [`Rest::Background`].
    #[inline(always)]
    pub fn background(place: Place, at: Ns, first: bool) -> Step {
        let own = if place.own { OWN } else { 0 };
        let first = if first { FIRST } else { 0 };
        Step {
            what: BACKGROUND | own | first | u64::from(place.at) << PLACE,
            number: at,
        }
    }

    /// See [`Rest::Sampled`].
    pub fn sampled(place: u16, sequence: u64) -> Step {
        Step {
            what: SAMPLED | u64::from(place) << PLACE,
            number: sequence,
        }
    }

    /// Whether it is of a background job's first launch since the job was idle.
    #[inline(always)]
    pub fn is_first(self) -> bool {
        self.what & FIRST != 0
    }

    /// Whether anything is left to do.
    #[inline(always)]
    pub fn is_nothing(self) -> bool {
        self.what == NOTHING
    }

    /// What is left to do.
    #[inline(always)]
    pub fn rest(self) -> Rest {
        let place = (self.what >> PLACE) as u16;
        match self.what & KIND {
            BACKGROUND => Rest::Background {
                place: Place {
                    at: place,
                    own: self.what & OWN != 0,
                },
                at: self.number,
            },
            SAMPLED => Rest::Sampled {
                place,
                sequence: self.number,
            },
            _ => Rest::Nothing,
        }
    }
}

/// Goes from [`super::before_launch`] to [`super::after_launch`] of the same launch on the same
/// thread.
#[must_use]
#[derive(Debug, Clone, Copy)]
pub struct Ticket(pub(super) Step);

impl Ticket {
    /// The launch did not go: it has to wait at the gate, by [`super::before_held`].
    #[inline(always)]
    pub fn waits(self) -> bool {
        self.0.waits()
    }

    /// Nothing is left to do after the launch.
    #[inline(always)]
    pub fn is_nothing(self) -> bool {
        self.0.is_nothing()
    }
}

/// What is to go through.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Hash of the kernel or graph; for a copy or memset
    /// [`HOST_COPY`](weft_protocol::lane::HOST_COPY) or `DEVICE_COPY`.
    pub kernel: u64,
    /// Predicted time.
    pub cost: Ns,
    /// Where to.
    pub stream: Stream,
    /// The stream's account.
    pub place: Place,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        assert_eq!(Step::NOTHING.rest(), Rest::Nothing);
        assert!(Step::NOTHING.is_nothing());
        for own in [false, true] {
            let place = Place { at: 63, own };
            let step = Step::background(place, u64::MAX, own);
            assert_eq!(step.is_first(), own);
            assert_eq!(step.rest(), Rest::Background { place, at: u64::MAX });
            assert!(!step.is_nothing());
        }
        let (place, sequence) = (u16::MAX, 1 << 40);
        assert_eq!(Step::sampled(place, sequence).rest(), Rest::Sampled { place, sequence });
    }
}
