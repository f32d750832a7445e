// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times as people write them.
#![forbid(unsafe_code)]

use std::time::Duration;

/// Parses a time: `10s`, `1.5s`, `500ms`, `2m`, `1h`; a number without a unit is seconds.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text} is not a time: write 10s, 500ms, 2m or 1h");
    let trimmed = text.trim();
    let letters = trimmed.find(|letter: char| letter.is_ascii_alphabetic());
    let (figure, unit) = trimmed
        .split_at_checked(letters.unwrap_or(trimmed.len()))
        .ok_or_else(wrong)?;
    let figure: f64 = figure.trim().parse().map_err(|_| wrong())?;
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
}
