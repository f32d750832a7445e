// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job's outcome in Slurm's books, its `AdminComment`: written at the end of each step, on the
//! step's first node.
//!
//! `weft history` runs as the job's user, so it shows only what that user's processes did. Every
//! wait is bounded. An `AdminComment` that is not weft's stays.
#![forbid(unsafe_code)]

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The beginning of weft's comments.
const MARK: &str = "weft: ";

/// Longest run of all commands together. They wait for the broker or the controller.
const LONGEST_RUN: Duration = Duration::from_secs(10);

/// Time between two looks at a command that runs.
const LOOK: Duration = Duration::from_millis(10);

/// Times of the tries to find the outcome, after the first one. The broker stores it within some
/// tenths of a second, and does not know jobs that never used the GPU.
const LATER_TRIES: [Duration; 4] = [Duration::from_millis(200); 4];

/// Longest comment, characters.
const LONGEST: usize = 200;

/// Writes the outcome of a job's processes. `weft`: the command. An error is one line.
pub fn write(weft: &str, socket: &str, uid: u32, gang: &str, job: u32) -> Result<(), String> {
    let deadline = Instant::now() + LONGEST_RUN;
    let mut total = String::new();
    for pause in [Duration::ZERO].into_iter().chain(LATER_TRIES) {
        std::thread::sleep(pause);
        let mut history = Command::new(weft);
        history.args(["history", "--gang", gang, "--total"]);
        history.env_clear().env("WEFT_SOCKET", socket).current_dir("/").uid(uid);
        let before = std::mem::replace(&mut total, output(history, deadline)?);
        // Rows of several processes may come one after the other.
        if !total.is_empty() && total == before {
            break;
        }
    }
    let line: String = total.lines().next().unwrap_or_default().chars().take(LONGEST).collect();
    if line.is_empty() {
        return Ok(());
    }
    let mut show = scontrol();
    show.args(["--oneliner", "show", "job", &job.to_string()]);
    if is_of_others(&output(show, deadline)?) {
        return Ok(());
    }
    let mut update = scontrol();
    update.args(["update", &format!("JobId={job}"), &format!("AdminComment={MARK}{line}")]);
    output(update, deadline).map(drop)
}

/// Slurm's command: an epilog has no search path. It lies in `bin` next to the daemon's folder, or
/// in a usual place.
fn scontrol() -> Command {
    let daemon = std::env::current_exe().unwrap_or_default();
    let near = daemon
        .parent()
        .and_then(Path::parent)
        .map(|prefix| prefix.join("bin/scontrol"));
    match near.filter(|near| near.exists()) {
        Some(near) => Command::new(near),
        None => Command::new("scontrol"),
    }
}

/// Whether a job, as `scontrol` shows it, has a comment that is not weft's.
fn is_of_others(shown: &str) -> bool {
    let comment = shown
        .split_once("AdminComment=")
        .map_or("", |(_, comment)| comment.trim_start());
    !comment.is_empty() && !comment.starts_with(MARK)
}

/// The output of a command that ends well and in time.
fn output(mut command: Command, deadline: Instant) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let wrong = |why: String| format!("{name}: {why}");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| wrong(error.to_string()))?;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(wrong(format!(
                    "no answer {} s after the step's end",
                    LONGEST_RUN.as_secs()
                )));
            }
            Err(error) => return Err(wrong(error.to_string())),
        }
    };
    if !status.success() {
        return Err(wrong(status.to_string()));
    }
    let mut text = String::new();
    // A pipe holds 64 KiB, more than these commands print.
    let read = child
        .stdout
        .take()
        .map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut text));
    read.map_err(|error| wrong(error.to_string()))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_of_others_stays() {
        let shown = |comment: &str| format!("JobId=7 JobName=x AdminComment={comment} StdErr=/dev/null Power=");
        assert!(is_of_others(&shown("{\"site\": 1}")));
        assert!(!is_of_others(&shown("weft: GPU 3.0 s (41 %)")));
        assert!(!is_of_others("JobId=7 JobName=x StdErr=/dev/null"));
    }

    #[test]
    fn a_command_that_fails_is_one_line() {
        let run = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            output(command, Instant::now() + LONGEST_RUN)
        };
        assert_eq!(run(&["echo", "GPU 1 s"]).as_deref(), Ok("GPU 1 s\n"));
        for words in [&["false"][..], &["/no/such/weft"]] {
            let why = run(words).expect_err("it fails");
            assert!(why.starts_with(words[0]) && !why.contains('\n'), "{why}");
        }
    }
}
