// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures for people: durations, parts and counts, with three places and a unit.
#![forbid(unsafe_code)]

/// A duration with three figures and a unit.
pub fn duration(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0 => "0".to_string(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", three(value / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", three(value / 1e6)),
        1_000_000_000..120_000_000_000 => format!("{} s", three(value / 1e9)),
        _ => span(value / 1e9),
    }
}

/// A span in seconds, minutes, hours or days.
pub fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..120 => format!("{whole} s"),
        120..7_200 => format!("{} min", whole / 60),
        7_200..172_800 => format!("{} h", whole / 3_600),
        _ => format!("{} d", whole / 86_400),
    }
}

/// A part of one in per cent, with three figures at most.
pub fn percent(part: f64) -> String {
    let percent = part * 100.0;
    let figures = match percent.abs() {
        v if v < 10.0 => format!("{percent:.2}"),
        v if v < 100.0 => format!("{percent:.1}"),
        _ => format!("{percent:.0}"),
    };
    let short = match figures.contains('.') {
        true => figures.trim_end_matches('0').trim_end_matches('.'),
        false => &figures,
    };
    format!("{short} %")
}

/// A number with the singular or plural noun.
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn three(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_places() {
        assert_eq!(duration(950), "950 ns");
        assert_eq!(duration(1_234_567), "1.23 ms");
        assert_eq!(duration(12_345_678_900), "12.3 s");
        assert_eq!(span(90_000.0), "25 h");
        let shown = [0.0, 0.01, 0.0125, 0.5, 1.0].map(percent);
        assert_eq!(shown, ["0 %", "1 %", "1.25 %", "50 %", "100 %"]);
        assert_eq!(count(1, "job", "jobs"), "1 job");
    }
}
