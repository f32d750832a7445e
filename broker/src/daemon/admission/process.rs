//! Which process a client is, also for a broker that comes later: a number is given anew, a number and the time of a start are not.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Clock ticks from the machine's boot to its start; `None`: it cannot be looked at (another container's, say).
    pub start: Option<u64>,
}

impl Process {
    /// The one that has this number now.
    pub fn of(pid: u32) -> Process {
        Process {
            pid,
            start: look(pid).map(|(_, start)| start),
        }
    }

    /// Whether it runs. One that ended and whom nobody has waited for does not: it holds no memory. `None`: it cannot be looked at.
    pub fn runs(&self) -> Option<bool> {
        let start = self.start?;
        Some(look(self.pid).is_some_and(|(state, found)| found == start && !matches!(state, 'Z' | 'X' | 'x')))
    }
}

impl Process {
    /// Whether it is suspended (by SIGSTOP, or the terminal's Ctrl-Z, or a debugger). `None`: it cannot be looked at, or is another one.
    pub fn suspended(&self) -> Option<bool> {
        let start = self.start?;
        let (state, found) = look(self.pid)?;
        (found == start).then_some(matches!(state, 'T' | 't'))
    }
}

/// The state and the start of a process: fields 3 and 22 of `/proc/PID/stat` (proc_pid_stat(5)). A name in parentheses comes before them, which may hold anything.
fn look(pid: u32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some((fields.first()?.chars().next()?, fields.get(19)?.parse().ok()?))
}

/// Tells this boot of the machine from others: times and starts mean nothing across them. Empty where it cannot be told.
pub fn boot() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn one_that_ended_does_not_run_though_nobody_waited_for_it() {
        let mut child = Command::new("/bin/cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("cat is everywhere");
        let process = Process::of(child.id());
        assert_eq!(process.runs(), Some(true));
        let other = Process {
            start: process.start.map(|start| start + 1),
            ..process
        };
        assert_eq!(other.runs(), Some(false), "the number is another one's now");
        child.kill().expect("it is ours");
        // Dead, and not waited for: looked at until the kernel has taken it down.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while process.runs() != Some(false) {
            assert!(std::time::Instant::now() < deadline, "{process:?}");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        child.wait().expect("it is ours");
        assert_eq!(process.runs(), Some(false));
        let unknown = Process { pid: 1, start: None };
        assert_eq!(unknown.runs(), None);
    }
}
