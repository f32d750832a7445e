// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launch traces: all calls with which a job asked for device work, for a replay without the job.
//!
//! * [`Trace`]: a job's kernels and its [`Step`]s, each one request or training iteration. The job
//!   marks their start (`torch.cuda.profiler.start()`); earlier calls are not kept.
//! * [`Operation`]: one call in host order. It has *host time before* and *device time*, but no
//!   wall-clock time, so a replay is a closed loop at the device's pace.
//! * [`codec`]: the bytes, which no other module knows. [`Trace::load`] and [`Trace::save`] read
//!   and write files.
//! * [`raw`]: a recorder's file; [`assemble`] makes a trace of it.
//! * [`timeline`]: the trace without other jobs on an ideal device, with kernel times and idle
//!   times.
//! * [`show`]: output for people and for programs. Other tools use the types through serde.
//!
//! A replayer waits for an operation's predecessor ([`Operation::handed_over`]), lets `host_before`
//! pass, and makes the call. A launch and an asynchronous copy return after [`Trace::launch_cost`];
//! a [`Call::Sync`] and a copy that `waits` return when the device work has ended.
//!
//! Times are at most 1.6 % off ([`codec`]). A trace has at most [`MAX_OPERATIONS`].
#![forbid(unsafe_code)]

pub mod assemble;
pub mod codec;
mod nibbles;
mod pack;
mod quantise;
pub mod raw;
pub mod show;
pub mod timeline;
mod waits;

pub use codec::TraceError;

use serde::{Deserialize, Serialize};
use weft_kernel_id::KernelId;
use weft_profiles::{GpuIdentity, Ns};

/// Most operations of a trace: about 200 MB, half an hour of a busy PyTorch job.
pub const MAX_OPERATIONS: usize = 4_000_000;

/// Largest trace file that is read, bytes: [`MAX_OPERATIONS`] with two bytes of times each, and
/// names.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// Most kernels in a trace, as in a profile.
pub const MAX_KERNELS: usize = weft_profiles::MAX_KERNELS;

/// A kernel's index in [`Trace::kernels`].
pub type KernelIndex = u32;

/// A stream's number, by first use; 0 is the default stream.
pub type StreamIndex = u16;

/// A host thread's number; thread 0 set the first mark.
pub type ThreadIndex = u16;

/// An event's number, in the order of first use.
pub type EventIndex = u16;

/// Origin of a trace's times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// Measured on the GPU that the trace names.
    Measured,
    /// From a simulated GPU: device times are estimates ([`Trace::note`] names the GPU), all else
    /// is real.
    #[default]
    Estimated,
    /// Made up by a generator.
    Generated,
}

impl Source {
    /// Name in output and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Source::Measured => "measured",
            Source::Estimated => "estimated",
            Source::Generated => "generated",
        }
    }
}

/// Calls of one job that asked the device for work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Name of the trace.
    pub name: String,
    /// Time of recording, seconds since 1970.
    pub taken: u64,
    /// GPU of the recording; for estimates, the GPU whose times they are.
    pub gpu: GpuIdentity,
    /// Origin of the times.
    pub source: Source,
    /// How the trace was made, one line.
    pub note: String,
    /// Median host time of a launch call without the recorder, ns.
    pub launch_cost: Ns,
    /// Kernels and graphs.
    pub kernels: Vec<TracedKernel>,
    /// Requests or iterations.
    pub steps: Vec<Step>,
}

/// A kernel or a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedKernel {
    /// Hash that stands for the kernel in records and profiles.
    pub hash: u64,
    /// Identity of the kernel.
    pub id: KernelId,
    /// Registers of a thread; 0 if unknown, and for a graph.
    #[serde(default)]
    pub registers: u32,
    /// A graph's kernels, in an order that its edges allow. Empty if unknown, and for a kernel.
    pub nodes: Vec<GraphNode>,
}

impl TracedKernel {
    /// Makes a kernel of this identity.
    pub fn of(id: KernelId) -> TracedKernel {
        TracedKernel {
            hash: id.hash64(),
            id,
            registers: 0,
            nodes: Vec::new(),
        }
    }
}

/// A kernel in a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphNode {
    /// The kernel; never a graph.
    pub kernel: KernelIndex,
    /// Device time, ns; 0 if unknown: no event pair fits around a node.
    pub duration: Ns,
}

/// One request or one training iteration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Host time from the end of the last operation to the mark, ns: waiting for a request or for
    /// data.
    pub think: Ns,
    /// Operations, in the order in which the host began them.
    pub operations: Vec<Operation>,
}

/// One call of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Host thread of the call.
    pub thread: ThreadIndex,
    /// Start of `host_before`. `false`: the end of this thread's previous call in the step, or the
    /// step's mark if there is none. `true`: the end of the previous operation in
    /// [`Step::operations`]. That operation is of another thread, for which this one waited
    /// (PyTorch's backward pass has its own thread).
    pub handed_over: bool,
    /// Host time before the call, ns.
    pub host_before: Ns,
    /// The call.
    pub call: Call,
}

/// Kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Call {
    /// A kernel or a graph.
    Launch {
        /// Index of the kernel or graph.
        kernel: KernelIndex,
        /// Stream of the launch.
        stream: StreamIndex,
        /// Device time, ns.
        duration: Ns,
    },
    /// A copy or a fill.
    Copy {
        /// Direction.
        direction: Direction,
        /// Size, bytes.
        bytes: u64,
        /// Stream of the copy.
        stream: StreamIndex,
        /// Whether the call waits for the copy's end.
        waits: bool,
        /// Device time, ns.
        duration: Ns,
    },
    /// The host waits for device work.
    Sync(AwaitedWork),
    /// Records an event that some call awaits. It happens when the stream's earlier work has ended.
    Record {
        /// The event.
        event: EventIndex,
        /// Stream of the recording.
        stream: StreamIndex,
    },
    /// Makes later work of the stream wait for the event's last recording, if the trace has one.
    Wait {
        /// The event.
        event: EventIndex,
        /// Stream that waits.
        stream: StreamIndex,
    },
}

impl Call {
    /// Device time, ns, if the call is device work.
    pub fn duration(&self) -> Option<Ns> {
        match *self {
            Call::Launch { duration, .. } | Call::Copy { duration, .. } => Some(duration),
            Call::Sync(_) | Call::Record { .. } | Call::Wait { .. } => None,
        }
    }

    /// Returns the call with device time `ns`, if it has one.
    pub fn with_duration(mut self, ns: Ns) -> Call {
        if let Call::Launch { duration, .. } | Call::Copy { duration, .. } = &mut self {
            *duration = ns;
        }
        self
    }

    /// Whether the call waits for device work.
    pub fn waits(&self) -> bool {
        matches!(self, Call::Sync(_) | Call::Copy { waits: true, .. })
    }
}

/// Work for which a host thread waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AwaitedWork {
    /// All work of the job.
    All,
    /// All work of a stream.
    Stream(StreamIndex),
    /// The event's last recording.
    Event(EventIndex),
}

/// Direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// Host to device.
    HostToDevice,
    /// Device to host.
    DeviceToHost,
    /// Within the device.
    DeviceToDevice,
    /// A fill of device memory.
    Fill,
}

impl Direction {
    /// Name in output and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Direction::HostToDevice => "host to device",
            Direction::DeviceToHost => "device to host",
            Direction::DeviceToDevice => "device to device",
            Direction::Fill => "fill",
        }
    }
}

impl Trace {
    /// Number of operations.
    pub fn operations(&self) -> usize {
        self.steps.iter().map(|step| step.operations.len()).sum()
    }

    /// Number of launches.
    pub fn launches(&self) -> usize {
        self.steps.iter().map(Step::launches).sum()
    }

    /// The kernel or graph of the longest launch, and that launch's time, ns.
    pub fn longest_kernel(&self) -> Option<(&str, Ns)> {
        let operations = self.steps.iter().flat_map(|step| &step.operations);
        let launches = operations.filter_map(|operation| match operation.call {
            Call::Launch { kernel, duration, .. } => Some((duration, kernel)),
            _ => None,
        });
        let (duration, kernel) = launches.max()?;
        Some((&self.kernels.get(kernel as usize)?.id.symbol, duration))
    }

    /// Rounds all times as [`codec::encode`] and [`codec::decode`] do.
    pub fn quantised(mut self) -> Trace {
        let grid = |time: &mut Ns| *time = quantise::value(quantise::code(*time));
        for step in &mut self.steps {
            grid(&mut step.think);
            for operation in &mut step.operations {
                grid(&mut operation.host_before);
                if let Call::Launch { duration, .. } | Call::Copy { duration, .. } = &mut operation.call {
                    grid(duration);
                }
            }
        }
        self
    }

    /// First inconsistency, if any; a file may hold anything.
    pub fn unsound(&self) -> Option<&'static str> {
        if self.kernels.len() > MAX_KERNELS {
            return Some("more kernels than a trace may have");
        }
        if self.operations() > MAX_OPERATIONS {
            return Some("more operations than a trace may have");
        }
        let plain = |index: KernelIndex| {
            self.kernels
                .get(index as usize)
                .is_some_and(|kernel| kernel.nodes.is_empty())
        };
        if !self
            .kernels
            .iter()
            .flat_map(|kernel| &kernel.nodes)
            .all(|node| plain(node.kernel))
        {
            return Some("a graph's node is not a kernel");
        }
        for step in &self.steps {
            for (at, operation) in step.operations.iter().enumerate() {
                if let Call::Launch { kernel, .. } = operation.call
                    && kernel as usize >= self.kernels.len()
                {
                    return Some("a launch of a kernel that is not listed");
                }
                let before = at.checked_sub(1).and_then(|before| step.operations.get(before));
                if operation.handed_over && before.is_none_or(|before| before.thread == operation.thread) {
                    return Some("an operation that no other thread handed over");
                }
            }
        }
        None
    }
}

impl Step {
    /// Number of launches.
    pub fn launches(&self) -> usize {
        let launch = |operation: &&Operation| matches!(operation.call, Call::Launch { .. });
        self.operations.iter().filter(launch).count()
    }

    /// Sum of the operations' device times, ns.
    pub fn device_time(&self) -> Ns {
        self.operations
            .iter()
            .filter_map(|operation| operation.call.duration())
            .sum()
    }
}

#[cfg(test)]
pub(crate) mod tests;
