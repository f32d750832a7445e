//! What a device's link carries, by what its clients' moves took there.
//!
//! A client says of a move how long the device took for it
//! ([`Ended::took`](weft_protocol::page_ops::Ended::took)), where the device had it before it as
//! soon as the move before was through: host time is not in it. Of those count such as say
//! something about the link alone:
//!
//! * none of less than [`LEAST`]: what a move costs beside its bytes would be measured;
//! * none beside which anything went the other way, of whichever client: on a link that carries one
//!   way at a time each would seem to have half of it.
//!
//! A move beside the job's own copies or faults seems slower than the link, and so does one that
//! the driver has to make room for (half as fast, on the simulated GPU); one of which a part lay
//! there already seems faster. The former are many more. So the rate is the one that three quarters
//! of the last [`KEPT`] do not exceed, there once [`ENOUGH`] are, and never further from what is
//! taken without a measurement than [`FAR`] times. Nothing here is believed more than that: a
//! client that lies makes turns too long or too short.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weft_paging::Link;
use weft_protocol::Ns;

/// A smaller move does not count: at 22 GB/s this takes 0.4 ms.
pub(super) const LEAST: u64 = 8 << 20;

/// Moves that are remembered for each way.
const KEPT: usize = 31;

/// So many at least, or nothing is measured.
pub(super) const ENOUGH: usize = 5;

/// A link is not so many times faster or slower than is taken for granted: from 0.7 GB/s (a slot
/// with one lane) to 0.7 TB/s (a chip with its memory beside the processor's).
const FAR: f64 = 32.0;

/// Between the end of a move on the device and the broker's hearing of it: what was out in this
/// time may have gone beside it.
const HEARD: Duration = Duration::from_millis(1);

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// To the device.
    Inward,
    /// To the host.
    Outward,
}

impl Way {
    fn at(self) -> usize {
        match self {
            Way::Inward => 0,
            Way::Outward => 1,
        }
    }
}

/// See the module. Rates are bytes a second.
#[derive(Debug, Clone)]
pub(super) struct Carried {
    /// What is taken for granted.
    granted: Link,
    rates: [VecDeque<f64>; 2],
    /// When something was last out that way.
    out: [Option<Instant>; 2],
}

impl Carried {
    /// Of a link of which nothing was measured yet.
    pub fn new(granted: Link) -> Carried {
        Carried {
            granted,
            rates: Default::default(),
            out: [None; 2],
        }
    }

    /// Something is out that way.
    pub fn busy(&mut self, way: Way, now: Instant) {
        self.out[way.at()] = Some(now);
    }

    /// A move of so many bytes has ended; it took the device so long. Whether it counts.
    pub fn moved(&mut self, way: Way, bytes: u64, took: Ns, now: Instant) -> bool {
        let granted = match way {
            Way::Inward => self.granted.inward,
            Way::Outward => self.granted.outward,
        };
        let lasted = HEARD + Duration::from_nanos(took);
        let beside = self.out[1 - way.at()].is_some_and(|at| now.saturating_duration_since(at) <= lasted);
        if bytes < LEAST || took == 0 || beside {
            return false;
        }
        let rate = bytes as f64 * 1e9 / took as f64;
        let rates = &mut self.rates[way.at()];
        if rates.len() >= KEPT {
            rates.pop_front();
        }
        rates.push_back(rate.clamp(granted / FAR, granted * FAR));
        true
    }

