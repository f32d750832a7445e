// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text from clients, made safe to show in a terminal, a log or JSON.
#![forbid(unsafe_code)]

/// Longest label of a job's user or group, characters.
pub const LONGEST_LABEL: usize = 200;

/// At most `most` characters of `said`. A blank replaces each character that a terminal obeys:
/// control characters, line breaks, direction marks.
pub fn clean(said: &str, most: usize) -> String {
    let shown = |c: char| if obeyed(c) { ' ' } else { c };
    said.chars().take(most).map(shown).collect()
}

/// A page with a blank for each character that a terminal obeys, except line breaks.
pub fn page(text: &str) -> String {
    let shown = |c: char| if obeyed(c) && c != '\n' { ' ' } else { c };
    text.chars().map(shown).collect()
}

/// JSON with an escape for each character that a terminal obeys: `serde_json` escapes neither C1
/// nor direction marks. Such a character is inside a string, so an escape means the same.
pub fn json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match obeyed(c) && c != '\n' {
            // All of them are in the Basic Multilingual Plane.
            true => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown
}

/// A text without control characters, cut to `bytes` bytes so that files stay bounded.
pub fn brief(text: &str, bytes: usize) -> String {
    let mut cut = bytes.min(text.len());
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    text[..cut].chars().map(plain).collect()
}

/// Whether a terminal obeys this character instead of showing it.
fn obeyed(c: char) -> bool {
    const LINE_ENDS: std::ops::RangeInclusive<char> = '\u{2028}'..='\u{202e}';
    const DIRECTIONS: std::ops::RangeInclusive<char> = '\u{2066}'..='\u{2069}';
    c.is_control() || LINE_ENDS.contains(&c) || DIRECTIONS.contains(&c) || matches!(c, '\u{200e}' | '\u{200f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_a_blank() {
        assert_eq!(clean("a\x1b[2Jb\nc\u{9b}d\x07\u{202e}e", 99), "a [2Jb c d  e");
        assert_eq!(clean("größe 日本", 7), "größe 日");
        assert_eq!(page("a\x1b[2J\nb\u{9b}日\r\n"), "a [2J\nb 日 \n");
        assert_eq!(
            json("{\n \"a\u{9b}\u{202e}\x7f\": 1\n}"),
            "{\n \"a\\u009b\\u202e\\u007f\": 1\n}"
        );
    }
}
