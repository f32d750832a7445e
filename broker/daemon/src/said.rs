//! Words of clients', as they may be shown: in a terminal, in a log of lines, in JSON that somebody
//! prints.
#![forbid(unsafe_code)]

/// The longest label that a job gives itself: its user's, its group's.
pub const LONGEST_LABEL: usize = 200;

/// What a client said, with a blank for whatever a terminal would obey (control characters, line
/// breaks, marks that turn the direction of what follows), and no longer than so many characters.
pub fn clean(said: &str, most: usize) -> String {
    let shown = |c: char| if obeyed(c) { ' ' } else { c };
    said.chars().take(most).map(shown).collect()
}

/// Whether a terminal does something else with it than to show it.
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
    }
}
