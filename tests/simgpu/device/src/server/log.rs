// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log, `SIMGPU_LOG`: one JSON object a line for each operation that reached the device, in the
//! order of the operations' ends.
//!
//! ```json
//! {"t":5000,"end":47000,"submitted":0,"pid":17,"process":"python","ctx":0,"stream":1,"seq":3,"op":"kernel","name":"axpy","grid":[4,1,1],"block":[256,1,1],"shared":0,"bytes":null,"direction":null,"graph":null}
//! ```
//!
//! Times are device ns. `op` is kernel, copy, memset, event, wait or host; with `log_switches` also
//! switch. A kernel that was stopped for another context has `"slices":[[from,to],…]`. One that
//! went with its context while it ran has `"aborted":true`; an operation that had not begun by then
//! has no line. An operation on a stream of another priority than 0 has `"priority":-1`.
//!
//! The file is appended to, and written out before the device sleeps and before it answers a status
//! request. If it cannot be written the device continues without it, and the status reports the
//! error.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use weft_engine::{Direction, Ns};

use super::client::Client;
use super::in_flight::Meta;
use crate::config::Config;
use crate::op::Op;

/// Text kept before it is written, bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Ended,
    Aborted,
}

/// The log, see the module.
pub(super) struct Log {
    path: PathBuf,
    file: Option<File>,
    text: String,
    lines: u64,
    trouble: Option<String>,
    switches: bool,
}

impl Log {
    /// The log that the environment asks for.
    pub(super) fn from_environment(config: &Config) -> Option<Log> {
        let path = std::env::var_os("SIMGPU_LOG").filter(|path| !path.is_empty())?;
        Some(Log::open(Path::new(&path), config.device.log_switches))
    }

    fn open(path: &Path, switches: bool) -> Log {
        let opened = File::options().create(true).append(true).open(path);
        let (file, trouble) = match opened {
            Ok(file) => (Some(file), None),
            Err(error) => (None, Some(format!("no log: cannot write {}: {error}", path.display()))),
        };
        Log {
            path: path.to_owned(),
            file,
            text: String::new(),
            lines: 0,
            trouble,
            switches,
        }
    }

    /// Reason for which the log is incomplete.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    #[allow(clippy::too_many_arguments, reason = "all of them go into one line")]
    pub(super) fn operation(
        &mut self,
        client: &Client,
        meta: &Meta,
        name: &str,
        start: Ns,
        end: Ns,
        fate: Fate,
        segments: &[(Ns, Ns)],
    ) {
        if self.file.is_none() {
            return;
        }
        let process = serde_json::Value::from(client.name.as_str());
        // Writing to a String cannot fail.
        let _ = write!(
            self.text,
            r#"{{"t":{start},"end":{end},"submitted":{},"pid":{},"process":{process},"ctx":{},"stream":{},"seq":{},"op":"{}","name":{name}"#,
            meta.submitted,
            client.pid,
            meta.ctx,
            meta.stream,
            meta.seq.count(),
            kind(meta.op),
        );
        if let Op::Kernel(launch) = meta.op {
            let _ = write!(
                self.text,
                r#","grid":{:?},"block":{:?},"shared":{}"#,
                launch.grid, launch.block, launch.shared
            );
        } else {
            self.text.push_str(r#","grid":null,"block":null,"shared":null"#);
        }
        let bytes = match meta.op {
            Op::Copy { bytes, .. } | Op::Prefetch { bytes, .. } | Op::Discard { bytes, .. } | Op::Memset { bytes } => {
                Some(bytes)
            }
            _ => None,
        };
        let direction = match meta.op {
            Op::Copy { direction, .. } => Some(match direction {
                Direction::HostToDevice => "h2d",
                Direction::DeviceToHost => "d2h",
                Direction::DeviceToDevice => "d2d",
            }),
            Op::Prefetch { to_host, .. } => Some(if to_host { "d2h" } else { "h2d" }),
            _ => None,
        };
        let _ = match bytes {
            Some(bytes) => write!(self.text, r#","bytes":{bytes}"#),
            None => write!(self.text, r#","bytes":null"#),
        };
        let _ = match direction {
            Some(direction) => write!(self.text, r#","direction":"{direction}""#),
            None => write!(self.text, r#","direction":null"#),
        };
        let _ = match meta.graph {
            0 => write!(self.text, r#","graph":null"#),
            graph => write!(self.text, r#","graph":{graph}"#),
        };
        if meta.priority != 0 {
            let _ = write!(self.text, r#","priority":{}"#, meta.priority);
        }
        if !segments.is_empty() {
            self.text.push_str(r#","slices":["#);
            for (index, (from, to)) in segments.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let _ = write!(self.text, "{comma}[{from},{to}]");
            }
            self.text.push(']');
        }
        if fate == Fate::Aborted {
            self.text.push_str(r#","aborted":true"#);
        }
        self.end_line();
    }

    /// The compute engine changed hands.
    pub(super) fn switch(&mut self, pid: u32, ctx: u32, start: Ns, end: Ns) {
        if self.switches && self.file.is_some() {
            let _ = write!(
                self.text,
                r#"{{"t":{start},"end":{end},"pid":{pid},"ctx":{ctx},"op":"switch""#
            );
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        self.text.push_str("}\n");
        self.lines += 1;
        if self.text.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Writes out the text. A log that cannot be written is given up: half a line would spoil the
    /// rest.
    pub(super) fn flush(&mut self) {
        if self.text.is_empty() {
            return;
        }
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(self.text.as_bytes())
        {
            self.trouble = Some(format!("log given up: {}: {error}", self.path.display()));
            self.file = None;
        }
        self.text.clear();
    }
}

fn kind(op: Op) -> &'static str {
    match op {
        Op::Kernel(_) => "kernel",
        Op::Copy { .. } => "copy",
        Op::Prefetch { .. } => "prefetch",
        Op::Discard { .. } => "discard",
        Op::Memset { .. } => "memset",
        Op::Marker | Op::Record { .. } => "event",
        Op::WaitFor(_) => "wait",
        Op::Host => "host",
    }
}
