// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that can be submitted, and the outputs.

use crate::memory::{Owner, Range};
use crate::slab::SlabKey;
use crate::time::Ns;

/// A context. A stale id never names a newer context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContextId(pub(crate) SlabKey);

/// A stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId(pub(crate) SlabKey);

/// A submitted operation. After the operation's end its id reads as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub(crate) SlabKey);

impl OpId {
    /// An operation that was done before any was submitted.
    pub const DONE: OpId = OpId(SlabKey::NOTHING);
}

/// Direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the device: copy engine 0.
    HostToDevice,
    /// From the device: copy engine 1.
    DeviceToHost,
    /// Within the device: copy engine 0, at the device's own rate.
    DeviceToDevice,
}

/// One operation of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A kernel.
    Kernel {
        /// Running time when the kernel has the GPU.
        duration: Ns,
        /// Whether [`crate::Engine::release`] ends it, after `duration` at the latest: a kernel
        /// that spins on a word of the host. [`Output::Reached`] reports its start.
        held: bool,
    },
    /// A kernel that may begin before the end of the one before it in its stream: a programmatic
    /// dependent launch ([`Settings::dependent_early`](crate::Settings::dependent_early)).
    Dependent {
        /// Running time when the kernel has the GPU.
        duration: Ns,
    },
    /// A kernel of a few blocks that leaves the compute engine to others: it takes its time, and
    /// nothing waits for it but its stream.
    Beside {
        /// Running time.
        duration: Ns,
    },
    /// A copy.
    Copy {
        /// Direction.
        direction: Direction,
        /// Size, bytes.
        bytes: u64,
    },
    /// A memset, on the compute engine.
    Memset {
        /// Size, bytes.
        bytes: u64,
    },
    /// Takes no time, and ends when everything before it in the stream has ended.
    Marker,
    /// An event's record: a marker that takes its stream some time ([`crate::Settings`]). The
    /// event's time is its end.
    Record {
        /// Whether the event has a time.
        timed: bool,
    },
    /// Moves managed memory. Ends when all of it has moved.
    Prefetch {
        /// Owner of the memory.
        owner: Owner,
        /// The memory.
        range: Range,
        /// Whether it moves towards the host.
        to_host: bool,
    },
    /// Gives up the contents of managed memory. Takes no time.
    Discard {
        /// Owner of the memory.
        owner: Owner,
        /// The memory.
        range: Range,
    },
    /// Ends when the other operation has ended.
    WaitFor(OpId),
    /// Ends by [`crate::Engine::release`]. [`Output::Reached`] reports when the stream got to it.
    Host,
}

impl Work {
    /// Whether it runs on the compute engine.
    pub(crate) fn computes(self) -> bool {
        self.is_kernel() || matches!(self, Work::Memset { .. })
    }

    /// Whether it is a kernel of the compute engine.
    pub(crate) fn is_kernel(self) -> bool {
        matches!(self, Work::Kernel { .. } | Work::Dependent { .. })
    }
}

/// An uninterrupted piece of a kernel: begin and end.
pub type Segment = (Ns, Ns);

/// An event of the engine. They come out in the order in which they happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// An operation has ended.
    Done {
        /// The operation.
        op: OpId,
        /// The caller's number of it.
        tag: u64,
        /// Its context.
        context: ContextId,
        /// Begin. For a wait and a host operation: when the stream got to it.
        start: Ns,
        /// End.
        end: Ns,
        /// The pieces of a preempted kernel; empty for others, and without
        /// [`crate::Settings::trace`].
        segments: Vec<Segment>,
    },
    /// An operation ended with its context.
    Aborted {
        /// The operation.
        op: OpId,
        /// The caller's number of it.
        tag: u64,
        /// Begin, if it had begun.
        start: Option<Ns>,
        /// End of its context.
        at: Ns,
    },
    /// A stream got to a host operation, or a held kernel began.
    Reached {
        /// The operation.
        op: OpId,
        /// The caller's number of it.
        tag: u64,
        /// Time.
        at: Ns,
    },
    /// The compute engine changes hands; only with [`crate::Settings::trace`].
    Switch {
        /// The context that gets it.
        to: ContextId,
        /// Begin of the change.
        start: Ns,
        /// Time from which the new context can run.
        end: Ns,
    },
}
