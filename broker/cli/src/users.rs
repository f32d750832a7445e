// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users and groups, by number or by name in this machine's own tables.
#![forbid(unsafe_code)]

use std::str::FromStr;

use weft_protocol::amount;

/// A user, by number or name.
pub fn user(text: &str) -> Result<u32, String> {
    look_up(text, "/etc/passwd", "user")
}

/// A group, by number or name.
pub fn group(text: &str) -> Result<u32, String> {
    look_up(text, "/etc/group", "group")
}

fn look_up(text: &str, table: &str, what: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let lines = std::fs::read_to_string(table).unwrap_or_default();
    number_in(&lines, text).ok_or_else(|| format!("no {what} {text} in {table}; give the number (id {text})"))
}

/// A user's name, or the number if this machine's tables have no name.
pub use weft_api::users::name_of;

/// A label of the queue; a label that is a uid (shared broker, no WEFT_USER) becomes a name.
pub fn shown(label: &str) -> String {
    label.parse().map_or_else(|_| label.to_string(), name_of)
}

/// Third field of the line with this name (passwd(5), group(5)).
fn number_in(lines: &str, name: &str) -> Option<u32> {
    let mut rows = lines.lines().map(|line| line.split(':'));
    rows.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?)
}

/// Parses `WHO=WEIGHT`.
pub fn weight(text: &str) -> Result<(u32, u32), String> {
    figure(text, 1, 100)
}

/// Parses `WHO=PRIORITY`.
pub fn priority(text: &str) -> Result<(u32, u8), String> {
    let (who, asked) = text.split_once('=').ok_or("is not USER=PRIORITY")?;
    Ok((user(who)?, super::text::priority(asked)?))
}

/// Word for all users without an entry.
pub const OTHERS: &str = "*";

/// Parses `WHO=JOBS`; `None` is all other users.
pub fn jobs(text: &str) -> Result<(Option<u32>, u32), String> {
    const MOST_JOBS: u32 = 4096;
    let (who, said) = text.split_once('=').ok_or("is not USER=JOBS")?;
    match said.parse() {
        Ok(jobs) if jobs <= MOST_JOBS => Ok((user_or_others(who)?, jobs)),
        _ => Err(format!("{said} is not between 0 and {MOST_JOBS}")),
    }
}

/// Parses `WHO=SIZE`, bytes; `None` is all other users.
pub fn memory(text: &str) -> Result<(Option<u32>, u64), String> {
    let (who, said) = text.split_once('=').ok_or("is not USER=SIZE")?;
    Ok((user_or_others(who)?, amount::parse(said)?))
}

fn user_or_others(text: &str) -> Result<Option<u32>, String> {
    match text {
        OTHERS => Ok(None),
        _ => user(text).map(Some),
    }
}

/// A user's name, or [`OTHERS`].
pub fn name_or_others(uid: Option<u32>) -> String {
    uid.map_or_else(|| OTHERS.to_string(), name_of)
}

/// Parses `WHO=FIGURE` with bounds for the figure.
fn figure<T: FromStr + PartialOrd + std::fmt::Display>(text: &str, least: T, most: T) -> Result<(u32, T), String> {
    let (who, figure) = text.split_once('=').ok_or("is not USER=FIGURE")?;
    match figure.parse() {
        Ok(figure) if least <= figure && figure <= most => Ok((user(who)?, figure)),
        _ => Err(format!("{figure} is not between {least} and {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_number_and_by_name() {
        let lines = "root:x:0:0:root:/root:/bin/sh\nann:x:1001:1001::/home/ann:/bin/sh\nodd\n";
        assert_eq!(number_in(lines, "ann"), Some(1001));
        assert_eq!(number_in(lines, "bea"), None);
        assert_eq!(number_in(lines, "odd"), None);
        assert_eq!(
            (name_of(0), name_of(4_000_000)),
            ("root".to_string(), "4000000".to_string())
        );
        assert_eq!(figure("1001=3", 1u32, 100), Ok((1001, 3)));
        assert_eq!(user("root"), Ok(0));
        assert_eq!((shown("0"), shown("ann's")), ("root".to_string(), "ann's".to_string()));
        assert_eq!((jobs("*=4"), jobs("root=0")), (Ok((None, 4)), Ok((Some(0), 0))));
        assert_eq!(memory("1001=12GiB"), Ok((Some(1001), 12 << 30)));
        assert!(jobs("*=x").is_err() && jobs("4").is_err() && memory("*=").is_err() && memory("*").is_err());
        assert_eq!(
            (name_or_others(None), name_or_others(Some(0))),
            ("*".to_string(), "root".to_string())
        );
        assert_eq!(priority("1001=low"), Ok((1001, 7)));
        assert_eq!(priority("root=0"), Ok((0, 0)));
        assert!(priority("1001=10").is_err() && priority("1001").is_err());
        for wrong in ["1001", "1001=0", "1001=101", "nobody-of-this-name=3"] {
            assert!(figure(wrong, 1u32, 100).is_err(), "{wrong}");
        }
    }
}
