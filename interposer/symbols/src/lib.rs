// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver API's symbol table: the checked-in list of entry points (`driver-api.tsv`), and its
//! parser.
//!
//! Build scripts generate trampolines (interposer), exports (simulated and null driver) and checks
//! from it. The table and `beyond.tsv` (names without a header) are the repository's only lists of
//! driver names. Each line is parsed whole or refused with its number. `scripts/symbols check`
//! compares the table with the public header. This crate has no dependencies and reads only the
//! given text.
#![forbid(unsafe_code)]

mod beyond;
mod class;
mod queue;

use std::collections::BTreeMap;
use std::fmt;

pub use beyond::{BEYOND, Beyond, beyond, parse as parse_beyond};
pub use class::Class;
pub use queue::QueueRule;

/// The checked-in table.
pub const TABLE: &str = include_str!("../driver-api.tsv");

/// Default stream that callers of an entry point get for stream 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flavour {
    /// The legacy default stream, ordered with all blocking streams.
    Plain,
    /// The per-thread default stream, for functions that take a stream (`_ptsz`).
    Ptsz,
    /// The per-thread default stream, for functions that take none (`_ptds`).
    Ptds,
}

impl Flavour {
    /// Whether callers have a per-thread default stream.
    pub fn per_thread(self) -> bool {
        self != Flavour::Plain
    }

    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "plain" => Flavour::Plain,
            "ptsz" => Flavour::Ptsz,
            "ptds" => Flavour::Ptds,
            _ => return None,
        })
    }
}

/// One exported symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Name for the dynamic linker, with ABI version and flavour.
    pub symbol: &'a str,
    /// Name for `cuGetProcAddress`.
    pub base: &'a str,
    /// First CUDA version for which `cuGetProcAddress` returns this symbol for `base`.
    pub since: u32,
    /// Meaning of stream 0.
    pub flavour: Flavour,
    /// Effect on the order of work.
    pub class: Class,
    /// Number of arguments.
    pub args: u8,
    /// Position of the stream argument, from 0.
    pub stream: Option<u8>,
    /// Position of the amount copied, filled or allocated. For a fill it counts elements.
    pub size: Option<u8>,
    /// Its rule for deferred launches.
    pub queue: QueueRule,
}

/// Reason for which a line was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// List of the line.
    pub file: &'static str,
    /// Line, from 1.
    pub line: usize,
    /// The fault.
    pub what: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} line {}: {}", self.file, self.line, self.what)
    }
}

impl std::error::Error for Error {}

/// Parses a table. Empty lines and lines that start with `#` are skipped.
pub fn parse(text: &str) -> Result<Vec<Entry<'_>>, Error> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut seen = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let refuse = |what: String| Error {
            file: "driver-api.tsv",
            line: at + 1,
            what,
        };
        let fields: Vec<&str> = line.split('\t').collect();
        let &[symbol, base, since, flavour, class, args, stream, size, queue] = fields.as_slice() else {
            return Err(refuse(format!("{} fields instead of 9", fields.len())));
        };
        let named = |name: &str| name.starts_with("cu") && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !named(symbol) || !symbol.starts_with(base) || !named(base) {
            return Err(refuse(format!(
                "'{symbol}' with base '{base}' is not a name of the driver API"
            )));
        }
        if let Some(first) = seen.insert(symbol, at + 1) {
            return Err(refuse(format!("'{symbol}' was already on line {first}")));
        }
        let entry = Entry {
            symbol,
            base,
            since: since
                .parse()
                .map_err(|_| refuse(format!("'{since}' is not a CUDA version")))?,
            flavour: Flavour::parse(flavour).ok_or_else(|| refuse(format!("unknown flavour '{flavour}'")))?,
            class: Class::parse(class).ok_or_else(|| refuse(format!("unknown class '{class}'")))?,
            args: args
                .parse()
                .map_err(|_| refuse(format!("'{args}' is not a number of arguments")))?,
            stream: position(stream).map_err(refuse)?,
            size: position(size).map_err(refuse)?,
            queue: QueueRule::parse(queue).ok_or_else(|| refuse(format!("unknown queue rule '{queue}'")))?,
        };
        if entry
            .stream
            .into_iter()
            .chain(entry.size)
            .any(|position| position >= entry.args)
        {
            return Err(refuse(format!("an argument of '{symbol}' stands past its last one")));
        }
        if entry.flavour.per_thread() != (symbol.ends_with("_ptsz") || symbol.ends_with("_ptds")) {
            return Err(refuse(format!("'{symbol}' is not of flavour '{flavour}'")));
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// The checked-in table, sorted by symbol.
pub fn table() -> Result<Vec<Entry<'static>>, Error> {
    parse(TABLE)
}

/// CUDA version of the table's header. Later versions of a name are unknown to the table.
pub fn header_version() -> u32 {
    let line = TABLE.lines().find_map(|line| line.strip_prefix("# header-version\t"));
    line.and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// Resolves `cuGetProcAddress(base, version, flags)`: the newest symbol not newer than `version`,
/// per-thread if wanted and available.
pub fn resolve<'t, 'a>(entries: &'t [Entry<'a>], base: &str, version: u32, per_thread: bool) -> Option<&'t Entry<'a>> {
    let offered = |entry: &&Entry<'_>| entry.base == base && entry.since <= version;
    let newest = |flavoured: bool| {
        let all = entries
            .iter()
            .filter(offered)
            .filter(|entry| entry.flavour.per_thread() == flavoured);
        all.max_by_key(|entry| entry.since)
    };
    per_thread.then(|| newest(true)).flatten().or_else(|| newest(false))
}

fn position(text: &str) -> Result<Option<u8>, String> {
    if text == "-" {
        return Ok(None);
    }
    text.parse()
        .map(Some)
        .map_err(|_| format!("'{text}' is not the position of an argument"))
}

#[cfg(test)]
mod tests;
