//! Which process a client is, also for a broker that comes later: a number is given anew, a number
//! and the time of a start are not.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Clock ticks from the machine's boot to its start; `None`: it cannot be looked at (another
    /// container's, say).
    pub start: Option<u64>,
}

impl Process {
    /// The one that has this number now.
    pub fn of(pid: u32) -> Process {
        Process {
            pid,
            start: look(pid).map(|found| found.start),
        }
    }

    /// One that cannot be looked at: its number is of another pid namespace, where ours may be
    /// somebody else's.
    pub fn unseen(pid: u32) -> Process {
        Process { pid, start: None }
    }

    /// Whether it runs. One that ended and whom nobody has waited for does not: it holds no memory.
    /// `None`: it cannot be looked at.
    pub fn runs(&self) -> Option<bool> {
        let start = self.start?;
        Some(look(self.pid).is_some_and(|found| found.start == start && !found.ended()))
    }

    /// Whether it is on its way out, or gone: it may hold memory or not. False where it cannot be
    /// looked at.
    pub fn leaves(&self) -> bool {
        /// `PF_EXITING` of the kernel's `include/linux/sched.h`, shown in field 9.
        const EXITING: u64 = 0x4;
        let Some(start) = self.start else { return false };
        look(self.pid).is_none_or(|found| found.start != start || found.ended() || found.flags & EXITING != 0)
    }

    /// Whether it is suspended (by SIGSTOP, or the terminal's Ctrl-Z, or a debugger). `None`: it
    /// cannot be looked at, or is another one.
    pub fn suspended(&self) -> Option<bool> {
        let start = self.start?;
        let found = look(self.pid)?;
        (found.start == start).then_some(matches!(found.state, 'T' | 't'))
    }
}

/// Whether the process of this number is stopped now, as [`Process::suspended`]; false where it
/// cannot be looked at.
pub fn is_stopped(pid: u32) -> bool {
    look(pid).is_some_and(|found| matches!(found.state, 'T' | 't'))
}

/// What the kernel says of a process: fields 3, 9 and 22 of `/proc/PID/stat` (proc_pid_stat(5)).
struct Stat {
    state: char,
    flags: u64,
    start: u64,
}

impl Stat {
    fn ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// A name in parentheses comes before the fields, which may hold anything.
fn look(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        flags: fields.get(6)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

/// Tells this boot of the machine from others: times and starts mean nothing across them. Empty
/// where it cannot be told.
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
        assert_eq!((process.runs(), process.leaves()), (Some(true), false));
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
        assert_eq!((process.runs(), process.leaves()), (Some(false), true));
        let unknown = Process { pid: 1, start: None };
        assert_eq!((unknown.runs(), unknown.leaves()), (None, false));
    }
}
