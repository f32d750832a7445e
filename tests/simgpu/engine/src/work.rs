//! What can be submitted and what comes out.

use crate::memory::{Owner, Range};
use crate::slab::Key;
use crate::time::Ns;

/// A context. Stale ids are recognised, never confused with a newer context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContextId(pub(crate) Key);

/// A stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId(pub(crate) Key);

/// A submitted operation. The id of an operation that has ended stays meaningful: it reads as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub(crate) Key);

impl OpId {
    /// An operation that was done before anything was submitted.
    pub const DONE: OpId = OpId(Key::NOTHING);
}

/// Which way a copy goes.
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
        /// How long it runs when it has the GPU.
        duration: Ns,
        /// It ends when [`crate::Engine::release`] says so, after `duration` at the latest: a
        /// kernel that spins on a word of the host. [`Output::Reached`] tells its start.
        held: bool,
    },
    /// A copy.
    Copy {
        /// Which way.
        direction: Direction,
        /// How much.
        bytes: u64,
    },
    /// A memset; runs on the compute engine.
    Memset {
        /// How much.
        bytes: u64,
    },
    /// Takes no time; its end tells when everything before it in the stream had ended. An event.
    Marker,
    /// Managed memory moves. Ends when all of it has.
    Prefetch {
        /// Whose.
        owner: Owner,
        /// Which.
        range: Range,
        /// Towards the host?
        to_host: bool,
    },
    /// Managed memory's contents are given up. Takes no time.
    Discard {
        /// Whose.
        owner: Owner,
        /// Which.
        range: Range,
    },
    /// Ends when the other operation has ended.
    WaitFor(OpId),
    /// Ends when [`crate::Engine::release`] says so. [`Output::Reached`] tells when the stream got
    /// to it.
    Host,
}

/// A piece of a kernel that ran without interruption: from, to.
pub type Segment = (Ns, Ns);

/// Something that happened, in the order in which it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// An operation has ended.
    Done {
        /// Which.
        op: OpId,
        /// What the caller called it.
        tag: u64,
        /// Its context.
        context: ContextId,
        /// When it began. For a wait and a host operation: when the stream got to it.
        start: Ns,
        /// When it ended.
        end: Ns,
        /// The pieces of a kernel that was preempted; empty for all others, and without
        /// [`crate::Settings::trace`].
        segments: Vec<Segment>,
    },
    /// An operation went with its context.
    Aborted {
        /// Which.
        op: OpId,
        /// What the caller called it.
        tag: u64,
        /// When it had begun, if it had.
        start: Option<Ns>,
        /// When its context went.
        at: Ns,
    },
    /// A stream got to a host operation, or a held kernel began.
    Reached {
        /// Which.
        op: OpId,
        /// What the caller called it.
        tag: u64,
        /// When.
        at: Ns,
    },
    /// The compute engine changed hands; only with [`crate::Settings::trace`].
    Switch {
        /// The context that has it now.
        to: ContextId,
        /// When the change began.
        start: Ns,
        /// When the new context could run.
        end: Ns,
    },
}
