// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policies and constants of the admission rules.
#![forbid(unsafe_code)]

use std::fmt;

use super::custom_order::CustomOrder;
use weft_protocol::Ns;

const SECOND_NS: Ns = 1_000_000_000;

/// The order in which jobs are admitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AdmissionPolicy {
    /// The rule in the crate's documentation.
    #[default]
    Weft,
    /// An order from outside.
    Custom(&'static CustomOrder),
}

impl AdmissionPolicy {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            AdmissionPolicy::Weft => "weft",
            AdmissionPolicy::Custom(order) => order.name,
        }
    }
}

impl fmt::Display for AdmissionPolicy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Constants of the rules. Times are ns.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionConfig {
    /// The policy.
    pub policy: AdmissionPolicy,
    /// Shortest patience. The default is a minute: what a person accepts for something short.
    pub shortest_patience: Ns,
    /// Longest patience. The default is an hour: such a job runs for hours.
    pub longest_patience: Ns,
    /// Wait after which a job is due, whatever the fifo shadow did. The default is a day: no user
    /// accepts a longer queue.
    pub longest_wait: Ns,
    /// Factor by which a job may overrun its estimate and still end before a promise. The default
    /// is 2, as far as estimates are wrong.
    pub doubt: f64,
    /// Time per hour in which a user's jobs that wait for more memory may keep new jobs out. The
    /// default is a minute: six default waits of 10 s.
    pub guard: Ns,
    /// Half-life of a user's recorded usage. The default is an hour: the morning's work does not
    /// count in the afternoon.
    pub half_life: Ns,
    /// Host memory that managed jobs may take together, bytes.
    pub host_memory: u64,
    /// Fraction of the link's time for moving managed memory between turns. A half, so that turns
    /// are not all migration.
    pub link_share: f64,
}

impl Default for AdmissionConfig {
    fn default() -> AdmissionConfig {
        AdmissionConfig {
            policy: AdmissionPolicy::Weft,
            shortest_patience: 60 * SECOND_NS,
            longest_patience: 3600 * SECOND_NS,
            longest_wait: 24 * 3600 * SECOND_NS,
            doubt: 2.0,
            guard: 60 * SECOND_NS,
            half_life: 3600 * SECOND_NS,
            host_memory: u64::MAX,
            link_share: 0.5,
        }
    }
}

/// Part of the shortest patience by which each waiting job of a user delays the next: 15 s. With a
/// minute, large jobs of users with many jobs missed their bound in the lab.
const HANDICAP_DIVISOR: u64 = 4;

impl AdmissionConfig {
    /// Delay of the turn of a job whose user has `waiting` waiting jobs already, ns:
    /// `min(waiting * shortest_patience / 4 / weight, longest_patience)`.
    pub fn handicap(&self, waiting: usize, weight: u32) -> Ns {
        let each = self.shortest_patience / HANDICAP_DIVISOR;
        let all = each.saturating_mul(waiting as u64) / u64::from(weight.max(1));
        all.min(self.longest_patience)
    }

    /// Patience of a job with this expected run, ns:
    /// `clamp(expected, shortest_patience, longest_patience)`.
    pub fn patience(&self, expected: Ns) -> Ns {
        expected
            .max(self.shortest_patience)
            .min(self.longest_patience.max(self.shortest_patience))
    }
}
