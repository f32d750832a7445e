// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content of a profiler's file in terms that no profiler owns: calls, device work, notes.
//!
//! Readers push events; nothing here depends on the order of a file. Names and shapes are kept
//! once. [`ProfilerFile::room`] bounds the memory of a file of any size.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    fmt,
    rc::Rc,
};

use weft_profiles::{GpuIdentity, Ns};
use weft_trace_format::Direction;

use crate::{ImportError, error::one_line};

/// Most events of a file that are kept: 4 million operations of a trace, and as many marks.
pub const MAX_EVENTS: usize = 2 * weft_trace_format::MAX_OPERATIONS;

/// Most bytes of different names: the kernels of the largest frameworks have some megabytes.
const MAX_NAME_BYTES: usize = 64 << 20;

/// Most threads of a file: a trace numbers them with 16 bits. Further ones share the last number.
const MAX_THREADS: usize = u16::MAX as usize;

/// Most GPUs of a file.
const MAX_GPUS: usize = 64;

/// Longest call, kernel or mark, ns: a day. A longer one is a fault of the file.
pub const MAX_LENGTH_NS: Ns = 86_400_000_000_000;

/// Number of work whose call the file does not have.
pub const NO_CALL: u64 = u64::MAX;

/// Number of a call without a number: it has no work.
pub const NO_WORK: u64 = u64::MAX - 1;

/// A name's number.
pub type NameIndex = u32;

/// Strings by number.
#[derive(Debug, Default)]
pub struct NameTable {
    known: HashMap<Rc<str>, NameIndex>,
    names: Vec<Rc<str>>,
    bytes: usize,
}

impl NameTable {
    /// Number of a name.
    pub fn number(&mut self, name: &str) -> Result<NameIndex, ImportError> {
        if let Some(known) = self.known.get(name) {
            return Ok(*known);
        }
        self.bytes += name.len();
        if self.bytes > MAX_NAME_BYTES {
            return Err(ImportError::TooMuch("64 MiB of different names"));
        }
        let number = self.names.len() as NameIndex;
        let name: Rc<str> = name.into();
        self.known.insert(Rc::clone(&name), number);
        self.names.push(name);
        Ok(number)
    }

    /// The name of a number.
    pub fn name(&self, number: NameIndex) -> &str {
        self.names.get(number as usize).map_or("", |name| name)
    }
}

/// A kernel as it was launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaunchShape {
    /// Its name.
    pub name: NameIndex,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads in x, y, z.
    pub block: [u32; 3],
    /// Static and dynamic shared memory, bytes.
    pub shared: u32,
}

/// Kind of a host call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallClass {
    /// Launch of a kernel.
    Launch,
    /// Launch of a graph.
    Graph,
    /// A copy or fill; whether its name has `Async`.
    Copy {
        /// Whether the function is an asynchronous one.
        asynchronous: bool,
    },
    /// Wait for the device, a stream, or an event.
    Wait(Awaits),
    /// Recording of an event.
    Record,
    /// A stream waits for an event.
    StreamWait,
}

/// Kind of a host wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaits {
    /// All work of the device.
    Device,
    /// All work of a stream.
    Stream,
    /// An event's recording.
    Event,
}

impl CallClass {
    /// Class of a function of the runtime or the driver, if it asks for work or waits for work.
    pub fn of(function: &str) -> Option<CallClass> {
        let name = ["cuda", "hip", "cu"]
            .iter()
            .find_map(|prefix| function.strip_prefix(prefix))?;
        let begins = |with: &[&str]| with.iter().any(|with| name.starts_with(with));
        Some(if begins(&["GraphLaunch"]) {
            CallClass::Graph
        } else if begins(&[
            "LaunchKernel",
            "LaunchCooperativeKernel",
            "ExtLaunch",
            "ExtModuleLaunch",
            "ModuleLaunch",
        ]) || name == "Launch"
        {
            CallClass::Launch
        } else if begins(&["Memcpy", "Memset"]) {
            let asynchronous = name.contains("Async");
            CallClass::Copy { asynchronous }
        } else if begins(&["StreamSynchronize"]) {
            CallClass::Wait(Awaits::Stream)
        } else if begins(&["EventSynchronize"]) {
            CallClass::Wait(Awaits::Event)
        } else if begins(&["DeviceSynchronize", "CtxSynchronize", "ThreadSynchronize"]) {
            CallClass::Wait(Awaits::Device)
        } else if begins(&["EventRecord"]) {
            CallClass::Record
        } else if begins(&["StreamWaitEvent"]) {
            CallClass::StreamWait
        } else {
            return None;
        })
    }
}

