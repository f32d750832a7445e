// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detection of a Python script whose interpreter owns a signal's handler.
//!
//! Reads only `/proc`: another thread may hold the linker's lock (`dladdr`) or change the
//! environment.
#![forbid(unsafe_code)]

use std::fs;

const INTERPRETERS: [&str; 2] = ["python", "pypy"];

/// Programs with a prompt.
const PROMPTS: [&str; 8] = [
    "ipykernel",
    "ipython",
    "jupyter",
    "ptpython",
    "bpython",
    "spyder",
    "pdb",
    "idlelib",
];

const SAY_PROMPT: [&str; 3] = ["PYTHONINSPECT=", "JPY_PARENT_PID=", "JPY_SESSION_NAME="];

/// Whether the code at `handler` is Python's, and the process a script without a prompt.
pub fn runs(handler: usize) -> bool {
    let read = |name: &str| fs::read(format!("/proc/self/{name}")).unwrap_or_default();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    is_interpreters(&text(read("maps")), handler)
        && is_script(&words(&text(read("cmdline"))))
        && !words(&text(read("environ")))
            .iter()
            .any(|entry| SAY_PROMPT.iter().any(|begin| entry.starts_with(begin)))
}

/// Splits at zero bytes. An empty argument counts.
fn words(text: &str) -> Vec<&str> {
    text.strip_suffix('\0').unwrap_or(text).split('\0').collect()
}

fn names(path: &str, known: &[&str]) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    known.iter().any(|known| name.contains(known))
}

fn is_interpreters(maps: &str, address: usize) -> bool {
    maps.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace();
        let range = fields.next().and_then(|range| range.split_once('-'));
        let Some((from, to)) = range else { return false };
        let within = |from: &str, to: &str| {
            let number = |text| usize::from_str_radix(text, 16).ok();
            Some((number(from)?..number(to)?).contains(&address))
        };
        within(from, to) == Some(true) && fields.nth(4).is_some_and(|path| names(path, &INTERPRETERS))
    })
}

/// Whether the interpreter's arguments name something to run, other than a prompt.
fn is_script(words: &[&str]) -> bool {
    let [program, rest @ ..] = words else { return false };
    if !names(program, &INTERPRETERS) {
        return false;
    }
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            return !names(word, &PROMPTS);
        };
        if letters.starts_with('-') {
            continue;
        }
        for (at, letter) in letters.char_indices() {
            match letter {
                'i' => return false,
                'c' => return true,
                'm' => {
                    let module = match letters.get(at + 1..).unwrap_or_default() {
                        "" => rest.next().copied().unwrap_or_default(),
                        module => module,
                    };
                    return !PROMPTS
                        .iter()
                        .any(|prompt| module.to_ascii_lowercase().contains(prompt));
                }
                // The rest of the word, or the next word, is the option's value.
                'W' | 'X' => {
                    if letters.len() == at + 1 {
                        rest.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_told_from_a_prompt() {
        for script in [
            &["python", "train.py"][..],
            &["/opt/venv/bin/python3.11", "-u", "-X", "dev", "/x/train.py", "-i"],
            &["python3", "-c", "import torch", ""],
            &["pypy3", "-um", "package.train"],
            &["python", "-mpackage", "-i"],
            &["python", "-Wignore", "-"],
        ] {
            assert!(is_script(script), "{script:?}");
        }
        for other in [
            &[][..],
            &["python"],
            &["python", "-u"],
            &["python", "-i", "train.py"],
            &["python", "-ui", "train.py"],
            &["python3", "/usr/bin/ipython"],
            &["python3", "-m", "ipykernel_launcher", "-f", "x.json"],
            &["python3", "-m", "IPython"],
            &["blender", "scene.py"],
        ] {
            assert!(!is_script(other), "{other:?}");
        }
    }

    #[test]
    fn whose_a_handler_is_says_the_map() {
        let maps = "\
00400000-0041f000 r--p 00000000 08:01 11 /usr/bin/python3.11
0041f000-006a0000 r-xp 0001f000 08:01 11 /usr/bin/python3.11
7f00-7f10 r-xp 00000000 00:00 0
7f12a0000000-7f12a0010000 r-xp 00000000 08:01 12 /home/python/lib/libtrainer.so
";
        assert!(is_interpreters(maps, 0x41f004));
        for other in [0x6a0000, 0x7f05, 0x7f12a0000010, 0] {
            assert!(!is_interpreters(maps, other), "{other:x}");
        }
        // The code of this test belongs to no interpreter.
        assert!(!runs(a_script_is_told_from_a_prompt as *const () as usize));
    }

    #[test]
    fn empty_words_are_words() {
        assert_eq!(words("python\0-c\0\0"), ["python", "-c", ""]);
    }
}
