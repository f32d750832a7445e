//! What a recorder writes while the job runs: one record after another, each whole or not there.
//!
//! The job's process writes these (it may be killed at any moment, and should spend little time on
//! it); [`super::assemble`] makes a [`super::Trace`] of them afterwards. A file begins with
//! [`MAGIC`]; each record is its length (two bytes, little-endian) and that many bytes of bincode.
//! A torn record at the end is left out. The format is private to one version of weft: its files
//! live for the time of a run.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use serde::{Deserialize, Serialize};
use weft_kernel_id::KernelId;
use weft_profiles::{Gpu, Ns, format::Problem};

use super::{Direction, TraceError, codec::FORMAT};

/// The first bytes of a file: what it is, and of which format.
pub const MAGIC: [u8; 8] = *b"weftRAW3";

/// The longest record: a graph of [`MOST_NODES`] kernels, or a symbol of the greatest length.
const LONGEST: usize = u16::MAX as usize;

/// Kernels of a graph that are told: ten bytes each must fit a record.
pub const MOST_NODES: usize = 6_000;

/// One record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// The device that the process uses.
    Device(Gpu),
    /// A kernel's identity.
    Kernel {
        /// Its number.
        hash: u64,
        /// What it is.
        id: KernelId,
    },
    /// What a graph is made of.
    Graph {
        /// Its number.
        hash: u64,
        /// Its kernels' numbers, the first [`MOST_NODES`].
        kernels: Vec<u64>,
    },
    /// A step begins.
    Mark(Moment),
    /// A step ends, and none begins.
    Stop(Moment),
    /// A call.
    Operation(Operation),
    /// The recorder gave up, and why: what follows is not recorded.
    Ended(String),
}

/// When a mark was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// On which thread.
    pub thread: u32,
    /// Its place among the operations.
    pub sequence: u64,
    /// The call came in, host nanoseconds.
    pub entered: Ns,
    /// The job went on.
    pub left: Ns,
    /// Of the time since the thread's call before, what it was ready to run but had no processor:
    /// other work's time, not the job's.
    pub preempted: Ns,
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// On which thread.
    pub thread: u32,
    /// Its place among the operations: by when it came in.
    pub sequence: u64,
    /// What.
    pub what: What,
    /// The call came in, host nanoseconds.
    pub entered: Ns,
    /// See [`Moment::preempted`].
    pub preempted: Ns,
    /// It went to the driver.
    pub called: Ns,
    /// It came back from the driver.
    pub returned: Ns,
    /// The job went on.
    pub left: Ns,
    /// Where it is work: device nanoseconds of the events before and behind it, on one axis. `None`
    /// where it could not be timed.
    pub device: Option<(f64, f64)>,
    /// Device nanoseconds between this event behind it and one more, where one was recorded: what
    /// an event takes.
    pub tick: Option<f64>,
}

/// What a call does. Streams and events go by their handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A kernel or a graph; 0 where nothing is known of it.
    Launch {
        /// Its number.
        hash: u64,
        /// Where.
        stream: u64,
    },
    /// A copy or a fill.
    Copy {
        /// Which way.
        direction: Direction,
        /// How much.
        bytes: u64,
        /// Where.
        stream: u64,
        /// Whether it returns only when it is done.
        waits: bool,
    },
    /// The host waits for everything.
    SyncAll,
    /// The host waits for a stream.
    SyncStream(u64),
    /// The host waits for an event.
    SyncEvent(u64),
    /// An event is recorded.
    Record {
        /// Which.
        event: u64,
        /// Where.
        stream: u64,
    },
    /// A stream waits for an event.
    Wait {
        /// Which.
        event: u64,
        /// Where.
        stream: u64,
    },
}

/// Appends a record to `bytes`. One that is too long is left out: `false`.
pub fn append(bytes: &mut Vec<u8>, record: &Record) -> bool {
    let begin = bytes.len();
    bytes.extend_from_slice(&[0; 2]);
    let config = bincode::config::standard();
    let done = bincode::serde::encode_into_std_write(record, bytes, config);
    let length = bytes.len() - begin - 2;
    let fits = done.is_ok() && length <= LONGEST;
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

/// A file of records.
#[derive(Debug, Default)]
pub struct Recording {
    /// The device.
    pub gpu: Gpu,
    /// Kernels by their numbers.
    pub kernels: HashMap<u64, KernelId>,
    /// Graphs by theirs.
    pub graphs: HashMap<u64, Vec<u64>>,
    /// Marks, stops and operations, by sequence.
    pub events: Vec<Record>,
    /// Why the recorder gave up, if it did.
    pub ended: Option<String>,
}

impl Recording {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Recording, TraceError> {
        let io_error = |source| FORMAT.io("read", path, source);
        let mut file = BufReader::new(File::open(path).map_err(io_error)?);
        let mut magic = [0; 8];
        if file.read_exact(&mut magic).is_err() || magic != MAGIC {
            return Err(FORMAT.error(path, Problem::NotOurs).into());
        }
        let mut recording = Recording::default();
        let mut buffer = Vec::new();
        loop {
            let mut length = [0; 2];
            // The end, or a record that a kill has torn.
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

    /// Operations in it.
    pub fn operations(&self) -> usize {
        let operation = |record: &&Record| matches!(record, Record::Operation(_));
        self.events.iter().filter(operation).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(sequence: u64) -> Record {
        Record::Operation(Operation {
            thread: 1,
            sequence,
            what: What::SyncAll,
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
            let read = Recording::load(&path).unwrap();
            assert_eq!(read.events, [operation(1), operation(2)]);
        }
        std::fs::write(&path, "weftTRAC").unwrap();
        let error = Recording::load(&path).unwrap_err().to_string();
        assert!(error.contains("is not a launch trace"), "{error}");
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
