// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables and figures for people.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use serde::Serialize;

use crate::inherited;

pub use weft_api::formatting::{count, duration, percent, span};
use weft_api::job_name::{end_of, script_of};
use weft_api::plain_text as clean;
use weft_protocol::{amount, command_line, priority};

/// Whether the driver's checkpoint is allowed.
pub fn checkpoint(text: &str) -> Result<bool, String> {
    match text {
        "off" => Ok(false),
        "allow" => Ok(true),
        _ => Err(format!("{text} is not one of off, allow")),
    }
}

/// Width of a page that is not for a terminal, columns.
pub const USUAL_WIDTH: usize = 80;

/// Largest width of a displayed command, characters.
pub const COMMAND: usize = 40;

/// Largest width of a displayed command on a wide terminal, characters.
pub const LONG_COMMAND: usize = 100;

/// Prints an answer as JSON or as the page for people.
pub fn show<T: Serialize>(answer: &T, json: bool, render: impl FnOnce(&T) -> String) -> Result<()> {
    let text = match json {
        true => clean::json(&serde_json::to_string_pretty(answer)?),
        false => render(answer),
    };
    print(&text);
    Ok(())
}

/// Prints a page without control characters, because it may quote a file.
pub fn print(page: &str) {
    put(format!("{}\n", clean::page(page.trim_end())).as_bytes());
}

/// Exit code of a program whose reader is gone, as if by SIGPIPE.
const NOT_READ: i32 = 128 + 13;

/// Writes to stdout. Ends the process if that fails: no later output would be right either.
pub fn put(bytes: &[u8]) {
    let mut out = std::io::stdout();
    printed(false, || out.write_all(bytes).and_then(|()| out.flush()));
}

/// Prints on stdout, or on stderr. Ends the process if stdout takes nothing. A pipe that is closed
/// (`| head`) gets no line.
pub fn printed(on_stderr: bool, print: impl FnOnce() -> std::io::Result<()>) {
    let done = match inherited::is_closed(1) && !on_stderr {
        true => Err(std::io::Error::other("stdout is closed")),
        false => print(),
    };
    match done {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(NOT_READ),
        Err(error) => {
            eprintln!("weft: cannot print: {}", why(&error));
            std::process::exit(1);
        }
        Ok(()) => {}
    }
}

/// Prints a line on stderr, as [`print`] does.
pub fn warn(line: impl std::fmt::Display) {
    eprintln!("weft: {}", clean::page(&line.to_string()));
}

/// Lower-case hexadecimal digits of NVML's form of a UUID.
pub fn uuid_digits(uuid: &str) -> String {
    let digits = uuid.split_once('-').map_or(uuid, |(_, digits)| digits);
    digits.replace('-', "").to_ascii_lowercase()
}

/// A table with right-aligned numbers and left-aligned words.
#[derive(Debug, Default)]
pub struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with this head.
    pub fn new<const N: usize>(head: [&str; N]) -> TextTable {
        TextTable {
            rows: vec![head.iter().map(|cell| cell.to_string()).collect()],
        }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// The lines, without trailing blanks.
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

/// A size with three figures and a unit.
pub fn size(bytes: u64) -> String {
    amount::shown(bytes)
}

/// The memory of a job with a limit, in a sentence about the job.
pub fn bounds(request: u64, limit: u64, held: u64) -> String {
    let bounds = format!(
        "keeps {} of device memory and gets at most {}",
        size(request),
        size(limit)
    );
    match held.saturating_sub(request) {
        0 => bounds,
        lent => format!(
            "{bounds}; {} of what it has are others' when they need them",
            size(lent)
        ),
    }
}

/// The error of a file that cannot be written, with the next step.
pub fn not_written(file: &Path, error: &std::io::Error) -> anyhow::Error {
    let next = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => ": make its folder first",
        ErrorKind::IsADirectory => ": name a file in it",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => ": make room there",
        _ => "",
    };
    anyhow!("cannot write {}: {}{next}", file.display(), why(error))
}

/// A system error without its number.
pub fn why(error: &std::io::Error) -> String {
    without_numbers(error)
}