    /// What was measured of a way.
    pub fn measured(&self, way: Way) -> Option<f64> {
        let rates = &self.rates[way.at()];
        if rates.len() < ENOUGH {
            return None;
        }
        let mut all: Vec<f64> = rates.iter().copied().collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() * 3 / 4).copied()
    }

    /// The link as it is to be planned with. Of a way of which nothing is known the other one is
    /// taken to tell.
    pub fn link(&self) -> Link {
        let (inward, outward) = (self.measured(Way::Inward), self.measured(Way::Outward));
        let off = |measured: Option<f64>, granted: f64| measured.map(|rate| rate / granted);
        let (in_off, out_off) = (off(inward, self.granted.inward), off(outward, self.granted.outward));
        let inward = self.granted.inward * in_off.or(out_off).unwrap_or(1.0);
        let outward = self.granted.outward * out_off.or(in_off).unwrap_or(1.0);
        Link {
            inward,
            outward,
            both: self.granted.both / (self.granted.inward + self.granted.outward) * (inward + outward),
            ..self.granted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;
    const GRANTED: Link = Link {
        inward: 20e9,
        outward: 20e9,
        both: 20e9,
        duplex: false,
    };

    /// What a move of so many bytes takes at this rate.
    fn takes(bytes: u64, rate: f64) -> Ns {
        (bytes as f64 * 1e9 / rate) as Ns
    }

    fn near(rate: f64, wanted: f64) -> bool {
        (rate / wanted - 1.0).abs() < 0.01
    }

    #[test]
    fn the_rate_is_what_most_of_the_last_moves_come_up_to() {
        let mut carried = Carried::new(GRANTED);
        let mut now = Instant::now();
        let mut moves = |carried: &mut Carried, way, rate, count| {
            for _ in 0..count {
                now += Duration::from_millis(20);
                carried.busy(way, now);
                assert!(carried.moved(way, 32 * MB, takes(32 * MB, rate), now));
            }
        };
        moves(&mut carried, Way::Inward, 7e9, ENOUGH - 1);
        assert_eq!((carried.measured(Way::Inward), carried.link()), (None, GRANTED));
        moves(&mut carried, Way::Inward, 7e9, 1);
        assert!(near(carried.link().inward, 7e9));
        assert!(
            near(carried.link().outward, 7e9),
            "the only way that is known tells of the other one"
        );
        moves(&mut carried, Way::Outward, 5e9, ENOUGH);
        assert!(near(carried.link().inward, 7e9) && near(carried.link().outward, 5e9));
        assert!(near(carried.link().both, 6e9) && !carried.link().duplex);
        // Some that lay there already, and some beside other work.
        for _ in 0..3 {
            moves(&mut carried, Way::Inward, 300e9, 1);
            moves(&mut carried, Way::Inward, 1e9, 4);
        }
        assert!(near(carried.link().inward, 7e9));
        // A link that was slowed down is found out.
        moves(&mut carried, Way::Inward, 3e9, KEPT);
        assert!(near(carried.link().inward, 3e9));
    }

    #[test]
    fn tiny_moves_and_such_beside_others_do_not_count_and_nothing_is_far_off() {
        let mut carried = Carried::new(GRANTED);
        let begin = Instant::now();
        let later = |ms| begin + Duration::from_millis(ms);
        assert!(!carried.moved(Way::Inward, LEAST - 1, 1_000_000, begin));
        assert!(
            !carried.moved(Way::Inward, 32 * MB, 0, begin),
            "nobody knows how long it took"
        );
        carried.busy(Way::Outward, later(10));
        assert!(!carried.moved(Way::Inward, 32 * MB, 4_000_000, later(10)));
        assert!(
            !carried.moved(Way::Inward, 32 * MB, 4_000_000, later(15)),
            "in a part of its time"
        );
        assert!(carried.moved(Way::Inward, 32 * MB, 4_000_000, later(16)));
        for _ in 0..KEPT {
            assert!(carried.moved(Way::Inward, 32 * MB, 1, later(100)));
        }
        assert!(near(carried.link().inward, 20e9 * FAR));
        let mut carried = Carried::new(GRANTED);
        for _ in 0..KEPT {
            assert!(carried.moved(Way::Inward, 32 * MB, Ns::MAX / 2, later(200)));
        }
        assert!(near(carried.link().inward, 20e9 / FAR));
    }
}
