// SPDX-License-Identifier: MIT OR Apache-2.0
//! The identity of a process, also for a later broker. A pid may be reused; a pid together with a
//! start time is unique.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

/// A process by pid and start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Clock ticks from boot to its start; `None`: not visible, for example in another container.
    pub start: Option<u64>,
}

impl Process {
    /// The process that has this pid now.
    pub fn of(pid: u32) -> Process {
        Process {
            pid,
            start: look(pid).map(|found| found.start),
        }
    }

    /// A process of another pid namespace; its pid may mean another process here.
    pub fn unseen(pid: u32) -> Process {
        Process { pid, start: None }
    }

    /// Whether it runs. A zombie does not: it holds no memory. One whose other threads still run,
    /// or are on their way out, does. `None`: it is not visible.
    pub fn runs(&self) -> Option<bool> {
        let start = self.start?;
        Some(look(self.pid).is_some_and(|found| found.start == start && !found.ended()))
    }

    /// Whether it is exiting or has ended, so that its memory is uncertain. False if it is not
    /// visible.
    pub fn leaves(&self) -> bool {
        /// `PF_EXITING` of the kernel's `include/linux/sched.h`, shown in field 9.
        const EXITING: u64 = 0x4;
        let Some(start) = self.start else { return false };
        look(self.pid).is_none_or(|found| found.start != start || found.flags & EXITING != 0)
    }

    /// Its exit status in the format of wait(2), until its parent has waited for it. Also 0 if the
    /// kernel does not show the status to this user.
    pub fn exit_word(&self) -> Option<i32> {
        let start = self.start?;
        let found = look(self.pid)?;
        (found.start == start && found.ended()).then_some(found.exit_word)
    }

    /// Whether it is suspended (SIGSTOP, Ctrl-Z, a debugger). `None`: it is not visible, or its pid
    /// was reused.
    pub fn suspended(&self) -> Option<bool> {
        let start = self.start?;
        let found = look(self.pid)?;
        (found.start == start).then_some(matches!(found.state, 'T' | 't'))
    }
}

/// Whether the process of this pid is suspended. False if it is not visible.
pub fn is_stopped(pid: u32) -> bool {
    look(pid).is_some_and(|found| matches!(found.state, 'T' | 't'))
}

/// Fields 3, 9, 20, 22 and 52 of `/proc/PID/stat` (proc_pid_stat(5)).
struct Stat {
    /// State of the first thread.
    state: char,
    flags: u64,
    threads: u64,
    start: u64,
    exit_word: i32,
}

impl Stat {
    /// Whether all threads have ended: the last one releases the memory and closes the files.
    fn ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }
}

/// Reads the fields after the last `)`: the name before it may contain any character.
fn look(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        flags: fields.get(6)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
        exit_word: fields.get(49)?.parse().ok()?,
    })
}

/// Id of this boot; start times have no meaning across boots. Empty if it is not known.
pub fn boot() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn one_whose_first_thread_ended_runs_until_the_last_one_has() {
        let code = "import ctypes, sys, threading\n\
                    threading.Thread(target=sys.stdin.read).start()\n\
                    ctypes.CDLL(None).pthread_exit(None)";
        let mut child = Command::new("python3")
            .args(["-c", code])
            .stdin(Stdio::piped())
            .spawn()
            .expect("python3 is a requirement of the tests");
        let process = Process::of(child.id());
        let wait_for = |what: &dyn Fn() -> bool| {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while !what() {
                assert!(std::time::Instant::now() < deadline, "{process:?}");
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        };
        wait_for(&|| look(process.pid).is_some_and(|found| found.state == 'Z'));
        assert_eq!((process.runs(), process.exit_word()), (Some(true), None));
        drop(child.stdin.take());
        wait_for(&|| process.runs() == Some(false));
        child.wait().expect("it is ours");
    }

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
        // It becomes a zombie; wait until the kernel shows that.
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
