// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slurm's own commands, each with a bound on its time.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Interval at which a command is checked for its end.
const ASKED_EVERY: Duration = Duration::from_millis(5);

/// How a command ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// Its exit code; `None` if it was killed or never began.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Reason of a failure.
    pub trouble: Option<CommandTrouble>,
}

/// Reason why a command failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandTrouble {
    /// It is not in `PATH`.
    NotThere,
    /// It took longer than its bound.
    TooLong,
    /// It reported an error.
    Failed,
}

impl Done {
    /// Its first two lines of output in one line, stderr first.
    pub fn said(&self) -> String {
        let lines = self.stderr.lines().chain(self.stdout.lines()).map(str::trim);
        lines
            .filter(|line| !line.is_empty())
            .take(2)
            .collect::<Vec<_>>()
            .join("; ")
    }
}

/// Means to carry out commands.
pub trait Hands: Sync {
    /// Runs a command until its end or its bound.
    fn run(&self, words: &[String]) -> Done;
}

/// Commands as processes of this machine.
#[derive(Debug, Clone, Copy)]
pub struct RealHands {
    /// Longest time that a command may take.
    pub longest: Duration,
}

impl Hands for RealHands {
    fn run(&self, words: &[String]) -> Done {
        let failed = |trouble, stderr: String| Done {
            trouble: Some(trouble),
            stderr,
            ..Done::default()
        };
        let Some((program, rest)) = words.split_first() else {
            return failed(CommandTrouble::NotThere, String::new());
        };
        let mut command = Command::new(program);
        // A group of its own, so that its children end with it.
        command.args(rest).env("SLURM_BITSTR_LEN", "0").process_group(0);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return failed(CommandTrouble::NotThere, error.to_string()),
        };
        let stdout = reader(child.stdout.take());
        let stderr = reader(child.stderr.take());
        let code = self.wait(&mut child);
        let read = |pipe: thread::JoinHandle<String>| pipe.join().unwrap_or_default();
        let (stdout, stderr) = (read(stdout), read(stderr));
        let trouble = match code {
            None => Some(CommandTrouble::TooLong),
            Some(0) => None,
            Some(_) => Some(CommandTrouble::Failed),
        };
        Done {
            code,
            stdout,
            stderr,
            trouble,
        }
    }
}

impl RealHands {
    fn wait(&self, child: &mut Child) -> Option<i32> {
        let begin = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Some(status.code().unwrap_or(-1)),
                Ok(None) if begin.elapsed() < self.longest => thread::sleep(ASKED_EVERY),
                _ => break,
            }
        }
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
        None
    }
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The words of an `scontrol update` command.
pub fn update(job: &str, nice: i64, comment: Option<&str>) -> Vec<String> {
    let mut words = vec!["scontrol".to_string(), "update".to_string()];
    words.push(format!("JobId={job}"));
    words.push(format!("Nice={nice}"));
    words.extend(comment.map(|comment| format!("AdminComment={comment}")));
    words
}

/// The words of an `scontrol requeue` command.
pub fn requeue(job: &str) -> Vec<String> {
    ["scontrol", "requeue", job].map(str::to_string).to_vec()
}

/// Whether Slurm reports that the job no longer exists.
pub fn gone(said: &str) -> bool {
    said.contains("already finished") || said.contains("Invalid job id")
}

/// Whether Slurm reports that this user lacks the permission.
pub fn forbidden(done: &Done) -> bool {
    let said = done.said().to_lowercase();
    ["permission denied", "invalid user id", "access denied"]
        .iter()
        .any(|words| said.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, longest: Duration) -> Done {
        RealHands { longest }.run(&["sh", "-c", script].map(str::to_string))
    }

    #[test]
    fn a_command_has_a_bound_with_all_that_it_starts() {
        let begin = Instant::now();
        let done = shell("sleep 600 & sleep 600", Duration::from_millis(50));
        assert_eq!((done.code, done.trouble), (None, Some(CommandTrouble::TooLong)));
        // The pipes are closed: the other sleep is gone too.
        assert!(begin.elapsed() < Duration::from_secs(300));
    }

    #[test]
    fn what_a_command_says_is_kept() {
        let long = Duration::from_secs(60);
        let done = shell("echo a; echo 'Invalid user id for job 1' >&2; exit 3", long);
        assert_eq!((done.code, done.trouble), (Some(3), Some(CommandTrouble::Failed)));
        assert_eq!(done.said(), "Invalid user id for job 1; a");
        assert!(forbidden(&done));
        assert_eq!(shell("true", long).trouble, None);
        let none = RealHands { longest: long }.run(&["no-such-program-of-slurm".to_string()]);
        assert_eq!(none.trouble, Some(CommandTrouble::NotThere));
    }

    #[test]
    fn a_nice_value_and_its_mark_are_one_command() {
        assert_eq!(
            update("7_[1-5]", -40, Some("weft:nice=0")),
            [
                "scontrol",
                "update",
                "JobId=7_[1-5]",
                "Nice=-40",
                "AdminComment=weft:nice=0"
            ]
        );
        assert_eq!(update("7", 0, None), ["scontrol", "update", "JobId=7", "Nice=0"]);
    }
}
