// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latency that a foreground job may lose to background jobs, and the part that a background job
//! has at least, as text and as a message.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use super::Ns;
pub use super::slowdown::{SLOWDOWN_ONE_PPM, parse_slowdown, slowdown_text};

/// The shortest stretch that a job may ask for.
pub const LEAST_SLO_NS: Ns = 1_000;

/// The longest stretch that a job may ask for: an hour.
pub const MOST_SLO_NS: Ns = 3_600 * 1_000_000_000;

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

/// Parts per million of `30%`, `0.3` or `0`; at most 100 %.
pub fn parse_at_least(text: &str) -> Result<u32, String> {
    parse_slowdown(text).map_err(|_| format!("{text:?} is no part of the GPU's time: write 30% or 0.3, from 0 to 100%"))
}

/// Whether this value of `WEFT_AT_LEAST` asks for a part. The device must not hold such a job back.
pub fn is_part(text: &str) -> bool {
    parse_at_least(text).is_ok_and(|part| part > 0)
}

/// Nanoseconds of `50ms`, `1.5s` or `200us`; from 1 us to an hour.
pub fn parse_slo(text: &str) -> Result<Ns, String> {
    let wrong = || format!("{text:?} is not a time: write 50ms, 1.5s or 200us, from 1us to 3600s");
    let trimmed = text.trim();
    let split = trimmed
        .find(|letter: char| letter.is_ascii_alphabetic())
        .unwrap_or(trimmed.len());
    let (figure, unit) = trimmed.split_at_checked(split).ok_or_else(wrong)?;
    let figure: f64 = figure.trim().parse().map_err(|_| wrong())?;
    let factor = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(wrong()),
    };
    let ns = (figure * factor).round();
    if !(LEAST_SLO_NS as f64..=MOST_SLO_NS as f64).contains(&ns) {
        return Err(wrong());
    }
    Ok(ns as Ns)
}

/// Text of a time that [`parse_slo`] parses to the same value.
pub fn slo_text(slo: Ns) -> String {
    format!("{slo}ns")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_times_with_a_unit() {
        for (text, ns) in [
            ("50ms", 50_000_000),
            ("1.5s", 1_500_000_000),
            (" 200 us ", 200_000),
            ("1us", LEAST_SLO_NS),
            ("3600s", MOST_SLO_NS),
        ] {
            assert_eq!(parse_slo(text), Ok(ns), "{text}");
            assert_eq!(parse_slo(&slo_text(ns)), Ok(ns));
        }
        assert_eq!(parse_at_least("30%"), Ok(300_000));
        assert!(parse_at_least("30").unwrap_err().contains("write 30%"));
        assert!(parse_at_least("").unwrap_err().starts_with("\"\" is no part"));
        assert!(is_part("30%") && !is_part("0") && !is_part(""));
        for wrong in [
            "", "50", "ms", "0ms", "-5ms", "1ns", "3601s", "1h", "infs", "nans", "5 MS", "1e400s", "\u{e9}",
        ] {
            assert!(parse_slo(wrong).is_err(), "{wrong}");
        }
    }

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
