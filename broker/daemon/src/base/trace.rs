// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trace file: records and decisions, one JSON value per line.
//!
//! Lines are
//! `{"t":NS,"client":N,"pid":P,"event":"launch|graph|transfer|idle|wait|hint|attached|gone|mode|grant|revoke|name", ...}`,
//! and for managed memory, at each change, [`MemoryFigures`] with the event `memory`.
//!
//! A separate thread writes, so a slow disk delays no decision. Lines that do not fit are dropped;
//! the last line has their number.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;

use weft_protocol::Ns;

/// Lines that may wait for the disk: about 0.5 s at 100,000 lines/s.
const WAITING: usize = 65_536;

/// Longest time a line stays in memory.
const FLUSH: Duration = Duration::from_millis(200);

/// One line.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Time, ns of `CLOCK_MONOTONIC`.
    pub t: Ns,
    /// Client number.
    pub client: u64,
    /// Process id.
    pub pid: u32,
    /// The event's name.
    pub event: &'static str,
    /// The kernel's hash, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Predicted time or credit, ns; the meaning depends on the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns: Option<i64>,
    /// A mode, an ending or a command, depending on the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
}

/// A client's managed memory, bytes, with the meanings of `weft status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MemoryFigures {
    /// Managed memory in all.
    pub managed: u64,
    /// Working set.
    pub working_set: u64,
    /// On the device; an estimate.
    pub resident: u64,
    /// Moved to the device ahead of use, so far.
    pub prefetched: u64,
    /// Moved to the host, so far.
    pub evicted: u64,
    /// Discarded without a copy, so far.
    pub discarded: u64,
    /// Moved to the device by page faults, so far; an estimate.
    pub faulted: u64,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Row {
    Line(Line),
    Memory {
        t: Ns,
        client: u64,
        pid: u32,
        event: &'static str,
        #[serde(flatten)]
        memory: MemoryFigures,
    },
}

/// A handle to the trace file.
#[derive(Debug)]
pub struct Trace {
    lines: Option<SyncSender<Row>>,
    writer: Option<JoinHandle<()>>,
    dropped: u64,
}

impl Trace {
    /// A trace that writes nothing.
    pub fn none() -> Trace {
        Trace {
            lines: None,
            writer: None,
            dropped: 0,
        }
    }

    /// Creates the file and starts the writer.
    pub fn to(path: &Path) -> std::io::Result<Trace> {
        let mut file = BufWriter::new(File::create(path)?);
        let (lines, incoming) = sync_channel::<Row>(WAITING);
        let writer = std::thread::Builder::new().name("weft-trace".into()).spawn(move || {
            loop {
                let outcome = match incoming.recv_timeout(FLUSH) {
                    Ok(line) => serde_json::to_writer(&mut file, &line)
                        .map_err(std::io::Error::from)
                        .and_then(|()| file.write_all(b"\n")),
                    Err(RecvTimeoutError::Timeout) => file.flush(),
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                if let Err(error) = outcome {
                    log::warn!("the trace ends here: {error}");
                    return;
                }
            }
            let _ = file.flush();
        })?;
        Ok(Trace {
            lines: Some(lines),
            writer: Some(writer),
            dropped: 0,
        })
    }

    /// Whether lines are written.
    pub fn wanted(&self) -> bool {
        self.lines.is_some()
    }

    /// A second handle. Drop it before the first, which waits for the last line.
    pub fn another(&self) -> Trace {
        Trace {
            lines: self.lines.clone(),
            writer: None,
            dropped: 0,
        }
    }

    /// Writes a line, if lines are wanted. Never waits.
    pub fn line(&mut self, line: impl FnOnce() -> Line) {
        self.row(|| Row::Line(line()));
    }

    /// Writes a client's managed memory. Never waits.
    pub fn memory(&mut self, t: Ns, client: u64, pid: u32, memory: MemoryFigures) {
        self.row(|| Row::Memory {
            t,
            client,
            pid,
            event: "memory",
            memory,
        });
    }

    fn row(&mut self, row: impl FnOnce() -> Row) {
        let Some(lines) = &self.lines else { return };
        match lines.try_send(row()) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.dropped += 1,
            Err(TrySendError::Disconnected(_)) => self.lines = None,
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some(lines) = self.lines.take()
            && self.dropped > 0
        {
            let _ = lines.send(Row::Line(Line {
                t: super::clock::now(),
                client: 0,
                pid: 0,
                event: "dropped",
                kernel: None,
                ns: i64::try_from(self.dropped).ok(),
                what: None,
            }));
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_json_and_whole() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("trace");
        let mut trace = Trace::to(&path).expect("opened");
        for number in 0..1000 {
            trace.line(|| Line {
                t: number,
                client: 1,
                pid: 2,
                event: "launch",
                kernel: Some(format!("{number:x}")),
                ns: Some(5),
                what: None,
            });
        }
        let memory = MemoryFigures {
            resident: 4096,
            faulted: 77,
            ..MemoryFigures::default()
        };
        trace.another().memory(1000, 1, 2, memory);
        drop(trace);
        let text = std::fs::read_to_string(&path).expect("read");
        let values: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(values.len(), 1001);
        assert_eq!(
            (&values[1000]["event"], &values[1000]["faulted"]),
            (&"memory".into(), &77.into())
        );
        assert_eq!(values[7]["t"], 7);
    }
}
