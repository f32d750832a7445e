// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measured rates of a device's link.
//!
//! A client reports each move's device time, without host time
//! ([`PageOpEnd::took`](weft_protocol::page_ops::PageOpEnd::took)). A move does not count if:
//!
//! * its time is not known;
//! * it is smaller than [`SMALLEST_MOVE_BYTES`]: fixed costs would be measured;
//! * memory of any client moved in the other direction at the same time: on a half-duplex link each
//!   move seems half as fast.
//!
//! Moves seem slower during the job's copies or faults, or if the driver makes room (half as fast,
//! on the simulated GPU). Moves of memory that is partly there already seem faster, and are far
//! fewer. So the rate is the upper quartile of the last [`KEPT_MOVES`], once there are
//! [`ENOUGH_MOVES`].
//!
//! Invariant: `granted / LARGEST_FACTOR <= rate <= granted * LARGEST_FACTOR`. A client's false
//! report only makes turns too long or too short.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weft_paging::Link;
use weft_protocol::Ns;

/// Smallest move that counts, bytes: 0.4 ms at 22 GB/s.
pub(super) const SMALLEST_MOVE_BYTES: u64 = 8 << 20;

/// Moves that are kept for each direction.
const KEPT_MOVES: usize = 31;

/// Fewest moves for a measurement.
pub(super) const ENOUGH_MOVES: usize = 5;

/// Largest factor between the rate and the assumed one: 0.7 GB/s (a slot with one lane) to 0.7 TB/s
/// (memory on the same package as the processor's).
const LARGEST_FACTOR: f64 = 32.0;

/// Time until the broker reads of a move's end: moves under way in this time may have overlapped.
const REPORT_DELAY: Duration = Duration::from_millis(1);

/// Direction of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MoveDirection {
    /// To the device.
    Inward,
    /// To the host.
    Outward,
}

impl MoveDirection {
    fn at(self) -> usize {
        match self {
            MoveDirection::Inward => 0,
            MoveDirection::Outward => 1,
        }
    }
}

/// Rates of one link, bytes/s. See the module.
#[derive(Debug, Clone)]
pub(super) struct LinkRates {
    /// The assumed rates.
    granted: Link,
    rates: [VecDeque<f64>; 2],
    /// Time at which a move was last under way, by direction.
    out: [Option<Instant>; 2],
}

impl LinkRates {
    /// A link without measurements.
    pub fn new(granted: Link) -> LinkRates {
        LinkRates {
            granted,
            rates: Default::default(),
            out: [None; 2],
        }
    }

    /// Records that a move is under way in this direction.
    pub fn busy(&mut self, way: MoveDirection, now: Instant) {
        self.out[way.at()] = Some(now);
    }

    /// Adds a move of `bytes` that took the device `took` ns. Returns whether it counts.
    pub fn moved(&mut self, way: MoveDirection, bytes: u64, took: Ns, now: Instant) -> bool {
        let granted = match way {
            MoveDirection::Inward => self.granted.inward,
            MoveDirection::Outward => self.granted.outward,
        };
        let lasted = REPORT_DELAY + Duration::from_nanos(took);
        let beside = self.out[1 - way.at()].is_some_and(|at| now.saturating_duration_since(at) <= lasted);
        if bytes < SMALLEST_MOVE_BYTES || took == 0 || beside {
            return false;
        }
        let rate = bytes as f64 * 1e9 / took as f64;
        let rates = &mut self.rates[way.at()];
        if rates.len() >= KEPT_MOVES {
            rates.pop_front();
        }
        rates.push_back(rate.clamp(granted / LARGEST_FACTOR, granted * LARGEST_FACTOR));
        true
    }

