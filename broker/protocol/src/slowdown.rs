// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slowdowns as text. Programs outside weft build this file too (`deploy/slurm/spank`), so it uses
//! only the standard library.
#![forbid(unsafe_code)]

/// A slowdown of 100 %, in parts per million.
pub const SLOWDOWN_ONE_PPM: u32 = 1_000_000;

/// Parts per million of `2%`, `0.02` or `0`; at most 100 %.
pub fn parse_slowdown(text: &str) -> Result<u32, String> {
    let wrong = || format!("{text:?} is not a slowdown: write 2% or 0.02, from 0 to 100%");
    let trimmed = text.trim();
    let (figure, hundredth) = match trimmed.strip_suffix('%') {
        Some(figure) => (figure.trim_end(), true),
        None => (trimmed, false),
    };
    let figure: f64 = figure.parse().map_err(|_| wrong())?;
    // A plain 1 may well mean 1 %.
    if !hundredth && (1.0..=100.0).contains(&figure) {
        return Err(format!("{trimmed} is {trimmed} times as slow: write {trimmed}%"));
    }
    let part = if hundredth { figure / 100.0 } else { figure };
    if !(0.0..=1.0).contains(&part) {
        return Err(wrong());
    }
    Ok((part * f64::from(SLOWDOWN_ONE_PPM)).round() as u32)
}

/// Text of a slowdown that [`parse_slowdown`] parses to the same value.
pub fn slowdown_text(slowdown: u32) -> String {
    format!("{}%", f64::from(slowdown) / 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_write_slowdowns_in_some_ways() {
        for (text, slowdown) in [
            ("2%", 20_000),
            (" 2.5 % ", 25_000),
            ("0.02", 20_000),
            ("0", 0),
            ("0%", 0),
            ("100%", SLOWDOWN_ONE_PPM),
            ("0.00001", 10),
        ] {
            assert_eq!(parse_slowdown(text), Ok(slowdown), "{text}");
            assert_eq!(parse_slowdown(&slowdown_text(slowdown)), Ok(slowdown));
        }
        for wrong in [
            "", "%", "-1%", "-0.1", "101%", "1", "2", "200", "nan", "inf", "NaN%", "2 ms", "two",
        ] {
            assert!(parse_slowdown(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_slowdown("5"), Err("5 is 5 times as slow: write 5%".to_string()));
    }
}
