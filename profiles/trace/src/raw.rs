// SPDX-License-Identifier: MIT OR Apache-2.0
//! File of a recorder, written while the job runs.
//!
//! The job's process writes it at little cost, and may be killed at any moment; [`super::assemble`]
//! makes a [`super::Trace`] of it. After [`MAGIC`], a record is its length (two bytes,
//! little-endian) and that many bytes of bincode. A torn last record is left out. The format is
//! private to one version of weft.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use serde::{Deserialize, Serialize};
use weft_kernel_id::KernelId;
use weft_profiles::{GpuIdentity, Ns, format::Problem};

use super::{Direction, TraceError, codec::FORMAT};

/// First bytes of a file: its kind and its format.
pub const MAGIC: [u8; 8] = *b"weftRAW3";

/// Longest record, bytes: a graph of [`MOST_NODES`] kernels, or the longest symbol.
const MAX_RECORD_BYTES: usize = u16::MAX as usize;

/// Most kernels that a graph's record names. Each takes ten of [`MAX_RECORD_BYTES`].
pub const MOST_NODES: usize = 6_000;

/// A record of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// Device of the process.
    Device(GpuIdentity),
    /// A kernel's identity.
    Kernel {
        /// Hash of the kernel.
        hash: u64,
        /// Identity of the kernel.
        id: KernelId,
    },
    /// Content of a graph.
    Graph {
        /// Hash of the graph.
        hash: u64,
        /// Hashes of its kernels, the first [`MOST_NODES`].
        kernels: Vec<u64>,
    },
    /// Start of a step.
    Mark(MarkTime),
    /// End of a step; no step begins.
    Stop(MarkTime),
    /// A call.
    Operation(TimedCall),
    /// The recorder gave up, for this reason; later calls are missing.
    Ended(String),
}

/// Time of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkTime {
    /// Host thread.
    pub thread: u32,
    /// Place among the operations.
    pub sequence: u64,
    /// When the call came in, host ns.
    pub entered: Ns,
    /// When the job continued, host ns.
    pub left: Ns,
    /// Time since the thread's previous call in which the ready thread had no processor, ns: not
    /// the job's.
    pub preempted: Ns,
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TimedCall {
    /// Host thread.
    pub thread: u32,
    /// Place among the operations, by entry.
    pub sequence: u64,
    /// Kind of the call.
    pub what: CallKind,
    /// When the call came in, host ns.
    pub entered: Ns,
    /// See [`MarkTime::preempted`].
    pub preempted: Ns,
    /// When the driver was called, host ns.
    pub called: Ns,
    /// When the driver returned, host ns.
    pub returned: Ns,
    /// When the job continued, host ns.
    pub left: Ns,
    /// Device times of the events around the work, ns, if it was timed.
    pub device: Option<(f64, f64)>,
    /// Device time of an event, ns: from the later event to one more, if recorded.
    pub tick: Option<f64>,
}

/// Kind of a call. Streams and events are given by handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallKind {
    /// A kernel or a graph; hash 0 if unknown.
    Launch {
        /// Hash of the kernel or graph.
        hash: u64,
        /// Stream of the launch.
        stream: u64,
    },
    /// A copy or a fill.
    Copy {
        /// Direction.
        direction: Direction,
        /// Size, bytes.
        bytes: u64,
        /// Stream of the copy.
        stream: u64,
        /// Whether the call waits for the copy's end.
        waits: bool,
    },
    /// The host waits for all work.
    SyncAll,
    /// The host waits for a stream.
    SyncStream(u64),
    /// The host waits for an event.
    SyncEvent(u64),
    /// Records an event.
    Record {
        /// The event.
        event: u64,
        /// Stream of the recording.
        stream: u64,
    },
    /// A stream waits for an event.
    Wait {
        /// The event.
        event: u64,
        /// Stream that waits.
        stream: u64,
    },
}

