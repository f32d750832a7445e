// SPDX-License-Identifier: MIT OR Apache-2.0
//! Further processes of this program, and their output.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context, Result};

/// This program, even when a newer build has taken its place on disk.
pub const SELF: &str = "/proc/self/exe";

/// The lines of a process's output, as they come.
pub fn lines_of(process: &mut Child) -> Result<Receiver<String>> {
    let out = process.stdout.take().context("the process has no output")?;
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    Ok(receive)
}
