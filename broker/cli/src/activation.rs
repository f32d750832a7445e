// SPDX-License-Identifier: MIT OR Apache-2.0
//! Socket activation: the service manager holds the broker's socket and passes it on, as in
//! sd_listen_fds(3).
#![deny(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Result, bail};

/// Number of the first descriptor that is passed on.
const FIRST: i32 = 3;

/// The socket that this process was started for; `None` without socket activation.
pub fn socket() -> Result<Option<OwnedFd>> {
    let said = |name: &str| std::env::var(name).ok();
    let Some(passed) = count(said("LISTEN_PID"), said("LISTEN_FDS"), std::process::id()) else {
        return Ok(None);
    };
    if passed != 1 {
        bail!("the service manager passed {passed} sockets (LISTEN_FDS); a broker takes exactly one");
    }
    if std::fs::read_link(format!("/proc/self/fd/{FIRST}")).is_err() {
        bail!("the service manager passed no socket (LISTEN_FDS is set, and descriptor {FIRST} is not open)");
    }
    Ok(Some(take()))
}

/// Number of descriptors passed to process `own`; `None` if the variables are another process's.
fn count(pid: Option<String>, passed: Option<String>, own: u32) -> Option<u32> {
    let own = pid?.trim().parse::<u32>().ok()? == own;
    let passed = passed?.trim().parse::<u32>().ok()?;
    Some(passed).filter(|passed| own && *passed > 0)
}

/// Takes the descriptor, and removes the variables so that children do not inherit them.
#[allow(unsafe_code)]
fn take() -> OwnedFd {
    for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
        // SAFETY: this process has no other thread yet, so no thread reads the environment now.
        unsafe { std::env::remove_var(name) };
    }
    // SAFETY: it is open, and by the protocol this process's own; nothing else here has it.
    unsafe { OwnedFd::from_raw_fd(FIRST) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_passed_to_this_process_counts() {
        let said = |text: &str| Some(text.to_string());
        assert_eq!(count(said("7"), said("1"), 7), Some(1));
        assert_eq!(count(said("7"), said("2"), 7), Some(2));
        for (pid, passed) in [
            (None, said("1")),
            (said("8"), said("1")),
            (said("7"), None),
            (said("7"), said("0")),
            (said("7"), said("one")),
            (said("x"), said("1")),
        ] {
            assert_eq!(count(pid.clone(), passed.clone(), 7), None, "{pid:?} {passed:?}");
        }
    }
}
