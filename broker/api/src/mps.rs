//! Whether NVIDIA's multi-process service runs; under it processes do not switch.
//!
//! For clients whose driver does not say (before CUDA 12.4). A daemon need not serve the client;
//! one in another container stays unseen.
#![forbid(unsafe_code)]

use std::fs;
use std::time::{Duration, Instant};

/// How long a look is valid; each reads as many files as there are processes.
const HOLDS: Duration = Duration::from_secs(10);

/// The last look.
#[derive(Debug, Default)]
pub struct MpsCheck(Option<(Instant, bool)>);

impl MpsCheck {
    /// [`runs`], cached.
    pub fn runs(&mut self) -> bool {
        let fresh = self.0.filter(|(at, _)| at.elapsed() < HOLDS);
        fresh.unwrap_or_else(|| *self.0.insert((Instant::now(), runs()))).1
    }
}

/// The service's programs.
const DAEMONS: [&[u8]; 2] = [b"nvidia-cuda-mps-control", b"nvidia-cuda-mps-server"];

/// Whether a process of that name runs.
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
