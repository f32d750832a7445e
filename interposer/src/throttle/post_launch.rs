// SPDX-License-Identifier: MIT OR Apache-2.0
//! Post-launch actions.
#![forbid(unsafe_code)]

use weft_gate::accounts::AccountIndex;
use weft_protocol::Ns;

use crate::driver::stream::Stream;

/// The post-launch action of one launch, from [`super::before_launch`] to
/// [`super::after_launch`] on one thread.
///
/// Two plain words, which pass the driver's call in registers. An enum would be written to the
/// stack in parts and read as a whole: a stall of some four nanoseconds per launch.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Lowest byte: kind of [`AfterLaunch`]. Next byte: whether an account is a stream's own. Upper
    /// half: a place.
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

/// A decoded [`Ticket`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterLaunch {
    /// Nothing.
    Nothing,
    /// The work of a background job may want a fence.
    Background {
        /// Account of its stream.
        place: AccountIndex,
        /// Launch time, ns.
        at: Ns,
    },
    /// The second event of a sample.
    Sampled {
        /// Place in the sampler's list.
        place: u16,
        /// The launch's number in the process.
        sequence: u64,
    },
}

impl Ticket {
    /// No action.
    pub const NOTHING: Ticket = Ticket {
        what: NOTHING,
        number: 0,
    };

    /// The launch did not go: it must wait at the gate.
    pub const WAITS: Ticket = Ticket { what: WAITS, number: 0 };

    /// Whether the launch must wait at the gate, by [`super::before_deferred`].
    #[inline(always)]
    pub fn waits(self) -> bool {
        self.what == WAITS
    }

    /// Encodes [`AfterLaunch::Background`].
    #[inline(always)]
    pub fn background(place: AccountIndex, at: Ns, first: bool) -> Ticket {
        let own = if place.own { OWN } else { 0 };
        let first = if first { FIRST } else { 0 };
        Ticket {
            what: BACKGROUND | own | first | u64::from(place.at) << PLACE,
            number: at,
        }
    }

    /// Encodes [`AfterLaunch::Sampled`].
    pub fn sampled(place: u16, sequence: u64) -> Ticket {
        Ticket {
            what: SAMPLED | u64::from(place) << PLACE,
            number: sequence,
        }
    }

    /// Whether this is a background job's first launch since the job was idle.
    #[inline(always)]
    pub fn is_first(self) -> bool {
        self.what & FIRST != 0
    }

    /// Whether there is no action after the launch.
    #[inline(always)]
    pub fn is_nothing(self) -> bool {
        self.what == NOTHING
    }

    /// Decodes the action.
    #[inline(always)]
    pub fn rest(self) -> AfterLaunch {
        let place = (self.what >> PLACE) as u16;
        match self.what & KIND {
            BACKGROUND => AfterLaunch::Background {
                place: AccountIndex {
                    at: place,
                    own: self.what & OWN != 0,
                },
                at: self.number,
            },
            SAMPLED => AfterLaunch::Sampled {
                place,
                sequence: self.number,
            },
            _ => AfterLaunch::Nothing,
        }
    }
}

/// Work that is to pass the gate.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Hash of the kernel or graph; for a copy or fill
    /// [`HOST_COPY`](weft_protocol::lane::HOST_COPY) or `DEVICE_COPY`.
    pub kernel: u64,
    /// Predicted time, ns.
    pub cost: Ns,
    /// Stream.
    pub stream: Stream,
    /// Account of the stream.
    pub place: AccountIndex,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        assert_eq!(Ticket::NOTHING.rest(), AfterLaunch::Nothing);
        assert!(Ticket::NOTHING.is_nothing());
        for own in [false, true] {
            let place = AccountIndex { at: 63, own };
            let ticket = Ticket::background(place, u64::MAX, own);
            assert_eq!(ticket.is_first(), own);
            assert_eq!(ticket.rest(), AfterLaunch::Background { place, at: u64::MAX });
            assert!(!ticket.is_nothing());
        }
        let (place, sequence) = (u16::MAX, 1 << 40);
        assert_eq!(
            Ticket::sampled(place, sequence).rest(),
            AfterLaunch::Sampled { place, sequence }
        );
    }
}
