//! Length of a turn for the memory that it moves.
//!
//! A round has `k` turns of length `T` and moves memory for `X` in all; `a` is the efficiency.
//!
//! | migrations | a round takes | condition |
//! |---|---|---|
//! | ahead, overlapped | `max(kT, X)` | `kT >= aX` |
//! | not ahead | `kT + X` | `T = aX / (k (1 - a))` |
//!
//! The second row is from MSched's figures (arXiv 2512.24637).
//!
//! With `a > 1`, as the daemon asks for, the link is busy for at most `1/a` of the turns.
//! Migrations then come in time beside late orders and faults.
//!
//! The bound on being swapped out wins over the link. A turn shorter than a client's period moves
//! only what it touches meanwhile. So short turns keep almost any bound, and move each set more
//! often.
#![forbid(unsafe_code)]

use super::{Link, Overlap};
use weft_protocol::Ns;

/// Granules that one client's turn moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Migration {
    /// Granules to the device.
    pub inward: u64,
    /// Granules to the host that must be copied.
    pub outward: u64,
}

impl Migration {
    /// Time of the migration on the link.
    pub fn time(&self, link: &Link) -> Ns {
        link.time(self.inward, self.outward)
    }
}

/// Shorter turns are a switch and little else.
const MIN_TURN_NS: Ns = 1_000_000;

/// Length of turns, ns, at which migrations leave `efficiency` of the device's time: 0 to 1, or
/// more where memory moves ahead.
///
/// No client is swapped out (others' turns and stalls) for longer than `max_swapped_out`. The
/// length is at least `least`, which yields to that bound down to 1 ms.
///
/// `whole`: what each client's long turn moves. `migrations`: what a turn of a given length surely
/// moves.
pub fn turn_length(
    link: &Link,
    overlap: Overlap,
    whole: &[Migration],
    migrations: impl Fn(Ns) -> Vec<Migration>,
    efficiency: f64,
    least: Ns,
    max_swapped_out: Ns,
) -> Ns {
    let clients = whole.len() as u64;
    if clients < 2 {
        return max_swapped_out.max(least);
    }
    // Turns end up to an eighth later (`scripts/lab memory`), and the bound is a promise.
    let max_swapped_out = max_swapped_out - max_swapped_out / 6;
    let time = |all: &[Migration]| -> Ns { all.iter().map(|one| one.time(link)).sum() };
    let share = match overlap {
        Overlap::Ahead => efficiency.clamp(0.0, 10.0),
        Overlap::AtSwitch | Overlap::Nothing => {
            let efficiency = efficiency.clamp(0.0, 0.99);
            efficiency / (1.0 - efficiency)
        }
    };
    let wanted = (time(whole) as f64 * share / clients as f64) as Ns;
    let others = clients - 1;
    // Time swapped out: the others' turns, and the stalls that the link adds.
    let gone = |length: Ns| {
        let moved = time(&migrations(length));
        let stalls = match overlap {
            Overlap::Ahead => moved.saturating_sub(length * clients),
            Overlap::AtSwitch | Overlap::Nothing => moved,
        };
        length * others + stalls
    };
    let mut length = wanted.max(least).min(max_swapped_out / others).max(1);
    let shortest = MIN_TURN_NS.min(least).min(max_swapped_out / others).max(1);
    // Migrations grow unevenly with the length.
    while length > shortest && gone(length) > max_swapped_out {
        length = (length - (length / 16).max(1)).max(shortest);
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    fn link(duplex: bool) -> Link {
        // One granule a millisecond.
        let rate = super::super::GRANULE as f64 * 1e3;
        Link {
            inward: rate,
            outward: rate,
            both: 2.0 * rate,
            duplex,
        }
    }

    /// Three clients with the same migration for every length.
    fn moves(inward: u64, outward: u64) -> [Migration; 3] {
        [Migration { inward, outward }; 3]
    }

    fn slice_of(
        link: &Link,
        overlap: Overlap,
        moves: &[Migration],
        efficiency: f64,
        least: Ns,
        max_swapped_out: Ns,
    ) -> Ns {
        turn_length(
            link,
            overlap,
            moves,
            |_| moves.to_vec(),
            efficiency,
            least,
            max_swapped_out,
        )
    }

    #[test]
    fn the_slice_follows_what_is_moved() {
        let duplex = link(true);
        let far = 100_000 * MS;
        let at = |overlap, (inward, outward)| slice_of(&duplex, overlap, &moves(inward, outward), 0.75, MS, far);
        assert_eq!(at(Overlap::Ahead, (100, 80)), 75 * MS);
        assert_eq!(at(Overlap::AtSwitch, (100, 80)), 300 * MS);
        assert_eq!(at(Overlap::Ahead, (0, 0)), MS, "nothing to move: the shortest");
        let oneway = slice_of(&link(false), Overlap::Ahead, &moves(100, 80), 0.75, MS, far);
        assert_eq!(oneway, 135 * MS);
        let idle = slice_of(&link(false), Overlap::Ahead, &moves(100, 80), 1.5, MS, far);
        assert_eq!(idle, 270 * MS, "the link is busy for two thirds of the turns");
    }

    #[test]
    fn being_away_is_bounded() {
        for max_swapped_out in [20 * MS, 100 * MS, 250 * MS] {
            for overlap in [Overlap::Ahead, Overlap::AtSwitch, Overlap::Nothing] {
                let length = slice_of(&link(true), overlap, &moves(100, 80), 0.9, MS, max_swapped_out);
                assert!(
                    length >= 1 && length * 2 <= max_swapped_out,
                    "{overlap:?} {max_swapped_out}: {length}"
                );
            }
        }
    }

    #[test]
    fn turns_that_touch_less_keep_a_bound_that_whole_sets_break() {
        // A set of 100 granules, touched in 50 ms; three take the link 300 ms.
        let swept = |length: Ns| {
            let inward = (length / (MS / 2)).min(100);
            vec![Migration { inward, outward: 0 }; 3]
        };
        let at = |max_swapped_out| {
            turn_length(
                &link(true),
                Overlap::Ahead,
                &swept(Ns::MAX),
                swept,
                0.9,
                20 * MS,
                max_swapped_out,
            )
        };
        assert!(
            at(400 * MS) >= 85 * MS,
            "whole periods while the bound allows them: {}",
            at(400 * MS)
        );
        let short = at(100 * MS);
        assert!(short > MS && short < 20 * MS, "{short}");
        // The round without its own turn.
        let moved: Ns = swept(short).iter().map(|one| one.time(&link(true))).sum();
        assert!(moved - short <= 100 * MS, "{moved} {short}");
        assert_eq!(at(2 * MS), 833_333, "nothing keeps it: the shortest comes nearest");
    }

    #[test]
    fn both_ways_at_once_each_is_slower_until_one_is_through() {
        let both = Link {
            both: link(true).inward * 1.5,
            ..link(true)
        };
        let close = |time: Ns, ms: Ns| assert!(time.abs_diff(ms * MS) < MS / 100, "{time} is not {ms} ms");
        close(both.time(90, 0), 90);
        close(both.time(90, 90), 120);
        close(both.time(90, 60), 80 + 30);
        close(link(true).time(90, 60), 90);
        close(link(false).time(90, 60), 150);
    }

    #[test]
    fn alone_there_is_nothing_to_share() {
        assert_eq!(slice_of(&link(true), Overlap::Ahead, &[], 0.9, MS, 50 * MS), 50 * MS);
    }
}
