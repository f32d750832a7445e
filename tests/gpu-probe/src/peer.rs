// SPDX-License-Identifier: MIT OR Apache-2.0
//! Further processes of a probe, each with a context of its own: one line in, one line out.
//!
//! Invariants: a peer ends with the probe that started it (when dropped, and by the kernel when the
//! probe dies), and every wait for it has a bound.
#![forbid(unsafe_code)]

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::host;
use crate::process::{SELF, lines_of};

/// Begin of a peer's line after a failure.
const FAILED: &str = "failed: ";
/// The variable by which programs find an MPS daemon, the place without it, and a value with which
/// they find none.
const MPS_PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const MPS_USUAL: &str = "/tmp/nvidia-mps";
const NO_MPS: &str = "/nonexistent/weft-gpu-probe";

/// A further process.
pub struct Peer {
    process: Child,
    lines: Receiver<String>,
    input: ChildStdin,
    role: String,
}

/// MPS daemon of a peer.
#[derive(Debug, Clone, Copy)]
pub enum Mps<'a> {
    /// None, even if there is one in the usual place.
    Without,
    /// The one with this pipe directory.
    Pipe(&'a Path),
}

impl Peer {
    /// Starts a peer. It opens the device at its first request.
    pub fn start(role: &str, mps: Mps<'_>) -> Result<Peer> {
        let mut command = Command::new(SELF);
        command
            .args(["peer", role, "--parent", &std::process::id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        match mps {
            Mps::Pipe(pipe) => {
                command.env(MPS_PIPE, pipe);
            }
            // Only if a daemon could be found.
            Mps::Without if std::env::var_os(MPS_PIPE).is_some() || Path::new(MPS_USUAL).exists() => {
                command.env(MPS_PIPE, NO_MPS);
            }
            Mps::Without => {}
        }
        let mut process = command.spawn().context("a further process does not start")?;
        let lines = lines_of(&mut process)?;
        let input = process.stdin.take().context("the process has no input")?;
        Ok(Peer {
            process,
            lines,
            input,
            role: role.to_owned(),
        })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends it a line.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}").with_context(|| format!("the {} process takes no line", self.role))
    }

    /// Waits for its answer.
    pub fn hear(&mut self, bound: Duration) -> Result<String> {
        self.listen(bound)?
            .with_context(|| format!("the {} process did not answer within {bound:?}", self.role))
    }

    /// Its answer, if one comes within `bound`.
    pub fn listen(&mut self, bound: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(bound) {
            Ok(line) => match line.strip_prefix(FAILED) {
                Some(what) => bail!("the {} process: {what}", self.role),
                None => Ok(Some(line)),
            },
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the {} process ended", self.role),
        }
    }

    /// Sends a line and waits for the answer.
    pub fn ask(&mut self, line: &str, bound: Duration) -> Result<String> {
        self.tell(line)?;
        self.hear(bound)
    }

    /// [`Peer::ask`] for an answer of numbers.
    pub fn ask_numbers(&mut self, line: &str, bound: Duration) -> Result<Vec<f64>> {
        numbers(&self.ask(line, bound)?)
    }
}

/// The numbers of an answer.
pub fn numbers(line: &str) -> Result<Vec<f64>> {
    line.split_whitespace()
        .map(|word| word.parse().with_context(|| format!("{word:?} is no number")))
        .collect()
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The behaviour of a peer.
pub trait Role {
    /// Carries out a line. Returns the answer.
    fn answer(&mut self, line: &str) -> Result<String>;
}

/// Makes this process a peer of process `parent`: it answers by `role` until its input ends.
pub fn run(mut role: Box<dyn Role>, parent: u32) -> Result<()> {
    host::end_with_parent(parent)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.context("stdin")?;
        let answer = role
            .answer(line.trim())
            .unwrap_or_else(|error| format!("{FAILED}{}", format!("{error:#}").replace('\n', " ")));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}").and_then(|()| out.flush()).context("stdout")?;
    }
    Ok(())
}

/// Rest of a bound.
pub fn left(until: Instant) -> Duration {
    // Never zero, so that an answer that has already come is taken.
    until
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(200))
}
