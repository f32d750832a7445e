// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver exports beyond the table: names without a public header (`beyond.tsv`), and their parser.

use crate::Error;

/// The checked-in list.
pub const BEYOND: &str = include_str!("../beyond.tsv");

/// A name, or a prefix of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beyond<'a> {
    /// Name or prefix.
    pub name: &'a str,
    /// Whether it is a prefix.
    pub prefix: bool,
    /// Whether weft exports the name, as a jump to the driver.
    pub exported: bool,
}

impl Beyond<'_> {
    /// Whether this line covers a symbol.
    pub fn is(&self, symbol: &str) -> bool {
        if self.prefix {
            symbol.starts_with(self.name)
        } else {
            symbol == self.name
        }
    }
}

/// Parses a list. Empty lines and lines that start with `#` are skipped.
pub fn parse(text: &str) -> Result<Vec<Beyond<'_>>, Error> {
    let mut found: Vec<Beyond<'_>> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let refuse = |what: String| Error {
            file: "beyond.tsv",
            line: at + 1,
            what,
        };
        let fields: Vec<&str> = line.split('\t').collect();
        let &[symbol, how, why] = fields.as_slice() else {
            return Err(refuse(format!("{} fields instead of 3", fields.len())));
        };
        let name = symbol.strip_suffix('*').unwrap_or(symbol);
        let prefix = name != symbol;
        if !name.starts_with("cu") || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(refuse(format!("'{symbol}' is not a name of the driver's")));
        }
        if found.iter().any(|known| known.is(name)) {
            return Err(refuse(format!("'{symbol}' stands there already")));
        }
        let exported = match how {
            "exported" if !prefix => true,
            "passed" => false,
            _ => return Err(refuse(format!("'{symbol}' cannot be '{how}'"))),
        };
        if why.trim().is_empty() {
            return Err(refuse(format!("'{symbol}' has no reason")));
        }
        found.push(Beyond { name, prefix, exported });
    }
    Ok(found)
}

/// The checked-in list.
pub fn beyond() -> Result<Vec<Beyond<'static>>, Error> {
    parse(BEYOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checked_in_list_is_read_whole_and_no_name_stands_in_the_table() {
        let list = beyond().unwrap();
        let lines = BEYOND.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(list.len(), lines);
        for entry in crate::table().unwrap() {
            assert!(!list.iter().any(|known| known.is(entry.symbol)), "{}", entry.symbol);
        }
    }

    #[test]
    fn a_star_stands_for_all_that_begin_so() {
        let list = parse("cudbg*\tpassed\tx\ncuOne\texported\tx\n").unwrap();
        let known = |symbol: &str| list.iter().any(|known| known.is(symbol));
        assert!(known("cudbgApiInit") && known("cuOne"));
        assert!(!known("cuOneMore") && !known("cudb"));
    }

    #[test]
    fn a_bad_line_is_refused_with_its_number() {
        let refused = |line: &str| {
            let text = format!("# a remark\ncuOne\texported\tx\n{line}\n");
            let error = parse(&text).expect_err(line);
            assert_eq!(error.line, 3, "{error}");
            error.to_string()
        };
        assert!(refused("cuTwo\texported").contains("2 fields"));
        assert!(refused("cuTwo*\texported\tx").contains("cannot be 'exported'"));
        assert!(refused("cuTwo\thooked\tx").contains("cannot be 'hooked'"));
        assert!(refused("cuTwo\tpassed\t ").contains("no reason"));
        assert!(refused("two\tpassed\tx").contains("not a name"));
        assert!(refused("cuOne\tpassed\tx").contains("already"));
    }
}
