// SPDX-License-Identifier: MIT OR Apache-2.0
//! An upper bound for any order of whole jobs in turns. It is calculated, not run.
//!
//! A job computes only while all its memory is on the device, and all of it is copied each way.
//!
//! * Two jobs follow each other. Their memory that is too much for the device leaves and comes
//!   while neither computes. For each job the best successor counts.
//! * In a round each job has one turn. The memory of all jobs that is too much for the device comes
//!   in at least once, and as much leaves.
//!
//! Not covered: copies on the host of memory that no job wrote since, which would leave for
//! nothing.
#![forbid(unsafe_code)]

use weft_engine::memory::BLOCK_BYTES;
use weft_paging::Link;

use crate::Ns;

/// The largest part of the throughput when all fits. `jobs`: bytes of each, and its longest turn,
/// ns. `room`: bytes for jobs.
pub fn efficiency(jobs: &[(u64, Ns)], room: u64, link: &Link) -> f64 {
    let time = |bytes: u64| {
        let granules = bytes / BLOCK_BYTES;
        link.time(granules, granules) as f64
    };
    let waits: f64 = jobs
        .iter()
        .enumerate()
        .map(|(n, (bytes, _))| {
            let others = jobs.iter().enumerate().filter(|(other, _)| *other != n);
            let least = others.map(|(_, (other, _))| (bytes + other).saturating_sub(room)).min();
            time(least.unwrap_or(0))
        })
        .sum();
    let turns: f64 = jobs.iter().map(|(_, turn)| *turn as f64).sum();
    let all: u64 = jobs.iter().map(|(bytes, _)| bytes).sum();
    turns / (turns + waits).max(time(all.saturating_sub(room))).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MS;

    const GIB: u64 = 1 << 30;

    fn link(duplex: bool) -> Link {
        Link {
            inward: GIB as f64,
            outward: GIB as f64,
            both: 2.0 * GIB as f64,
            duplex,
        }
    }

    #[test]
    fn memory_beyond_the_device_takes_its_time_on_the_link() {
        let two = [(8 * GIB, 4_000 * MS); 2];
        assert_eq!(efficiency(&two, 16 * GIB, &link(true)), 1.0);
        // 4 GiB leave and come at each switch: 4 s together, 8 s one after the other.
        assert_eq!(efficiency(&two, 12 * GIB, &link(true)), 0.5);
        assert_eq!(efficiency(&two, 12 * GIB, &link(false)), 1.0 / 3.0);
    }

    #[test]
    fn a_round_is_as_long_as_its_copies() {
        // Any two fit together, but all of them take the link 8 s.
        let four = [(4 * GIB, 1_000 * MS); 4];
        assert_eq!(efficiency(&four, 8 * GIB, &link(true)), 0.5);
    }
}
