// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs probes one after another, each in a process of its own with a bound on its time.
//!
//! Invariants: a probe that fails, hangs or crashes ends with one line that reports it, and the
//! next one runs. The budget is kept to within the time of ending a process. Only processes started
//! here are ended, by their id. Lines are printed whole, as they are made.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::bench::ProbeOptions;
use crate::probe::Probe;
use crate::process::{SELF, lines_of};
use crate::report::Report;

/// Least time left for beginning a probe: opening a device takes up to a second.
const LEAST: Duration = Duration::from_secs(2);
/// Share of a probe's time after which its loops end by themselves.
const SOFT: f64 = 0.6;
/// Longest wait for the first line about the device.
const ABOUT: Duration = Duration::from_secs(60);

/// Exit codes of a child.
pub mod code {
    /// Its last line gives the reason of the failure.
    pub const FAILED: i32 = 1;
    /// There is no driver, or no device.
    pub const NO_DRIVER: i32 = 3;
}

/// How one child ended.
#[derive(Debug, PartialEq, Eq)]
enum ProbeEnd {
    Good,
    /// Its last line gives the reason.
    Failed,
    /// Without a line; the text describes how.
    Crashed(String),
    NoDriver,
    TooLong,
}

/// Runs the probes in `budget`. Returns whether there was a device at all.
pub fn all(probes: &[&Probe], budget: Duration, options: &ProbeOptions) -> Result<bool> {
    let begin = Instant::now();
    let _awake = awake();
    match child("about", budget.min(ABOUT), options)? {
        ProbeEnd::Good => {}
        ProbeEnd::NoDriver => return Ok(false),
        ProbeEnd::Failed => {}
        ProbeEnd::Crashed(how) => Report::new("about", false).error(&how),
        ProbeEnd::TooLong => Report::new("about", false).error("the device did not answer in time"),
    }
    let (mut good, mut failed, mut left_out) = (0, Vec::new(), Vec::new());
    for (at, probe) in probes.iter().enumerate() {
        let left = budget.saturating_sub(begin.elapsed());
        let report = Report::new(probe.name, false);
        if left < LEAST {
            report.skipped("no time left of the budget");
            left_out.push(probe.name);
            continue;
        }
        let is_last = at + 1 == probes.len();
        let share = if is_last { left } else { fair(left) };
        let limit = share.min(Duration::from_secs(probe.seconds));
        match child(probe.name, limit, options)? {
            ProbeEnd::Good => {
                good += 1;
                continue;
            }
            ProbeEnd::Failed => {}
            ProbeEnd::Crashed(how) => report.error(&how),
            ProbeEnd::NoDriver => report.error("the driver is gone"),
            ProbeEnd::TooLong => report.error(&format!("did not end within {:.1} s", limit.as_secs_f64())),
        }
        failed.push(probe.name);
    }
    let end = Report::new("end", false).facts();
    end.and("good", good)
        .and("failed", failed)
        .and("left_out", left_out)
        .and("seconds", (begin.elapsed().as_secs_f64() * 10.0).round() / 10.0)
        .print();
    Ok(true)
}

/// Most time of one probe: one that hangs leaves time for the others.
fn fair(left: Duration) -> Duration {
    /// Time below which no probe measures much.
    const ENOUGH: Duration = Duration::from_secs(8);
    (left / 2).max(ENOUGH).min(left)
}

/// The device files, held open while probes run: an unused device forgets its state, and each probe
/// would wait a second or more for its start. This sets nothing.
fn awake() -> Vec<std::fs::File> {
    let Ok(entries) = std::fs::read_dir("/dev") else {
        return Vec::new();
    };
    let is_device = |name: &str| {
        let number = name.strip_prefix("nvidia").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    entries
        .flatten()
        .filter(|entry| is_device(&entry.file_name().to_string_lossy()))
        .filter_map(|entry| std::fs::File::open(entry.path()).ok())
        .collect()
}

/// Runs one probe in a process of its own and passes its lines on.
fn child(name: &str, limit: Duration, options: &ProbeOptions) -> Result<ProbeEnd> {
    let mut command = Command::new(SELF);
    command
        .args(["child", name, "--parent", &std::process::id().to_string()])
        .args(["--seconds", &format!("{:.3}", limit.as_secs_f64() * SOFT)])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if let Some(pipe) = &options.mps_pipe {
        command.arg("--mps-pipe").arg(pipe);
    }
    if let Some(library) = &options.cupti {
        command.arg("--cupti").arg(library);
    }
    let end = Instant::now() + limit;
    let mut process = command.spawn().context("a probe's process does not start")?;
    let lines = lines_of(&mut process)?;
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let mut out = std::io::stdout().lock();
                writeln!(out, "{line}").and_then(|()| out.flush()).context("stdout")?;
            }
            Err(RecvTimeoutError::Timeout) => {
                let _ = process.kill();
                let _ = process.wait();
                return Ok(ProbeEnd::TooLong);
            }
            // Its output is closed: it has ended or is about to.
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    loop {
        if let Some(status) = process.try_wait().context("a probe's process")? {
            return Ok(match status.code() {
                Some(0) => ProbeEnd::Good,
                Some(code::FAILED) => ProbeEnd::Failed,
                Some(code::NO_DRIVER) => ProbeEnd::NoDriver,
                _ => ProbeEnd::Crashed(format!("its process ended with {status}")),
            });
        }
        if Instant::now() > end {
            let _ = process.kill();
            let _ = process.wait();
            return Ok(ProbeEnd::TooLong);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_probe_never_gets_all_that_is_left_where_there_is_enough() {
        let fair = |seconds| fair(Duration::from_secs(seconds)).as_secs();
        assert_eq!([fair(100), fair(10), fair(5)], [50, 8, 5]);
    }
}
