// SPDX-License-Identifier: MIT OR Apache-2.0
//! Part of the device's time that a background job has at least, if its user asked for one.

use weft_protocol::Ns;

/// Time for which unused time is owed, ns. After a pause a job takes at most its part of this time
/// at once.
const OWED_FOR_NS: f64 = 100e6;

/// Time for which work beyond the part counts, ns. A job with its part in each second takes nothing
/// from a foreground job that leaves no gap for a shorter time.
const COUNTS_FOR_NS: f64 = 1e9;

/// Device time that is owed to one job.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Guarantee {
    /// Part of the device's time; 0: none.
    part: f64,
    /// Time owed at `at`, ns. Below 0: the job has had more than its part.
    owed: f64,
    at: Ns,
}

impl Guarantee {
    /// A guarantee of this part, from 0 to 1. A part that is not a number counts as none.
    pub(super) fn new(part: f64, now: Ns) -> Guarantee {
        let part = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        Guarantee {
            part,
            // In its first second, weft learns how the foreground job runs without it.
            owed: -part * COUNTS_FOR_NS,
            at: now,
        }
    }

    /// The part of the device's time; `None`: none.
    pub(super) fn part(&self) -> Option<f64> {
        Some(self.part).filter(|part| *part > 0.0)
    }

    /// Time owed, ns.
    pub(super) fn owed(&self, now: Ns) -> f64 {
        let grown = self.part * now.saturating_sub(self.at) as f64;
        (self.owed + grown).min(self.part * OWED_FOR_NS)
    }

    /// Takes in work of the job, ns.
    pub(super) fn used(&mut self, work: Ns, now: Ns) {
        let least = -(self.part * COUNTS_FOR_NS).max(work as f64);
        self.owed = (self.owed(now) - work as f64).max(least);
        self.at = now;
    }

    /// When a kernel of this cost is owed, or was first owed, ns; `None`: without a guarantee. A
    /// kernel that costs more than can be owed comes once that much is owed, and the next one the
    /// later.
    pub(super) fn due(&self, cost: Ns, now: Ns) -> Option<Ns> {
        let part = self.part()?;
        let missing = ((cost as f64).min(part * OWED_FOR_NS) - self.owed(now)) / part;
        Some(match missing > 0.0 {
            true => now.saturating_add(missing.ceil() as Ns),
            false => now.saturating_sub(-missing as Ns),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MS;

    #[test]
    fn a_job_that_asks_all_the_time_has_its_part_whatever_its_kernels_take() {
        for (part, cost) in [(0.3, MS / 10), (0.3, 4 * MS), (0.05, 400 * MS), (1.0, MS)] {
            let mut guarantee = Guarantee::new(part, 0);
            let (mut now, mut had) = (0, 0);
            while now < 100_000 * MS {
                now = guarantee.due(cost, now).unwrap().max(now);
                guarantee.used(cost, now);
                had += cost;
            }
            let off = had as f64 - part * now as f64;
            let most = cost as f64 + part * (OWED_FOR_NS + COUNTS_FOR_NS);
            assert!(off.abs() <= most, "{part} of {cost} ns: {off} ns off in {now}");
        }
    }

    #[test]
    fn neither_idleness_nor_plenty_counts_for_long() {
        let mut guarantee = Guarantee::new(0.5, 0);
        assert_eq!(guarantee.owed(3_600_000 * MS), 0.5 * OWED_FOR_NS);
        for second in 0..3_600 {
            guarantee.used(900 * MS, second * 1_000 * MS);
        }
        let now = 3_600_000 * MS;
        assert!(guarantee.due(MS, now).unwrap() <= now + 2_000 * MS);
        assert_eq!(Guarantee::new(f64::NAN, 0).due(MS, 0), None);
    }
}
