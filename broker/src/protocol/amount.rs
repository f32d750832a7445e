//! Amounts of memory as people write them: in the job's environment and on the command line.
#![forbid(unsafe_code)]

/// Bytes of `12GiB`, `500MB`, `1.5g` or `1048576`. A unit of one letter, and one with an `i`, is a power of 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} is no amount of memory: write 12GiB, 500MB or a number of bytes");
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
    // Beyond a petabyte it is a typing error.
    if !(1.0..=1e15).contains(&bytes) {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::parse;

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
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
