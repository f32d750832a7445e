// SPDX-License-Identifier: MIT OR Apache-2.0
//! Amounts of memory as text, in the environment and on the command line.
#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

/// Bytes below which the unit was forgotten: no job needs so little memory.
const MIN_PLAIN_BYTES: f64 = 1_048_576.0;

/// Bytes of `12GiB`, `500MB`, `1.5g` or `1048576`. `g` and `GiB`: powers of 1024; `GB`: powers of
/// 1000.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} is not an amount of memory: write 12GiB, 500MB or a number of bytes");
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err("an amount of memory is missing: write 12GiB, 500MB or a number of bytes".to_string());
    }
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

/// A job's declared need of device memory: `8GiB`, or `8GiB:20GiB` with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Bytes kept for the job.
    pub request: u64,
    /// Most bytes that it gets, at least `request`. The part above `request` is others' when they
    /// need it. `None`: that part is its own.
    pub limit: Option<u64>,
}

impl FromStr for MemoryNeed {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryNeed, String> {
        let (request, limit) = text.split_once(':').map_or((text, None), |(one, two)| (one, Some(two)));
        let need = MemoryNeed {
            request: parse(request)?,
            limit: limit.map(parse).transpose()?,
        };
        match need.limit {
            Some(limit) if limit < need.request => Err(format!("{text}: the limit is below the request")),
            _ => Ok(need),
        }
    }
}

impl fmt::Display for MemoryNeed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The unit is needed: a small number without one would be rejected.
        write!(out, "{}b", self.request)?;
        self.limit.map_or(Ok(()), |limit| write!(out, ":{limit}b"))
    }
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

/// Texts of amounts that are compared: different amounts have different texts.
pub fn apart<const N: usize>(amounts: [u64; N]) -> [String; N] {
    let is_clear = |texts: &[String; N]| {
        let pairs = amounts.iter().zip(texts);
        pairs
            .clone()
            .all(|(one, text)| pairs.clone().all(|(other, same)| one == other || text != same))
    };
    let smaller = [("MiB", 20), ("KiB", 10), ("B", 0)].into_iter();
    let smaller = smaller.map(|(unit, bits)| amounts.map(|bytes| format!("{} {unit}", bytes >> bits)));
    let mut tries = std::iter::once(amounts.map(shown)).chain(smaller);
    tries.find(is_clear).unwrap_or_else(|| amounts.map(shown))
}

#[cfg(test)]
mod tests {
    use super::{MemoryNeed, apart, parse, shown};

    #[test]
    fn amounts_that_are_compared_differ_in_their_texts() {
        assert_eq!(apart([3 << 30, 2 << 30]), ["3.00 GiB", "2.00 GiB"]);
        assert_eq!(apart([(3 << 30) + (1 << 20), 3 << 30]), ["3073 MiB", "3072 MiB"]);
        assert_eq!(apart([8 << 30, (8 << 30) - 1]), ["8192 MiB", "8191 MiB"]);
        assert_eq!(apart([7, 7, 7 << 30]), ["7 B", "7 B", "7.00 GiB"]);
        assert_eq!(apart([(1 << 30) + 1, 1 << 30]), ["1073741825 B", "1073741824 B"]);
    }

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
    fn a_need_may_have_a_limit_at_or_above_its_request() {
        let need = |request, limit| Ok(MemoryNeed { request, limit });
        assert_eq!("8GiB".parse(), need(8 << 30, None));
        assert_eq!("8GiB:20GiB".parse(), need(8 << 30, Some(20 << 30)));
        assert_eq!("8g:8GiB".parse(), need(8 << 30, Some(8 << 30)));
        for wrong in [
            "8GiB:",
            ":8GiB",
            "8GiB:4GiB",
            "8GiB:20",
            "8GiB:20GiB:30GiB",
            "much:20GiB",
        ] {
            assert!(wrong.parse::<MemoryNeed>().is_err(), "{wrong}");
        }
        for text in ["12b", "1073741824b:2147483648b"] {
            assert_eq!(
                text.parse::<MemoryNeed>().map(|need| need.to_string()),
                Ok(text.to_string())
            );
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
