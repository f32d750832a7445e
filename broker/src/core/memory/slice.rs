//! How long a turn must be for the memory that it moves.
//!
//! While one client runs, the link brings the next one's set. A round of turns of length `T` for `k` clients that moves memory for `X` in all takes
//! `max(kT, X)` where both overlap: it is efficient to `a` if `kT >= aX`. Where nothing is moved ahead it takes `kT + X`, and `T = aX / (k (1 - a))`
//! (the model of `facts/papers.md` section 2.4 with nothing overlapped).
//!
//! An efficiency above 1 asks for more than that: the link is to be busy for `1/a` of the turns at most, so that what it moves comes in time also where orders are late and a kernel's own faults
//! share the link. That is what the daemon asks for.
//!
//! What must not happen is that a client is away for longer than it was promised. That bound wins: a longer slice is never taken to save the link.
#![forbid(unsafe_code)]

use super::{Link, Overlap};
use crate::protocol::Ns;

/// What one client's turn makes move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Migration {
    /// Granules to the device.
    pub inward: u64,
    /// Granules to the host that must be copied.
    pub outward: u64,
}

impl Migration {
    /// How long the link is busy with it.
    pub fn time(&self, link: &Link) -> Ns {
        let (inward, outward) = (link.time_in(self.inward), link.time_out(self.outward));
        if link.duplex {
            inward.max(outward)
        } else {
            inward + outward
        }
    }
}

/// The length of turns at which these clients' migrations leave `efficiency` of the device's time (0 to 1; more where memory moves ahead, see the module), but at least `least`, and at most so long
/// that nobody is away for longer than `away` (which bounds the sum of the others' turns and of what they wait for). `least` yields to `away`.
pub fn slice(link: &Link, overlap: Overlap, migrations: &[Migration], efficiency: f64, least: Ns, away: Ns) -> Ns {
    let clients = migrations.len() as u64;
    if clients < 2 {
        return away.max(least);
    }
    // What is computed from the last round falls short of the next one by up to a tenth (`scripts/lab memory`), and the bound is a promise.
    let away = away - away / 8;
    let moved: Ns = migrations.iter().map(|one| one.time(link)).sum();
    let share = match overlap {
        Overlap::Ahead => efficiency.clamp(0.0, 10.0),
        Overlap::AtSwitch | Overlap::Nothing => {
            let efficiency = efficiency.clamp(0.0, 0.99);
            efficiency / (1.0 - efficiency)
        }
    };
    let wanted = (moved as f64 * share / clients as f64) as Ns;
    // Of the round, what the link adds to the turns of the others counts as being away.
    let stalls = |length: Ns| match overlap {
        Overlap::Ahead => moved.saturating_sub(length * clients),
        Overlap::AtSwitch | Overlap::Nothing => moved,
    };
    let others = clients - 1;
    let bounded = away.saturating_sub(stalls(wanted)) / others;
    // A bound that the migrations alone exceed cannot be kept by any slice; then the shortest turns come nearest to it.
    wanted.max(least).min(bounded.max(least.min(away / others)).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1_000_000;

    fn link(duplex: bool) -> Link {
        // A granule a millisecond.
        let rate = super::super::GRANULE as f64 * 1e3;
        Link {
            inward: rate,
            outward: rate,
            duplex,
        }
    }

    fn moves(inward: u64, outward: u64) -> [Migration; 3] {
        [Migration { inward, outward }; 3]
    }

    #[test]
    fn the_slice_follows_what_is_moved() {
        let duplex = link(true);
        let far = 100_000 * MS;
        let at = |overlap, moves: &[Migration]| slice(&duplex, overlap, moves, 0.75, MS, far);
        assert_eq!(at(Overlap::Ahead, &moves(100, 80)), 75 * MS);
        assert_eq!(at(Overlap::AtSwitch, &moves(100, 80)), 300 * MS);
        assert_eq!(at(Overlap::Ahead, &moves(0, 0)), MS, "nothing to move: the shortest");
        let oneway = slice(&link(false), Overlap::Ahead, &moves(100, 80), 0.75, MS, far);
        assert_eq!(oneway, 135 * MS);
        let idle = slice(&link(false), Overlap::Ahead, &moves(100, 80), 1.5, MS, far);
        assert_eq!(idle, 270 * MS, "the link is busy for two thirds of the turns");
    }

    #[test]
    fn being_away_is_bounded() {
        for away in [20 * MS, 100 * MS, 250 * MS] {
            for overlap in [Overlap::Ahead, Overlap::AtSwitch, Overlap::Nothing] {
                let length = slice(&link(true), overlap, &moves(100, 80), 0.9, MS, away);
                assert!(length >= 1 && length * 2 <= away, "{overlap:?} {away}: {length}");
            }
        }
    }

    #[test]
    fn alone_there_is_nothing_to_share() {
        assert_eq!(slice(&link(true), Overlap::Ahead, &[], 0.9, MS, 50 * MS), 50 * MS);
    }
}
