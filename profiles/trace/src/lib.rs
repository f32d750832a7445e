//! Launch traces: everything that one job asked of the device, step by step, so that the job can be
//! played again without it.
//!
//! * [`Trace`]: a job's kernels and its [`Step`]s. A step is a request of a service or an iteration
//!   of a training job; the job marks its beginning (`torch.cuda.profiler.start()`), and what came
//!   before the first mark is not in the trace.
//! * [`Operation`]: one call in host order: a launch, a copy, a wait. It keeps the *host time
//!   before it* and the *device time it takes*, never a wall-clock time: whoever replays it gets a
//!   closed loop that a slower device makes slower and a faster one faster.
//! * [`codec`]: the bytes, and nobody else knows them. [`Trace::load`] and [`Trace::save`] are the
//!   files.
//! * [`raw`]: what a recorder writes while the job runs; [`assemble`] makes a trace of it.
//! * [`timeline`]: the trace played alone on an ideal device: when each kernel runs and how long
//!   the device idles after it.
//! * [`show`]: for people and for programs; the types themselves also go through serde, for tools
//!   that make or change traces.
//!
//! How a replayer goes through a step, per host thread: wait for what the operation follows (see
//! [`Operation::handed_over`]), let `host_before` pass, make the call. A launch and an asynchronous
//! copy return after [`Trace::launch_cost`]; a [`Call::Sync`] and a copy that `waits` return when
//! the device is that far.
//!
//! Times are kept with six significant bits, at most 1.6 % off: [`codec`] says how. Nothing here
//! holds in memory more than [`MAX_OPERATIONS`].
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
use weft_profiles::{Gpu, Ns};

/// Operations in a trace at most: about 200 MB in memory, half an hour of a busy PyTorch job.
pub const MAX_OPERATIONS: usize = 4_000_000;

/// The largest trace that is read, bytes: [`MAX_OPERATIONS`] with two times of a byte each, and
/// room for the names.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// Kernels in a trace at most, as in a profile.
pub const MAX_KERNELS: usize = weft_profiles::MAX_KERNELS;

/// A kernel's place in [`Trace::kernels`].
pub type KernelIndex = u32;

/// A stream's number: 0 is the default stream, the others are numbered in the order in which the
/// job used them first.
pub type StreamIndex = u16;

/// A host thread's number: 0 is the thread that set the first mark.
pub type ThreadIndex = u16;

/// An event's number, in the order of first use.
pub type EventIndex = u16;

/// Where the times of a trace come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// Measured on the GPU that the trace names.
    Measured,
    /// Taken on a simulated GPU: order, shapes and counts are real, device times are estimates.
    /// [`Trace::note`] says of what.
    #[default]
    Estimated,
    /// Made up by a generator.
    Generated,
}

impl Source {
    /// For people and for JSON.
    pub fn name(self) -> &'static str {
        match self {
            Source::Measured => "measured",
            Source::Estimated => "estimated",
            Source::Generated => "generated",
        }
    }
}

/// What one job asked of the device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Its name.
    pub name: String,
    /// When it was taken, seconds since 1970.
    pub taken: u64,
    /// Where it was taken; for estimates the GPU whose times they are.
    pub gpu: Gpu,
    /// Where its times come from.
    pub source: Source,
    /// How it was made, one line.
    pub note: String,
    /// What one launch call takes of the host, ns: the median without the instrument.
    pub launch_cost: Ns,
    /// Its kernels and graphs.
    pub kernels: Vec<Kernel>,
    /// Its requests or iterations.
    pub steps: Vec<Step>,
}

/// A kernel, or a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// The number that stands for it in records and profiles.
    pub hash: u64,
    /// What it is.
    pub id: KernelId,
    /// What a graph launches, in an order that its edges allow. Empty for a kernel, and for a graph
    /// that was never looked into.
    pub nodes: Vec<Node>,
}

impl Kernel {
    /// A kernel with this identity.
    pub fn of(id: KernelId) -> Kernel {
        Kernel {
            hash: id.hash64(),
            id,
            nodes: Vec::new(),
        }
    }
}

/// A kernel in a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Which. Never a graph.
    pub kernel: KernelIndex,
    /// How long it takes, ns. 0 where nobody knows: no event pair can be put around it.
    pub duration: Ns,
}

