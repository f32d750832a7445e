// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job's outcome in Slurm's books, its `AdminComment`.
//!
//! It is written when the last task of a step has ended on the step's first node: Slurm changes no
//! comment of an ended job. In a batch job only the batch script's own step writes it, so that
//! steps neither wait nor overwrite each other. All waits have one bound. An `AdminComment` that is
//! not weft's stays.
#![forbid(unsafe_code)]

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::task::SlurmJob;

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

/// Most bytes that are read of a command's output.
const OUTPUT_BYTES: u64 = 64 << 10;

/// Writes the outcome of a job's processes of this user. `weft`: the command. An error is one line.
pub fn write(weft: &str, socket: &str, uid: u32, job: SlurmJob) -> Result<(), String> {
    let deadline = Instant::now() + LONGEST_RUN;
    let mut total = String::new();
    for pause in [Duration::ZERO].into_iter().chain(LATER_TRIES) {
        std::thread::sleep(pause);
        let mut history = Command::new(weft);
        let user = uid.to_string();
        history.args(["history", "--gang", &job.gang(), "--user", &user, "--total"]);
        history.env_clear().env("WEFT_SOCKET", socket).current_dir("/");
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
    let number = job.number();
    let mut show = scontrol();
    show.args(["show", "job", &number]);
    if is_of_others(&output(show, deadline)?) {
        return Ok(());
    }
    let mut update = scontrol();
    update.args([
        "update",
        &format!("JobId={number}"),
        &format!("AdminComment={MARK}{line}"),
    ]);
    output(update, deadline).map(drop)
}

/// Slurm's command: a daemon may have no search path. It lies in `bin` next to the daemon's folder,
/// or in a usual place.
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

/// Whether a job, as `scontrol` shows it, has a comment that is not weft's. Texts that the user
/// chose may look like one: with several, none is weft's to replace.
fn is_of_others(shown: &str) -> bool {
    let lines = shown
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("AdminComment="));
    match lines.collect::<Vec<_>>()[..] {
        [] => false,
        [comment] => !comment.is_empty() && !comment.starts_with(MARK),
        _ => true,
    }
}

/// The output of a command that ends well and in time.
fn output(mut command: Command, deadline: Instant) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let wrong = |why: String| format!("{name}: {why}");
    let failed = |error: std::io::Error| wrong(error.to_string());
    // A socket has a bound for reads, and a pipe has none.
    let (own, its) = UnixStream::pair().map_err(failed)?;
    let its_too = its.try_clone().map_err(failed)?;
    command.stdin(Stdio::null());
    command.stdout(OwnedFd::from(its)).stderr(OwnedFd::from(its_too));
    let spawned = command.spawn();
    // It holds the other end.
    drop(command);
    let mut child = spawned.map_err(failed)?;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(wrong(format!("no answer within {} s", LONGEST_RUN.as_secs())));
            }
            Err(error) => return Err(failed(error)),
        }
    };
    let mut text = Vec::new();
    // Its own children may still hold the other end.
    own.set_read_timeout(Some(LOOK)).map_err(failed)?;
    let _ = own.take(OUTPUT_BYTES).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    match status.success() {
        true => Ok(text.trim().to_string()),
        false => Err(wrong(format!("{status}: {}", text.lines().next().unwrap_or_default()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str], bound: Duration) -> Result<String, String> {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        output(command, Instant::now() + bound)
    }

    #[test]
    fn a_comment_of_others_stays() {
        let shown = |lines: &str| is_of_others(&format!("JobId=7 JobName=x\n   WorkDir=/\n{lines}   StdErr=/dev/null"));
        assert!(shown("   AdminComment={\"site\": 1} \n"));
        assert!(!shown("   AdminComment=weft: GPU 3.0 s (41 %) \n") && !shown(""));
        assert!(!shown("   Comment=AdminComment=mine \n"));
        assert!(shown("   AdminComment=weft: x\n   AdminComment=of the site \n"));
    }

    #[test]
    fn a_command_that_fails_is_one_line() {
        assert_eq!(run(&["echo", " GPU 1 s "], LONGEST_RUN).as_deref(), Ok("GPU 1 s"));
        for (words, reason) in [
            (&["sh", "-c", "echo wrong >&2; echo more; exit 3"][..], "wrong"),
            (&["/no/such/weft"], "No such file"),
        ] {
            let why = run(words, LONGEST_RUN).expect_err("it fails");
            assert!(
                why.starts_with(words[0]) && why.contains(reason) && !why.contains('\n'),
                "{why}"
            );
        }
    }

    #[test]
    fn a_command_that_hangs_or_leaves_a_child_is_bounded() {
        const SHORT: Duration = Duration::from_millis(100);
        assert!(run(&["sleep", "60"], SHORT).is_err_and(|why| why.contains("no answer")));
        // The child keeps the output open.
        assert_eq!(
            run(&["sh", "-c", "sleep 5 & echo well"], LONGEST_RUN).as_deref(),
            Ok("well")
        );
        // More than a socket holds.
        assert!(run(&["sh", "-c", "yes | head -c 10000000"], SHORT).is_err());
    }
}