/// A call of a process: its number is unique within the process.
pub type CallKey = (u64, u64);

/// A call on a host thread. Times are ns since some moment before the file's first event.
#[derive(Debug, Clone, Copy)]
pub struct ProfiledCall {
    /// Entry.
    pub start: Ns,
    /// Return.
    pub end: Ns,
    /// Process and correlation number.
    pub key: CallKey,
    /// Number of the thread by first event.
    pub thread: u32,
    /// Kind.
    pub class: CallClass,
}

/// Kind of device work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkClass {
    /// A kernel: the index of its shape.
    Kernel(u32),
    /// A copy or fill.
    Copy {
        /// Its direction.
        direction: Direction,
        /// Bytes.
        bytes: u64,
        /// Whether its host memory is page-locked; `None` if the file has no such fact.
        pinned: Option<bool>,
    },
    /// A graph as a whole: the file has no nodes of it. The number is the graph's.
    Graph(u64),
}

impl WorkClass {
    /// Whether it runs on the engine of kernels.
    pub fn on_kernel_engine(self) -> bool {
        !matches!(
            self,
            WorkClass::Copy {
                direction: Direction::HostToDevice | Direction::DeviceToHost,
                ..
            }
        )
    }
}

/// A piece of work on a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceWork {
    /// Start.
    pub start: Ns,
    /// End.
    pub end: Ns,
    /// Process and correlation number of its call.
    pub key: CallKey,
    /// The stream's number in the file.
    pub stream: u32,
    /// The device's number in the file.
    pub device: u32,
    /// Kind.
    pub class: WorkClass,
}

/// A mark: a span that a program or a framework named.
#[derive(Debug, Clone, Copy)]
pub struct Note {
    /// Start.
    pub start: Ns,
    /// End.
    pub end: Ns,
    /// Its name.
    pub name: NameIndex,
    /// Its process, as in the keys of calls.
    pub process: u64,
    /// Number of the thread.
    pub thread: u32,
    /// Whether the program set it (a user's annotation); else it is a framework's operator.
    pub own: bool,
}

/// Facts of a file about a wait or a stream's wait: the call that recorded the event, or the
/// awaited stream.
#[derive(Debug, Clone, Copy, Default)]
pub struct SyncFact {
    /// Stream for which it waits, or for an event the stream that recorded it.
    pub stream: Option<u32>,
    /// Call that recorded the event.
    pub recorded_by: Option<CallKey>,
    /// For a stream's wait, the stream that waits.
    pub waiting: Option<u32>,
}

/// A file's content.
#[derive(Debug, Default)]
pub struct ProfilerFile {
    /// GPUs by number.
    pub gpus: BTreeMap<u32, GpuIdentity>,
    /// Names of kernels and notes.
    pub names: NameTable,
    /// Kernels as launched.
    pub shapes: Vec<LaunchShape>,
    /// Registers of a thread by shape; 0 if unknown.
    pub registers: Vec<u32>,
    shape_numbers: HashMap<LaunchShape, u32>,
    /// Calls that ask for work or wait for it.
    pub calls: Vec<ProfiledCall>,
    /// Work.
    pub works: Vec<DeviceWork>,
    /// Marks.
    pub notes: Vec<Note>,
    /// Targets of waits, by the wait's call.
    pub syncs: HashMap<CallKey, SyncFact>,
    /// Threads: the file's name of each.
    pub threads: Vec<String>,
    thread_numbers: HashMap<String, u32>,
    /// Events that are not used, by kind.
    pub unused: BTreeMap<String, u64>,
    /// Events without the fields of their kind.
    pub malformed: u64,
    /// Kernels whose time is 0 or wrong, and the first one's name and times.
    pub untimed: (u64, String),
    /// Whether a lane is XLA's of a device.
    pub of_xla: bool,
}

/// Most kinds of unused events that are counted apart.
const MAX_UNUSED_KINDS: usize = 40;

impl ProfilerFile {
    /// Checks that there is room for one event more.
    pub fn room(&self) -> Result<(), ImportError> {
        let events = self.calls.len() + self.works.len() + self.notes.len() + self.syncs.len();
        match events < MAX_EVENTS {
            true => Ok(()),
            false => Err(ImportError::TooMuch("8 million calls, kernels and marks")),
        }
    }

    /// Number of a kernel's shape. Kernels of equal shape count as one, with the first one's
    /// registers.
    pub fn shape(&mut self, shape: LaunchShape, registers: u32) -> u32 {
        *self.shape_numbers.entry(shape).or_insert_with(|| {
            self.shapes.push(shape);
            self.registers.push(registers);
            self.shapes.len() as u32 - 1
        })
    }

