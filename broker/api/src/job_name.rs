// SPDX-License-Identifier: MIT OR Apache-2.0
//! Name of a job: the one that its user chose, else that of its script or program.
#![forbid(unsafe_code)]

use super::plain_text::clean;
use weft_protocol::command_line;
use weft_protocol::control::LONGEST_JOB_NAME;

/// A name that a user chose, for `weft run --name`.
pub fn parse(text: &str) -> Result<String, String> {
    let name = text.trim();
    let length = name.chars().count();
    if name.is_empty() || length > LONGEST_JOB_NAME {
        return Err(format!("a name has 1 to {LONGEST_JOB_NAME} characters"));
    }
    match clean(name, LONGEST_JOB_NAME) == name {
        true => Ok(name.to_string()),
        false => Err("a name has no control characters".to_string()),
    }
}

/// The name of a job with this command line and, if its user chose one, this name.
pub fn of(said: Option<&str>, command: &str) -> String {
    let short = |text: &str| clean(text, LONGEST_JOB_NAME).trim().to_string();
    let said = said.map(short).filter(|name| !name.is_empty());
    said.unwrap_or_else(|| short(of_command(command)))
}

/// A Python job's script (its file name) or module, else the program's file name.
fn of_command(command: &str) -> &str {
    let words = command_line::words(command);
    let program = words.first().copied().unwrap_or_default();
    let (_, rest) = script_of(&words);
    let script = rest.first().copied().filter(|script| !script.starts_with('-'));
    end_of(script.unwrap_or(program), 1)
}

/// The last `parts` components of a path.
pub fn end_of(path: &str, parts: usize) -> &str {
    let mut slashes = path.rmatch_indices('/').map(|(at, _)| at);
    slashes.nth(parts - 1).and_then(|at| path.get(at + 1..)).unwrap_or(path)
}

/// The interpreter, if it is Python, and the words from the script on, without the interpreter's
/// options.
pub fn script_of<'a, 'b>(words: &'b [&'a str]) -> (Option<&'a str>, &'b [&'a str]) {
    let Some((program, rest)) = words.split_first() else {
        return (None, words);
    };
    let name = end_of(program, 1);
    if !(name.starts_with("python") || name.starts_with("pypy")) {
        return (None, words);
    }
    let mut at = 0;
    while let Some(word) = rest.get(at).filter(|word| word.len() > 1 && word.starts_with('-')) {
        at += match *word {
            // The module follows.
            "-m" => return (Some(program), rest.get(at + 1..).unwrap_or_default()),
            "-c" => break,
            "-W" | "-X" => 2,
            _ => 1,
        };
    }
    (Some(program), rest.get(at..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_without_a_name_is_called_by_its_script_module_or_program() {
        for (command, name) in [
            ("python -u /x/train.py --lr 3", "train.py"),
            (
                "/venv/bin/python3.11 -X dev -m vllm.entrypoints.api --port 8",
                "vllm.entrypoints.api",
            ),
            ("/usr/bin/python3 -c import torch", "python3"),
            ("python", "python"),
            ("python -", "python"),
            ("/opt/sim/bin/solve --steps 3", "solve"),
            ("a test's client", "a"),
            ("python3 '/x/my train.py' .2", "my train.py"),
            ("", ""),
        ] {
            assert_eq!(of(None, command), name, "{command}");
        }
        assert_eq!(of(Some("resnet prod"), "python x.py"), "resnet prod");
        assert_eq!(of(Some(" \n"), "python x.py"), "x.py");
    }

    #[test]
    fn names_are_bounded_and_nothing_that_a_terminal_obeys() {
        let long = "ö".repeat(LONGEST_JOB_NAME + 1);
        assert_eq!(of(Some(&long), "").chars().count(), LONGEST_JOB_NAME);
        assert_eq!(of(None, &long).chars().count(), LONGEST_JOB_NAME);
        assert_eq!(of(Some("a\x1b[2Jb\u{202e}"), ""), "a [2Jb");
        assert_eq!(parse(" serve ").as_deref(), Ok("serve"));
        assert_eq!(parse(&long[2..]).as_deref(), Ok(&long[2..]));
        for wrong in ["", "  ", "a\nb", &long] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