/// A request of a service, an iteration of a training job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Host time between the end of the operation before the mark and the mark: the service waited
    /// for its request, the job for its data.
    pub think: Ns,
    /// Its operations, in the order in which the host began them.
    pub operations: Vec<Operation>,
}

/// One call of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The host thread that made it.
    pub thread: ThreadIndex,
    /// What `host_before` counts from. `false`: from the end of the previous operation's call *on
    /// this thread*, or from the step's mark where there is none in the step. `true`: this thread
    /// had waited for another one (PyTorch's backward pass runs on a thread of its own), and it
    /// counts from the end of the operation just before in [`Step::operations`], whose thread is
    /// another.
    pub handed_over: bool,
    /// Host time before the call, ns.
    pub host_before: Ns,
    /// The call.
    pub call: Call,
}

/// What was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// A kernel or a graph.
    Launch {
        /// Which.
        kernel: KernelIndex,
        /// Where.
        stream: StreamIndex,
        /// How long the device took, ns.
        duration: Ns,
    },
    /// A copy or a fill.
    Copy {
        /// Which way.
        direction: Direction,
        /// How much.
        bytes: u64,
        /// Where.
        stream: StreamIndex,
        /// Whether the call returns only when it is done.
        waits: bool,
        /// How long the device took, ns.
        duration: Ns,
    },
    /// The host waits.
    Sync(Until),
    /// An event that something waits for is recorded: it happens when what is in the stream by now
    /// has ended.
    Record {
        /// Which.
        event: EventIndex,
        /// Where.
        stream: StreamIndex,
    },
    /// What comes later in the stream waits for an event's last recording. One that the trace has
    /// not recorded is past.
    Wait {
        /// Which.
        event: EventIndex,
        /// Where.
        stream: StreamIndex,
    },
}

impl Call {
    /// Device time, where the call is work for the device.
    pub fn duration(&self) -> Option<Ns> {
        match *self {
            Call::Launch { duration, .. } | Call::Copy { duration, .. } => Some(duration),
            Call::Sync(_) | Call::Record { .. } | Call::Wait { .. } => None,
        }
    }

    /// The same call with another device time.
    pub fn with_duration(mut self, ns: Ns) -> Call {
        if let Call::Launch { duration, .. } | Call::Copy { duration, .. } = &mut self {
            *duration = ns;
        }
        self
    }

    /// Whether the host goes on only when the device is that far.
    pub fn waits(&self) -> bool {
        matches!(self, Call::Sync(_) | Call::Copy { waits: true, .. })
    }
}

/// What the host waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Until {
    /// Everything that it asked for.
    All,
    /// Everything in a stream.
    Stream(StreamIndex),
    /// An event's last recording.
    Event(EventIndex),
}

/// Which way a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// To the device.
    HostToDevice,
    /// From the device.
    DeviceToHost,
    /// On the device.
    DeviceToDevice,
    /// No copy: memory of the device is filled.
    Fill,
}

impl Direction {
    /// For people and for JSON.
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
    /// Operations in all.
    pub fn operations(&self) -> usize {
        self.steps.iter().map(|step| step.operations.len()).sum()
    }

    /// Launches in all.
    pub fn launches(&self) -> usize {
        self.steps.iter().map(Step::launches).sum()
    }

    /// The same trace with every time as a file keeps it: what [`codec::decode`] gives for what
    /// [`codec::encode`] wrote.
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

    /// Whether the parts agree with each other: what was read from a file may say anything. Says
    /// what does not.
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
            return Some("a graph's node is no kernel");
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
                    return Some("an operation that was handed over by nobody");
                }
            }
        }
        None
    }
}

impl Step {
    /// How many of its operations are launches.
    pub fn launches(&self) -> usize {
        let launch = |operation: &&Operation| matches!(operation.call, Call::Launch { .. });
        self.operations.iter().filter(launch).count()
    }

    /// Device time of its operations, one after another.
    pub fn device_time(&self) -> Ns {
        self.operations
            .iter()
            .filter_map(|operation| operation.call.duration())
            .sum()
    }
}

#[cfg(test)]
pub(crate) mod tests;
