// SPDX-License-Identifier: MIT OR Apache-2.0
//! Priorities as text: figures and the names of four of them.
#![forbid(unsafe_code)]

use super::PRIORITIES;

/// Names of priorities, the most important first. A job that asks for no priority gets `normal`.
pub const NAMES: [(&str, u8); 4] = [("high", 0), ("normal", 5), ("low", 7), ("idle", 9)];

/// Allowed priorities, for messages.
pub const CHOICE: &str =
    "a whole number from 0 (matters most) to 9, or a name: high (0), normal (5), low (7), idle (9)";

/// The priority of a figure or name; `None`: it is neither.
pub fn parse(text: &str) -> Option<u8> {
    let text = text.trim();
    let named = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    let figure = || text.parse().ok().filter(|figure| usize::from(*figure) < PRIORITIES);
    named.map(|(_, priority)| *priority).or_else(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_names_are_priorities() {
        for (text, priority) in [
            ("0", 0),
            ("9", 9),
            ("high", 0),
            (" Normal ", 5),
            ("LOW", 7),
            ("idle", 9),
        ] {
            assert_eq!(parse(text), Some(priority), "{text}");
        }
        for wrong in ["", "10", "-1", "3.5", "hi", "highest"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let told = |(name, priority): &(&str, u8)| CHOICE.contains(&format!("{name} ({priority})"));
        assert!(NAMES.iter().all(told), "{CHOICE}");
    }
}
