// SPDX-License-Identifier: MIT OR Apache-2.0
//! Command lines as one text: a word with a blank is in single quotes, as in a shell.
#![forbid(unsafe_code)]

/// The text of these words.
pub fn join(words: impl IntoIterator<Item: AsRef<str>>) -> String {
    let quoted = words.into_iter().map(|word| {
        let word = word.as_ref();
        match word.is_empty() || word.starts_with('\'') || word.contains(char::is_whitespace) {
            true => format!("'{}'", word.replace('\'', r"'\''")),
            false => word.to_string(),
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// The words of a text, without the quotes around them. A text that was cut may lack the last
/// quote: then blanks end its last words.
pub fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let quoted = rest.strip_prefix('\'').and_then(|rest| {
            let mut parts = rest
                .match_indices('\'')
                .map(|(at, _)| (rest.split_at(at).0, rest.split_at(at + 1).1));
            parts.find(|(_, after)| after.is_empty() || after.starts_with(char::is_whitespace))
        });
        let plain = || rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
        let (word, after) = quoted.unwrap_or_else(plain);
        words.push(word);
        rest = after.trim_start();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_blanks_stay_whole() {
        for plain in [
            &["python", "/x/my train.py", "--lr", "3"][..],
            &["python", "-c", "import torch\nprint(1)", ""],
            &["a", "it's", "a 'quoted'x word", "b"],
            &[],
        ] {
            let text = join(plain);
            let read: Vec<String> = words(&text).iter().map(|word| word.replace(r"'\''", "'")).collect();
            assert_eq!(read, plain, "{text}");
        }
        assert_eq!(join(["python", "a b.py"]), "python 'a b.py'");
        assert_eq!(words("python 'a b"), ["python", "'a", "b"]);
        assert_eq!(words("a test's client"), ["a", "test's", "client"]);
    }
}
