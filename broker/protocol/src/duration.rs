// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times as people write them. Programs outside weft build this file too
//! (`deploy/kubernetes/device-plugin`), so it uses only the standard library.
#![forbid(unsafe_code)]

use std::time::Duration;

/// The shortest stretch that a job may ask for, ns.
pub const LEAST_SLO_NS: u64 = 1_000;

/// The longest stretch that a job may ask for, ns: an hour.
pub const MOST_SLO_NS: u64 = 3_600 * 1_000_000_000;

/// Parses a time: `10s`, `1.5s`, `500ms`, `2m`, `1h`; a number without a unit is seconds.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text} is not a time: write 10s, 500ms, 2m or 1h");
    let (figure, unit) = figure_and_unit(text).ok_or_else(wrong)?;
    let seconds = match unit {
        "" | "s" => figure,
        "ms" => figure / 1e3,
        "m" | "min" => figure * 60.0,
        "h" => figure * 3_600.0,
        _ => return Err(wrong()),
    };
    // A century at most, so that adding it to the current time does not overflow.
    match (0.0..=3e9).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(wrong()),
    }
}

/// As [`parse`], for a time above 0.
pub fn parse_some(text: &str) -> Result<Duration, String> {
    let time = parse(text)?;
    match time.is_zero() {
        true => Err(format!("{text} is no time: write 10s, 500ms, 2m or 1h")),
        false => Ok(time),
    }
}

/// Nanoseconds of `50ms`, `1.5s` or `200us`; from 1 us to an hour.
pub fn parse_slo(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} is not a time: write 50ms, 1.5s or 200us, from 1us to 3600s");
    let (figure, unit) = figure_and_unit(text).ok_or_else(wrong)?;
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
    Ok(ns as u64)
}

/// The figure and the unit of `1.5s`; the unit is empty if the text has none.
fn figure_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let letters = text.find(|letter: char| letter.is_ascii_alphabetic());
    let (figure, unit) = text.split_at_checked(letters.unwrap_or(text.len()))?;
    Some((figure.trim().parse().ok()?, unit))
}

/// Text of a time that [`parse_slo`] parses to the same value.
pub fn slo_text(slo: u64) -> String {
    format!("{slo}ns")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse(" 500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse("7"), Ok(Duration::from_secs(7)));
        for wrong in ["", "s", "-1s", "10 years", "inf", "1e99h"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        assert!(parse_some("0").is_err() && parse_some("0.0ms").is_err() && parse_some("1ms").is_ok());
    }

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
        for wrong in [
            "", "50", "ms", "0ms", "-5ms", "1ns", "3601s", "1h", "infs", "nans", "5 MS", "1e400s", "\u{e9}",
        ] {
            assert!(parse_slo(wrong).is_err(), "{wrong}");
        }
    }
}