/// An error with its causes in one line, without repetitions and numbers of system errors.
pub fn told(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(without_numbers) {
        // Some errors already contain their cause.
        if !said.contains(&cause) {
            if !said.is_empty() {
                said.push_str(": ");
            }
            said.push_str(&cause);
        }
    }
    clean::page(&said)
}

/// Drops ` (os error 13)`, which Rust appends to system errors.
fn without_numbers(error: impl std::fmt::Display) -> String {
    const BEGIN: &str = " (os error ";
    let mut left = error.to_string();
    while let Some(at) = left.find(BEGIN)
        && let Some(end) = left[at..].find(')')
    {
        left.replace_range(at..=at + end, "");
    }
    left
}

/// Parses a whole number.
pub fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a whole number".to_string())
}

/// Parses a need; the name of a backing gives a hint to use `--backing`.
pub fn memory(text: &str) -> Result<amount::MemoryNeed, String> {
    match text {
        "managed" | "device" | "auto" => Err(format!(
            "--memory is an amount (12GiB); for the kind of memory use --backing {text}"
        )),
        _ => text.parse(),
    }
}

/// Parses a priority, a figure or a name.
pub fn priority(text: &str) -> Result<u8, String> {
    priority::parse(text).ok_or_else(|| format!("a priority is {}", priority::CHOICE))
}

/// A command line in at most `width` characters. Directories are dropped first; the script and its
/// arguments, which identify a job, stay.
pub fn command(line: &str, width: usize) -> String {
    let plain = cut(line, usize::MAX);
    if plain.chars().count() <= width {
        return plain;
    }
    let words = command_line::words(&plain);
    let (interpreter, rest) = script_of(&words);
    let Some((what, arguments)) = rest.split_first() else {
        return cut(&plain, width);
    };
    let shown = |begin: &[&str]| {
        let all: Vec<&str> = begin.iter().chain(arguments).copied().collect();
        all.join(" ")
    };
    let near = end_of(what, 2);
    let mut tries = vec![shown(&[near])];
    if let Some(interpreter) = interpreter {
        tries.insert(0, shown(&[end_of(interpreter, 1), near]));
    }
    let fits = tries.into_iter().find(|line| line.chars().count() <= width);
    fits.unwrap_or_else(|| cut(&shown(&[end_of(what, 1)]), width))
}

/// Width of a text on a terminal, columns.
pub fn width(text: &str) -> usize {
    ratatui::text::Span::raw(text).width()
}

/// A text cut to at most `width` columns, with a mark at the cut.
pub fn cut(text: &str, width: usize) -> String {
    let plain: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    if self::width(&plain) <= width {
        return plain;
    }
    let (mut cut, mut left) = (String::new(), width.saturating_sub(1));
    for letter in plain.chars() {
        let needs = self::width(letter.encode_utf8(&mut [0; 4]));
        if needs > left {
            break;
        }
        left -= needs;
        cut.push(letter);
    }
    if width > 0 {
        cut.push('…');
    }
    cut
}

