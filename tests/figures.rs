// SPDX-License-Identifier: MIT OR Apache-2.0
//! The common part of the benches that measure by themselves: they include this file (`#[path]`).
//! `--check`, `--json FILE`, and the end of the program.

use std::process::ExitCode;

/// The command line's options.
#[derive(Debug)]
pub struct Asked {
    check: bool,
    json: Option<String>,
}

impl Asked {
    /// Reads the arguments; those that cargo adds are passed over.
    pub fn read() -> Asked {
        let arguments: Vec<String> = std::env::args().collect();
        let json = arguments.iter().position(|argument| argument == "--json");
        Asked {
            check: arguments.iter().any(|argument| argument == "--check"),
            json: json.and_then(|at| arguments.get(at + 1)).cloned(),
        }
    }

    /// Writes the figures if that was asked for, and prints last which aims were missed: exit code
    /// 1 with `--check`, 2 if the file cannot be written.
    pub fn end(&self, figures: &str, missed: &[String]) -> ExitCode {
        if let Some(path) = &self.json
            && let Err(error) = std::fs::write(path, figures)
        {
            eprintln!("cannot write {path}: {error}: name another file");
            return ExitCode::from(2);
        }
        for line in missed {
            println!("{line}");
        }
        ExitCode::from(u8::from(self.check && !missed.is_empty()))
    }
}
