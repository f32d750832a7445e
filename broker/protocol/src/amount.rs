// SPDX-License-Identifier: MIT OR Apache-2.0
//! Amounts of memory as text, in the environment and on the command line.
#![forbid(unsafe_code)]

/// Bytes below which the unit was forgotten: no job needs so little memory.
const MIN_PLAIN_BYTES: f64 = 1_048_576.0;

/// Bytes of `12GiB`, `500MB`, `1.5g` or `1048576`. `g` and `GiB`: powers of 1024; `GB`: powers of
/// 1000.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} is not an amount of memory: write 12GiB, 500MB or a number of bytes");
    let trimmed = text.trim();
    let split = trimmed
        .find(|letter: char| letter.is_ascii_alphabetic())
        .unwrap_or(trimmed.len());
    let (figure, unit) = trimmed.split_at_checked(split).ok_or_else(wrong)?;
    let figure: f64 = figure.trim().parse().map_err(|_| wrong())?;
    let power = |letter: char| match letter {
        'k' => Some(1),
        'm' => Some(2),
        'g' => Some(3),
        't' => Some(4),
        _ => None,
    };
    let unit = unit.to_ascii_lowercase();
    let mut letters = unit.chars();
    let factor = match (letters.next(), letters.as_str()) {
        (None, _) | (Some('b'), "") => 1.0,
        (Some(letter), "" | "i" | "ib") => 1024f64.powi(power(letter).ok_or_else(wrong)?),
        (Some(letter), "b") => 1000f64.powi(power(letter).ok_or_else(wrong)?),
        _ => return Err(wrong()),
    };
    let bytes = figure * factor;
    if unit.is_empty() && (1.0..MIN_PLAIN_BYTES).contains(&bytes) {
        return Err(format!(
            "{trimmed} is {trimmed} bytes: write {trimmed}GiB, or {trimmed}MiB"
        ));
    }
    // More than a petabyte is a typing error.
    if !(1.0..=1e15).contains(&bytes) {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

/// Text of an amount: three figures and a unit.
pub fn shown(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    while value >= 1024.0
        && let Some(larger) = units.next()
    {
        value /= 1024.0;
        unit = larger;
    }
    match value {
        v if v < 10.0 => format!("{v:.2} {unit}"),
        v if v < 100.0 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, shown};

    #[test]
    fn what_is_shown_has_three_figures() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1 << 20, "1.00 MiB"),
            (429_916_160_000, "400 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(shown(bytes), text);
        }
    }

    #[test]
    fn people_write_amounts_in_many_ways() {
        assert_eq!(parse("12GiB"), Ok(12 << 30));
        assert_eq!(parse(" 12 g "), Ok(12 << 30));
        assert_eq!(parse("500MB"), Ok(500_000_000));
        assert_eq!(parse("1.5Gi"), Ok(3 << 29));
        assert_eq!(parse("1048576"), Ok(1 << 20));
        assert_eq!(parse("4096b"), Ok(4096));
        for wrong in [
            "",
            "GiB",
            "12 elephants",
            "-1G",
            "0",
            "managed",
            "1e30",
            "nan",
            "12GiBs",
            "12",
            "1048575",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