    /// The measured rate of a direction, bytes/s.
    pub fn measured(&self, way: MoveDirection) -> Option<f64> {
        let rates = &self.rates[way.at()];
        if rates.len() < ENOUGH_MOVES {
            return None;
        }
        let mut all: Vec<f64> = rates.iter().copied().collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() * 3 / 4).copied()
    }

    /// The link to plan with. An unmeasured direction deviates by the same factor as the other.
    pub fn link(&self) -> Link {
        let (inward, outward) = (
            self.measured(MoveDirection::Inward),
            self.measured(MoveDirection::Outward),
        );
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

    /// Time of a move at this rate, ns.
    fn takes(bytes: u64, rate: f64) -> Ns {
        (bytes as f64 * 1e9 / rate) as Ns
    }

    fn near(rate: f64, wanted: f64) -> bool {
        (rate / wanted - 1.0).abs() < 0.01
    }

    #[test]
    fn the_rate_is_what_most_of_the_last_moves_come_up_to() {
        let mut carried = LinkRates::new(GRANTED);
        let mut now = Instant::now();
        let mut moves = |carried: &mut LinkRates, way, rate, count| {
            for _ in 0..count {
                now += Duration::from_millis(20);
                carried.busy(way, now);
                assert!(carried.moved(way, 32 * MB, takes(32 * MB, rate), now));
            }
        };
        moves(&mut carried, MoveDirection::Inward, 7e9, ENOUGH_MOVES - 1);
        assert_eq!(
            (carried.measured(MoveDirection::Inward), carried.link()),
            (None, GRANTED)
        );
        moves(&mut carried, MoveDirection::Inward, 7e9, 1);
        assert!(near(carried.link().inward, 7e9));
        assert!(
            near(carried.link().outward, 7e9),
            "the only way that is known tells of the other one"
        );
        moves(&mut carried, MoveDirection::Outward, 5e9, ENOUGH_MOVES);
        assert!(near(carried.link().inward, 7e9) && near(carried.link().outward, 5e9));
        assert!(near(carried.link().both, 6e9) && !carried.link().duplex);
        // Moves of memory that is partly there already, and moves during other work.
        for _ in 0..3 {
            moves(&mut carried, MoveDirection::Inward, 300e9, 1);
            moves(&mut carried, MoveDirection::Inward, 1e9, 4);
        }
        assert!(near(carried.link().inward, 7e9));
        // A slower link is noticed.
        moves(&mut carried, MoveDirection::Inward, 3e9, KEPT_MOVES);
        assert!(near(carried.link().inward, 3e9));
    }

    #[test]
    fn tiny_moves_and_such_beside_others_do_not_count_and_nothing_is_far_off() {
        let mut carried = LinkRates::new(GRANTED);
        let begin = Instant::now();
        let later = |ms| begin + Duration::from_millis(ms);
        assert!(!carried.moved(MoveDirection::Inward, SMALLEST_MOVE_BYTES - 1, 1_000_000, begin));
        assert!(
            !carried.moved(MoveDirection::Inward, 32 * MB, 0, begin),
            "nobody knows how long it took"
        );
        carried.busy(MoveDirection::Outward, later(10));
        assert!(!carried.moved(MoveDirection::Inward, 32 * MB, 4_000_000, later(10)));
        assert!(
            !carried.moved(MoveDirection::Inward, 32 * MB, 4_000_000, later(15)),
            "in a part of its time"
        );
        assert!(carried.moved(MoveDirection::Inward, 32 * MB, 4_000_000, later(16)));
        for _ in 0..KEPT_MOVES {
            assert!(carried.moved(MoveDirection::Inward, 32 * MB, 1, later(100)));
        }
        assert!(near(carried.link().inward, 20e9 * LARGEST_FACTOR));
        let mut carried = LinkRates::new(GRANTED);
        for _ in 0..KEPT_MOVES {
            assert!(carried.moved(MoveDirection::Inward, 32 * MB, Ns::MAX / 2, later(200)));
        }
        assert!(near(carried.link().inward, 20e9 / LARGEST_FACTOR));
    }
}
