//! What the rules depend on.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use super::contest::{Fit, Waiters};
use weft_protocol::Ns;

const SECOND: Ns = 1_000_000_000;

/// In which order jobs are admitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// The rule of this project (see the module).
    #[default]
    Weft,
    /// Who came first; nobody passes anybody.
    Fifo,
    /// A rule from outside, for comparison.
    Given(&'static Contender),
}

/// An order that is no part of weft: what the laboratory compares weft's with.
#[derive(Debug)]
pub struct Contender {
    /// As people see it.
    pub name: &'static str,
    /// Which waiter begins next, and where; `None`: none that waits may begin now.
    pub next: fn(&Waiters<'_>) -> Option<Fit>,
}

/// A name says which it is.
impl PartialEq for Contender {
    fn eq(&self, other: &Contender) -> bool {
        self.name == other.name
    }
}

impl Eq for Contender {}

impl Policy {
    /// Weft's own, with their names.
    pub const ALL: [(Policy, &'static str); 2] = [(Policy::Weft, "weft"), (Policy::Fifo, "fifo")];

    /// As it is typed.
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

/// What the rules depend on.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The order.
    pub policy: Policy,
    /// A job may be passed for so long, however short it is. A minute: what a person who starts
    /// something short puts up with.
    pub shortest_patience: Ns,
    /// A job may be passed for no longer than this, however long it is. An hour: it runs for hours
    /// itself.
    pub longest_patience: Ns,
    /// After so long a job is due, whatever plain order would have done by then. A day: a plain
    /// queue that is longer than that is no measure for people.
    pub longest_wait: Ns,
    /// How many times longer than expected a job may run that is let in before a promise: estimates
    /// are wrong by up to two.
    pub doubt: f64,
    /// For so long in an hour jobs of one user that run and wait for more keep out those who have
    /// not begun. A minute: six times as long as a job waits for more by itself.
    pub guard: Ns,
    /// After so long, what a user had counts half: an hour, so that the morning's work does not
    /// tell against the afternoon's.
    pub half_life: Ns,
    /// Bytes of the host that managed jobs may take together.
    pub host_memory: u64,
    /// The part of the link's time that moving managed memory between turns may take: half, so that
    /// turns are not all migration.
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

/// A user's further job counts as having come later by this part of the shortest patience for each
/// of his that waits: 15 s. Twenty jobs at once then let others' of the next five minutes pass;
/// with a minute each, large jobs of such users missed their bound in the lab's mixes.
const HANDICAP: u64 = 4;

impl Config {
    /// How much later a job counts as having come whose user has so many waiting already: no more
    /// than the longest patience, however many those are.
    pub fn handicap(&self, waiting: usize, weight: u32) -> Ns {
        let each = self.shortest_patience / HANDICAP;
        let all = each.saturating_mul(waiting as u64) / u64::from(weight.max(1));
        all.min(self.longest_patience)
    }

    /// How long a job may be passed that is expected to run for so long.
    pub fn patience(&self, expected: Ns) -> Ns {
        expected
            .max(self.shortest_patience)
            .min(self.longest_patience.max(self.shortest_patience))
    }
}
