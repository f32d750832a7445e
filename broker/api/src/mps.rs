// SPDX-License-Identifier: MIT OR Apache-2.0
//! Check whether NVIDIA's Multi-Process Service runs. Under MPS the device does not switch between
//! processes.
//!
//! For clients whose driver does not report it (before CUDA 12.4). An MPS daemon found here need
//! not serve the client, and one in another container is not visible.
#![forbid(unsafe_code)]

use std::fs;
use std::time::{Duration, Instant};

/// Time for which a result is valid; each check reads one file per process.
const HOLDS: Duration = Duration::from_secs(10);

/// The last result and its time.
#[derive(Debug, Default)]
pub struct MpsCheck(Option<(Instant, bool)>);

impl MpsCheck {
    /// [`runs`], cached.
    pub fn runs(&mut self) -> bool {
        let fresh = self.0.filter(|(at, _)| at.elapsed() < HOLDS);
        fresh.unwrap_or_else(|| *self.0.insert((Instant::now(), runs()))).1
    }
}

/// The programs of MPS.
const DAEMONS: [&[u8]; 2] = [b"nvidia-cuda-mps-control", b"nvidia-cuda-mps-server"];

/// Whether a process of one of these names runs.
pub fn runs() -> bool {
    let Ok(entries) = fs::read_dir("/proc") else {
        return false;
    };
    entries.flatten().any(|entry| {
        // The kernel's process name is cut at 15 bytes; the command line is whole.
        fs::read(entry.path().join("cmdline")).is_ok_and(|line| is_daemon(&line))
    })
}

fn is_daemon(command_line: &[u8]) -> bool {
    let program = command_line
        .split(|byte| *byte == 0 || *byte == b' ')
        .next()
        .unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    DAEMONS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_decides_not_its_arguments() {
        assert!(is_daemon(b"/usr/bin/nvidia-cuda-mps-control\0-d\0"));
        assert!(is_daemon(b"nvidia-cuda-mps-server"));
        assert!(!is_daemon(b"grep\0nvidia-cuda-mps-control\0"));
        assert!(!is_daemon(b""));
    }
}
