//! Policies and constants of the admission rules.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use super::contest::{Fit, Waiters};
use weft_protocol::Ns;

const SECOND: Ns = 1_000_000_000;

/// The order in which jobs are admitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// The project's rule; the crate's documentation states it.
    #[default]
    Weft,
    /// First come, first served; no job passes another.
    Fifo,
    /// An order from outside, for comparison.
    Given(&'static Contender),
}

/// An order that is not part of weft. The lab compares weft's order with it.
#[derive(Debug)]
pub struct Contender {
    /// Name for people.
    pub name: &'static str,
    /// The waiter that begins next, and its place; `None` if no waiter may begin now.
    pub next: fn(&Waiters<'_>) -> Option<Fit>,
}

/// Contenders are equal if their names are.
impl PartialEq for Contender {
    fn eq(&self, other: &Contender) -> bool {
        self.name == other.name
    }
}

impl Eq for Contender {}

impl Policy {
    /// Weft's own policies, with their names.
    pub const ALL: [(Policy, &'static str); 2] = [(Policy::Weft, "weft"), (Policy::Fifo, "fifo")];

    /// The name as typed.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Weft => "weft",
            Policy::Fifo => "fifo",
            Policy::Given(contender) => contender.name,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        let named = Policy::ALL.iter().find(|(_, name)| *name == text);
        named.map(|(policy, _)| *policy).ok_or_else(|| {
            let names: Vec<&str> = Policy::ALL.iter().map(|(_, name)| *name).collect();
            format!("{text} is none of {}", names.join(", "))
        })
    }
}

/// Constants of the rules.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The policy.
    pub policy: Policy,
    /// Shortest time for which a job may be passed, ns. The default is a minute: what a person
    /// accepts for something short.
    pub shortest_patience: Ns,
    /// Longest time for which a job may be passed, ns. The default is an hour: such a job runs for
    /// hours.
    pub longest_patience: Ns,
    /// Time after which a job is due whatever plain order did, ns. The default is a day: a longer
    /// plain queue is no measure for people.
    pub longest_wait: Ns,
    /// Factor by which a job that starts before a promise may overrun its estimate. Estimates are
    /// wrong by up to two.
    pub doubt: f64,
    /// Time per hour for which a user's jobs that wait for more memory may keep new jobs out, ns.
    /// The default is a minute: six times the default wait for more memory (10 s).
    pub guard: Ns,
    /// Half-life of a user's recorded usage, ns. The default is an hour, so that the morning's work
    /// does not tell against the afternoon's.
    pub half_life: Ns,
    /// Host memory that managed jobs may take together, bytes.
    pub host_memory: u64,
    /// Fraction of the link's time that moving managed memory between turns may take. A half, so
    /// that turns are not all migration.
    pub link_share: f64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            policy: Policy::Weft,
            shortest_patience: 60 * SECOND,
            longest_patience: 3600 * SECOND,
            longest_wait: 24 * 3600 * SECOND,
            doubt: 2.0,
            guard: 60 * SECOND,
            half_life: 3600 * SECOND,
            host_memory: u64::MAX,
            link_share: 0.5,
        }
    }
}

/// Divisor of the shortest patience: a user's further job counts as 15 s later per waiting job.
/// Twenty jobs at once then let other users' jobs of the next five minutes pass. With a minute
/// each, large jobs of such users missed their bound in the lab's mixes.
const HANDICAP: u64 = 4;

impl Config {
    /// Delay of the turn of a job whose user already has `waiting` jobs waiting, ns:
    /// `min(waiting * shortest_patience / 4 / weight, longest_patience)`.
    pub fn handicap(&self, waiting: usize, weight: u32) -> Ns {
        let each = self.shortest_patience / HANDICAP;
        let all = each.saturating_mul(waiting as u64) / u64::from(weight.max(1));
        all.min(self.longest_patience)
    }

    /// How long a job with this expected run may be passed, ns:
    /// `clamp(expected, shortest_patience, longest_patience)`.
    pub fn patience(&self, expected: Ns) -> Ns {
        expected
            .max(self.shortest_patience)
            .min(self.longest_patience.max(self.shortest_patience))
    }
}