/// Lines of at most `width` columns, broken at blanks; all except the first begin with `indent`.
pub fn fold(text: &str, width: usize, indent: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let room = self::width(&line) + 1 + self::width(word) <= width;
        if !line.trim().is_empty() && !room {
            lines.push(std::mem::replace(&mut line, format!("{indent}{word}")));
        } else {
            if !line.is_empty() && line != indent {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.push(line);
    lines.iter().map(|line| cut(line, width)).collect()
}

/// A line of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageLine {
    /// A sentence, which is folded at the width of the terminal.
    Prose(String),
    /// A row of a table, which fits.
    Row(String),
}

/// A page for a terminal of this width. In a file each sentence is one line, for tools like grep.
pub fn page(lines: impl Iterator<Item = PageLine>, terminal: Option<usize>) -> String {
    let lines = lines.flat_map(|line| match (line, terminal) {
        (PageLine::Prose(line), Some(width)) => fold(&line, width, "  "),
        (PageLine::Prose(line) | PageLine::Row(line), _) => vec![line],
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Width of the terminal on stdout: `COLUMNS`, else its own; `None` if stdout is not a terminal.
pub fn terminal_width() -> Option<usize> {
    const SANE: std::ops::RangeInclusive<usize> = 20..=1_000;
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    if let Some(columns) = said.filter(|columns| SANE.contains(columns)) {
        return Some(columns);
    }
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    let columns = usize::from(size.ws_col);
    Some(columns).filter(|columns| SANE.contains(columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_three_places() {
        assert_eq!(size(5 * 1024 * 1024 * 1024), "5.00 GiB");
    }

    #[test]
    fn numbers_stand_right_and_words_left() {
        let mut table = TextTable::new(["name", "count"]);
        table.row(["a".to_string(), "1".to_string()]);
        table.row(["long".to_string(), "100".to_string()]);
        assert_eq!(table.lines(), ["name  count", "a         1", "long    100"]);
    }

    #[test]
    fn a_job_is_known_by_its_script() {
        let shown = |line: &str| command(line, 40);
        let long = "/home/ann/experiments/venv/bin/python3.11 -u -X dev /home/ann/experiments/resnet/train.py --lr 3";
        assert_eq!(shown(long), "python3.11 resnet/train.py --lr 3");
        assert_eq!(
            shown(&format!("{long} --batch 64")),
            "resnet/train.py --lr 3 --batch 64"
        );
        let longer = format!("{long} --batch 64 --workers 12");
        assert_eq!(shown(&longer), "train.py --lr 3 --batch 64 --workers 12");
        assert_eq!(shown(&format!("{longer}0")), "train.py --lr 3 --batch 64 --workers 120");
        assert_eq!(
            shown(&format!("{longer}00")),
            "train.py --lr 3 --batch 64 --workers 12…"
        );
        assert_eq!(shown("python train.py -u"), "python train.py -u");
        let module = "/home/ann/experiments/venv/bin/python -m vllm.entrypoints.api --port 8000";
        assert_eq!(shown(module), "python vllm.entrypoints.api --port 8000");
        let code = "/home/ann/experiments/venv/bin/python -c import torch; torch.ones(3)";
        assert_eq!(shown(code), "python -c import torch; torch.ones(3)");
        let program = "/opt/a/very/long/way/to/the/simulation/bin/solve --steps 100000";
        assert_eq!(shown(program), "bin/solve --steps 100000");
        assert_eq!(shown(&"x".repeat(50)).chars().count(), 40);
        assert_eq!(
            shown("/usr/bin/python -u -u -u -u -u -u -u -u -u -u -u -u"),
            "/usr/bin/python -u -u -u -u -u -u -u -u…"
        );
    }

    #[test]
    fn an_error_is_told_once_and_without_numbers() {
        use anyhow::Context;
        let refused = || std::io::Error::from_raw_os_error(13);
        let error = Err::<(), _>(refused()).context("cannot read x").expect_err("one");
        assert_eq!(told(&error), "cannot read x: Permission denied");
        let says = anyhow::Error::new(refused()).context(format!("cannot read x: {}", refused()));
        assert_eq!(told(&says), "cannot read x: Permission denied");
        assert_eq!(whole::<u32>("x"), Err("expected a whole number".to_string()));
        assert_eq!(
            (priority("9"), priority("10").is_err(), priority("high")),
            (Ok(9), true, Ok(0))
        );
    }

    #[test]
    fn a_command_line_cannot_break_the_table() {
        assert_eq!(cut("a\nb\u{1b}[2J", 10), "a b [2J");
        assert_eq!(cut("abcdef", 4), "abc…");
    }

    #[test]
    fn wide_letters_count_twice() {
        assert_eq!((width("訓練.py"), width("größe")), (7, 5));
        assert_eq!(
            (cut("訓練.py", 5), cut("訓練.py", 0)),
            ("訓練…".to_string(), String::new())
        );
        assert_eq!(cut("訓練.py", 4), "訓…");
    }

    #[test]
    fn lines_are_broken_at_blanks() {
        assert_eq!(fold("one two three", 8, "  "), ["one two", "  three"]);
        assert_eq!(fold("one two three", 7, "  "), ["one two", "  three"]);
        assert_eq!(fold("one two three", 5, "  "), ["one", "  two", "  th…"]);
        assert_eq!(fold("", 5, "  "), [""]);
        assert_eq!(fold("a longerword", 6, ""), ["a", "longe…"]);
    }
}
