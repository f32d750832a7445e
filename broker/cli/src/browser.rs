// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's browser.
#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time within which a browser that cannot start ends. One that starts may run on.
const START: Duration = Duration::from_secs(2);

/// Polling interval.
const STEP: Duration = Duration::from_millis(20);

/// Opens a file or an address: with `BROWSER`, else in a graphical session with `xdg-open`. An
/// error is the reason why nothing was opened.
pub fn open(page: &OsStr) -> Result<(), String> {
    let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let program = match set("BROWSER") {
        Some(program) => program,
        None if ["DISPLAY", "WAYLAND_DISPLAY"]
            .into_iter()
            .any(|name| set(name).is_some()) =>
        {
            "xdg-open".to_string()
        }
        // Without a screen xdg-open would start a browser in the terminal.
        None => return Err("no browser: neither BROWSER nor DISPLAY is set".to_string()),
    };
    // Other programs read a list here, whose first entry is the preferred one.
    let mut words = program.split(':').next().unwrap_or_default().split_whitespace();
    let name = words.next().unwrap_or_default();
    let mut command = Command::new(name);
    command.args(words.filter(|word| *word != "%s")).arg(page);
    // A group of its own, so that Ctrl-C in this terminal does not end the browser.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    let mut child = command
        .spawn()
        .map_err(|error| format!("{name}: {}", super::text::why(&error)))?;
    let deadline = Instant::now() + START;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if !status.success() => return Err(format!("{name} ended with {status}")),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(STEP),
            _ => return Ok(()),
        }
    }
}