    /// Number of a thread by its name in the file.
    pub fn thread(&mut self, name: &str) -> u32 {
        let name = one_line(name);
        if let Some(known) = self.thread_numbers.get(&name) {
            return *known;
        }
        if self.threads.len() >= MAX_THREADS {
            return MAX_THREADS as u32 - 1;
        }
        let number = self.threads.len() as u32;
        self.threads.push(name.clone());
        self.thread_numbers.insert(name, number);
        number
    }

    /// Keeps a GPU, if there is room.
    pub fn gpu(&mut self, number: u32, name: &str, memory: u64) {
        if self.gpus.len() < MAX_GPUS {
            let name = one_line(name);
            self.gpus.insert(
                number,
                GpuIdentity {
                    name,
                    memory,
                    ..GpuIdentity::default()
                },
            );
        }
    }

    /// The commonest events that are not used, for an error; empty if all are.
    pub fn others(&self) -> String {
        let mut unused: Vec<_> = self
            .unused
            .iter()
            .map(|(kind, count)| (Reverse(*count), kind))
            .collect();
        unused.sort();
        let unused: Vec<String> = unused
            .iter()
            .take(4)
            .map(|(count, kind)| format!("{} {kind}", count.0))
            .collect();
        match unused.is_empty() {
            true => String::new(),
            false => format!(" (not used: {})", one_line(&unused.join(", "))),
        }
    }

    /// Counts a kernel whose time is 0 or wrong.
    pub fn untimed_kernel(&mut self, name: &str, times: fmt::Arguments) {
        if self.untimed.0 == 0 {
            self.untimed.1 = one_line(&format!("{name} with {times}"));
        }
        self.untimed.0 += 1;
    }

    /// Counts an event that is not used.
    pub fn skip(&mut self, kind: &str) {
        if let Some(count) = self.unused.get_mut(kind) {
            *count += 1;
            return;
        }
        let known = self.unused.len() < MAX_UNUSED_KINDS && kind.len() <= 64;
        let kind = if known { kind } else { "other" };
        *self.unused.entry(kind.to_owned()).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_their_class_whatever_their_version() {
        let class = |name| CallClass::of(name);
        assert_eq!(class("cudaLaunchKernel_v7000"), Some(CallClass::Launch));
        assert_eq!(class("cuLaunchKernelEx"), Some(CallClass::Launch));
        assert_eq!(class("hipExtModuleLaunchKernel"), Some(CallClass::Launch));
        assert_eq!(class("cudaGraphLaunch_v10000"), Some(CallClass::Graph));
        assert_eq!(
            class("cudaMemcpyAsync_ptsz"),
            Some(CallClass::Copy { asynchronous: true })
        );
        assert_eq!(class("cuMemcpyDtoH_v2"), Some(CallClass::Copy { asynchronous: false }));
        assert_eq!(class("cudaStreamSynchronize"), Some(CallClass::Wait(Awaits::Stream)));
        assert_eq!(class("cuCtxSynchronize"), Some(CallClass::Wait(Awaits::Device)));
        assert_eq!(class("cudaEventRecordWithFlags"), Some(CallClass::Record));
        for other in [
            "cudaMalloc",
            "cudaStreamIsCapturing",
            "aten::copy_",
            "cudaEventQuery",
            "",
        ] {
            assert_eq!(class(other), None, "{other}");
        }
    }

    #[test]
    fn names_and_shapes_are_kept_once_and_bounded() {
        let mut file = ProfilerFile::default();
        let one = file.names.number("gemm").unwrap();
        assert_eq!(file.names.number("gemm").unwrap(), one);
        assert_eq!(file.names.name(one), "gemm");
        let shape = LaunchShape {
            name: one,
            grid: [1; 3],
            block: [1; 3],
            shared: 0,
        };
        assert_eq!((file.shape(shape, 32), file.shape(shape, 64)), (0, 0));
        let long = "x".repeat(MAX_NAME_BYTES);
        assert!(file.names.number(&long).is_err());
        // Half of the room, once more: each byte counts once.
        let mut names = NameTable::default();
        assert!(names.number(&long[1..]).is_ok());
        for thread in 0..70_000 {
            file.thread(&format!("{thread}\n{long:.1000}"));
        }
        assert_eq!(file.threads.len(), MAX_THREADS);
        assert!(
            file.threads
                .iter()
                .all(|name| name.len() <= 256 && !name.contains('\n'))
        );
        for kind in 0..100 {
            file.skip(&format!("kind {kind}"));
        }
        assert_eq!(file.unused["other"], 60);
    }
}
