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
        return Err(match figure > 1.0 {
            true => format!("{trimmed} without % is more than all of the job's time: write {trimmed}%"),
            false => format!("{trimmed} may mean 1% or 100% of the job's time: write the one that you mean"),
        });
    }
    let part = if hundredth { figure / 100.0 } else { figure };
    if !(0.0..=1.0).contains(&part) {
        return Err(wrong());
    }
    Ok((part * f64::from(SLOWDOWN_ONE_PPM)).round() as u32)
}

/// Parts per million of `30%`, `0.3` or `0`; at most 100 %.
pub fn parse_at_least(text: &str) -> Result<u32, String> {
    parse_slowdown(text).map_err(|_| format!("{text:?} is no part of the GPU's time: write 30% or 0.3, from 0 to 100%"))
}

/// Whether this value of `WEFT_AT_LEAST` asks for a part. The device must not hold such a job back.
pub fn is_part(text: &str) -> bool {
    parse_at_least(text).is_ok_and(|part| part > 0)
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
        assert!(parse_slowdown("5").unwrap_err().ends_with("job's time: write 5%"));
        assert!(parse_slowdown("1").unwrap_err().contains("may mean 1% or 100%"));
        assert_eq!(parse_at_least("30%"), Ok(300_000));
        assert!(parse_at_least("30").unwrap_err().contains("write 30%"));
        assert!(parse_at_least("").unwrap_err().starts_with("\"\" is no part"));
        assert!(is_part("30%") && !is_part("0") && !is_part(""));
    }
}