/// Appends a record to `bytes`. If the record is too long, leaves it out and returns `false`.
pub fn append(bytes: &mut Vec<u8>, record: &Record) -> bool {
    let begin = bytes.len();
    bytes.extend_from_slice(&[0; 2]);
    let config = bincode::config::standard();
    let done = bincode::serde::encode_into_std_write(record, bytes, config);
    let length = bytes.len() - begin - 2;
    let fits = done.is_ok() && length <= MAX_RECORD_BYTES;
    match (fits, bytes.get_mut(begin..begin + 2)) {
        (true, Some(head)) => {
            head.copy_from_slice(&(length as u16).to_le_bytes());
            true
        }
        _ => {
            bytes.truncate(begin);
            false
        }
    }
}

/// Content of a recorder's file.
#[derive(Debug, Default)]
pub struct RecorderFile {
    /// The device.
    pub gpu: GpuIdentity,
    /// Hash to kernel.
    pub kernels: HashMap<u64, KernelId>,
    /// Hash to the hashes of a graph's kernels.
    pub graphs: HashMap<u64, Vec<u64>>,
    /// Marks, stops and operations, by sequence.
    pub events: Vec<Record>,
    /// Reason for which the recorder gave up, if it did.
    pub ended: Option<String>,
}

impl RecorderFile {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<RecorderFile, TraceError> {
        let io_error = |source| FORMAT.io("read", path, source);
        let mut file = BufReader::new(File::open(path).map_err(io_error)?);
        let mut magic = [0; 8];
        if file.read_exact(&mut magic).is_err() || magic != MAGIC {
            return Err(FORMAT.error(path, Problem::NotOurs).into());
        }
        let mut recording = RecorderFile::default();
        let mut buffer = Vec::new();
        loop {
            let mut length = [0; 2];
            // End of file, or a record torn by a kill.
            if file.read_exact(&mut length).is_err() {
                break;
            }
            buffer.resize(usize::from(u16::from_le_bytes(length)), 0);
            if file.read_exact(&mut buffer).is_err() {
                break;
            }
            let decoded =
                bincode::serde::decode_from_slice(&buffer, bincode::config::standard().with_limit::<1_000_000>());
            let (record, _): (Record, usize) = decoded.map_err(|error| FORMAT.corrupt(path, error))?;
            recording.take(record);
        }
        recording.events.sort_by_key(|record| match record {
            Record::Mark(moment) | Record::Stop(moment) => moment.sequence,
            Record::Operation(operation) => operation.sequence,
            _ => 0,
        });
        Ok(recording)
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Device(gpu) => self.gpu = gpu,
            Record::Kernel { hash, id } => {
                self.kernels.insert(hash, id);
            }
            Record::Graph { hash, kernels } => {
                self.graphs.insert(hash, kernels);
            }
            Record::Ended(why) => self.ended = Some(why),
            event => self.events.push(event),
        }
    }

    /// Number of operations.
    pub fn operations(&self) -> usize {
        let operation = |record: &&Record| matches!(record, Record::Operation(_));
        self.events.iter().filter(operation).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(sequence: u64) -> Record {
        Record::Operation(TimedCall {
            thread: 1,
            sequence,
            what: CallKind::SyncAll,
            entered: 5,
            preempted: 0,
            called: 6,
            returned: 7,
            left: 8,
            device: Some((1.5, 2.5)),
            tick: None,
        })
    }

    #[test]
    fn a_torn_end_is_left_out_and_order_is_by_sequence() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("raw");
        let mut bytes = MAGIC.to_vec();
        assert!(append(&mut bytes, &operation(2)));
        assert!(append(&mut bytes, &operation(1)));
        let whole = bytes.len();
        assert!(append(&mut bytes, &operation(3)));
        for end in [whole, whole + 1, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..end]).unwrap();
            let read = RecorderFile::load(&path).unwrap();
            assert_eq!(read.events, [operation(1), operation(2)]);
        }
        std::fs::write(&path, "weftTRAC").unwrap();
        let error = RecorderFile::load(&path).unwrap_err().to_string();
        assert!(error.contains("is not a weft launch trace"), "{error}");
    }

    #[test]
    fn ceiling_of_a_record() {
        let mut bytes = Vec::new();
        let graph = |nodes| Record::Graph {
            hash: 1,
            kernels: vec![u64::MAX; nodes],
        };
        assert!(append(&mut bytes, &graph(MOST_NODES)));
        let before = bytes.clone();
        assert!(!append(&mut bytes, &graph(MOST_NODES * 2)));
        assert_eq!(bytes, before);
    }
}
