// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latency that a foreground job may lose to background jobs, and the part that a background job
//! has at least, as text and as a message.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::Ns;
pub use super::duration::{LEAST_SLO_NS, MOST_SLO_NS, parse_slo, slo_text};
pub use super::slowdown::{SLOWDOWN_ONE_PPM, parse_at_least, parse_slowdown, slowdown_text};

/// Latency that a foreground job may lose, and its part as a background job. The broker's settings
/// replace fields that are not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyBudget {
    /// Part of its time by which it may be slowed down on average, parts per million.
    pub slowdown: Option<u32>,
    /// Longest time from the job's first launch to its next wait, ns, in which it may lose that
    /// part.
    pub slo: Option<Ns>,
    /// Part of the device's time that it has at least as a background job, parts per million.
    pub at_least: Option<u32>,
}

impl LatencyBudget {
    /// The budget, clamped to the values that an honest client can ask for.
    pub fn clamped(self) -> LatencyBudget {
        LatencyBudget {
            slowdown: self.slowdown.map(|slowdown| slowdown.min(SLOWDOWN_ONE_PPM)),
            slo: self.slo.map(|slo| slo.clamp(LEAST_SLO_NS, MOST_SLO_NS)),
            at_least: self.at_least.map(|at_least| at_least.min(SLOWDOWN_ONE_PPM)),
        }
    }

    /// This budget, with `other`'s fields in place of those that are not set.
    pub fn or(self, other: LatencyBudget) -> LatencyBudget {
        LatencyBudget {
            slowdown: self.slowdown.or(other.slowdown),
            slo: self.slo.or(other.slo),
            at_least: self.at_least.or(other.at_least),
        }
    }

    /// Whether no field is set.
    pub fn is_unsaid(self) -> bool {
        self == LatencyBudget::default()
    }

    /// The slowdown as a part of the job's time.
    pub fn slowdown_part(self) -> Option<f64> {
        self.slowdown.map(part)
    }
}

/// Parts per million as a part of one.
pub fn part(slowdown: u32) -> f64 {
    f64::from(slowdown) / f64::from(SLOWDOWN_ONE_PPM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_makes_up_is_clamped_and_what_it_does_not_say_is_anothers() {
        let wild = LatencyBudget {
            slowdown: Some(u32::MAX),
            slo: Some(0),
            at_least: Some(u32::MAX),
        };
        let clamped = wild.clamped();
        assert_eq!((clamped.slowdown_part(), clamped.slo), (Some(1.0), Some(LEAST_SLO_NS)));
        assert_eq!(clamped.at_least, Some(SLOWDOWN_ONE_PPM));
        let slo = |slo| LatencyBudget {
            slo,
            ..LatencyBudget::default()
        };
        assert_eq!(slo(Some(Ns::MAX)).clamped().slo, Some(MOST_SLO_NS));
        let both = slo(Some(7)).or(clamped);
        assert_eq!((both.slowdown, both.slo), (Some(SLOWDOWN_ONE_PPM), Some(7)));
        assert!(slo(None).is_unsaid() && !both.is_unsaid());
    }
}
