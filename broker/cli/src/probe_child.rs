// SPDX-License-Identifier: MIT OR Apache-2.0
//! `weft probe` in a separate process, which may hang or crash without harm.
#![forbid(unsafe_code)]

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::probe::DriverReport;

/// Time after which a driver counts as hanging. The first start after boot takes a few seconds.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// A separate process's view of this driver.
pub fn driver(path: &Path) -> Result<DriverReport, String> {
    let program = std::fs::read_link("/proc/self/exe").map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["probe", "--device"]).arg(path).env_remove("LD_PRELOAD");
    run(&mut command, PROBE_TIMEOUT)
}

/// Runs a probe for at most this time and parses its line.
pub fn run<T: serde::de::DeserializeOwned>(command: &mut Command, within: Duration) -> Result<T, String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("the probe did not start: {error}"))?;
    let deadline = Instant::now() + within;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("the driver did not answer within {within:?}"));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => return Err(format!("the probe was lost: {error}")),
        }
    };
    if !status.success() {
        return Err(format!("a process that opened the driver ended with {status}"));
    }
    // Waiting first cannot block: a pipe holds 64 KiB, far more than a probe prints. Only data in
    // the pipe is read, because a process of the driver may hold the pipe open.
    let mut said = Vec::new();
    if let Some(mut out) = child.stdout.take() {
        let mut block = [0u8; 65536];
        if let Ok(length) = out.read(&mut block) {
            said.extend(&block[..length]);
        }
    }
    // The driver may print lines too; the last line is the probe's.
    let text = String::from_utf8_lossy(&said);
    let line = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or("");
    serde_json::from_str(line).map_err(|error| format!("cannot parse the probe's answer: {error}"))
}
