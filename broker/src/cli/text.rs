//! Tables and figures as people read them.
#![forbid(unsafe_code)]

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

/// The widest a command is shown, characters.
pub const COMMAND: usize = 40;

/// Prints what a question was answered with: all of it as JSON, or the page that people see.
pub fn show<T: Serialize>(answer: &T, json: bool, render: impl FnOnce(&T) -> String) -> Result<()> {
    let text = match json {
        true => serde_json::to_string_pretty(answer)?,
        false => render(answer),
    };
    // A reader that went (`| head`) is no trouble.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    Ok(())
}

/// A table whose columns are as wide as their widest cell. Numbers stand to the right, words to the left.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with a head.
    pub fn new<const N: usize>(head: [&str; N]) -> Table {
        Table {
            rows: vec![head.iter().map(|cell| cell.to_string()).collect()],
        }
    }

    /// One more row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// The lines, without blanks at their ends.
    pub fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &'_ Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let width = |row| cell(row, column).chars().count();
                self.rows.iter().map(width).max().unwrap_or(0)
            })
            .collect();
        let numeric: Vec<bool> = (0..columns)
            .map(|column| {
                let starts = |row| {
                    let text = cell(row, column);
                    text == "-" || text.starts_with(|first: char| first.is_ascii_digit() || first == '-')
                };
                self.rows.len() > 1 && self.rows.iter().skip(1).all(starts)
            })
            .collect();
        self.rows
            .iter()
            .map(|row| {
                let cells: Vec<String> = (0..columns)
                    .map(|column| match numeric[column] {
                        true => format!("{:>width$}", cell(row, column), width = widths[column]),
                        false => format!("{:<width$}", cell(row, column), width = widths[column]),
                    })
                    .collect();
                cells.join("  ").trim_end().to_string()
            })
            .collect()
    }
}

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

/// A span of seconds, minutes, hours, days.
pub fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..120 => format!("{whole} s"),
        120..7_200 => format!("{} min", whole / 60),
        7_200..172_800 => format!("{} h", whole / 3_600),
        _ => format!("{} d", whole / 86_400),
    }
}

/// A size with three figures and a unit.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three(value), UNITS[unit])
}

/// So many of something, in words that fit one too.
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Why the system refused, without the number that people do not look up.
pub fn why(error: &std::io::Error) -> String {
    let said = error.to_string();
    match said.rsplit_once(" (os error ") {
        Some((said, _)) => said.to_string(),
        None => said,
    }
}

/// At most `width` characters, the cut marked.
pub fn cut(text: &str, width: usize) -> String {
    let plain: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    match plain.chars().count() > width {
        true => plain.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
        false => plain,
    }
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
        assert_eq!(size(5 * 1024 * 1024 * 1024), "5.00 GiB");
        assert_eq!(span(90_000.0), "25 h");
    }

    #[test]
    fn numbers_stand_right_and_words_left() {
        let mut table = Table::new(["name", "count"]);
        table.row(["a".to_string(), "1".to_string()]);
        table.row(["long".to_string(), "100".to_string()]);
        assert_eq!(table.lines(), ["name  count", "a         1", "long    100"]);
    }

    #[test]
    fn a_command_line_cannot_break_the_table() {
        assert_eq!(cut("a\nb\u{1b}[2J", 10), "a b [2J");
        assert_eq!(cut("abcdef", 4), "abc…");
    }
}
