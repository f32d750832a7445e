// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations of a stream, and the news that a client gets of them.
#![forbid(unsafe_code)]

pub use weft_engine::{Direction, Ns};

/// Name of a submitted operation. Later ones are greater, over the whole link; [`Seq::count`]
/// counts by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// An operation before all others: always done.
    pub const NONE: Seq = Seq(0);
}

/// A context of this link's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ctx(pub u32);

/// A stream of this link's process, unique over its contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkStream(pub u32);

/// An interned name, see [`crate::Link::name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NameId(pub u32);

impl NameId {
    /// No name.
    pub const NONE: NameId = NameId(0);
}

/// A kernel launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelLaunch {
    /// The kernel.
    pub name: NameId,
    /// Blocks, in three dimensions.
    pub grid: [u32; 3],
    /// Threads of a block, in three dimensions.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// Running time, device ns. `None`: by the device's table ([`crate::Durations`]).
    pub duration: Option<Ns>,
    /// Whether the kernel spins on something of the host: it runs until [`crate::Link::host_done`],
    /// for `duration` at most (`None`: 100 ms). [`Effects::reached`] reports its start.
    pub held: bool,
    /// Whether it is a [`weft_engine::Work::Dependent`], which may begin before the end of the
    /// kernel before it; not for a held one.
    pub dependent: bool,
}

/// One operation of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A kernel.
    Kernel(KernelLaunch),
    /// A copy. The device takes only its time; [`Effects::ended`] moves the bytes.
    Copy {
        /// Direction.
        direction: Direction,
        /// Size, bytes.
        bytes: u64,
    },
    /// Moves managed memory between host and device, as far as it is not there. Its bytes stay in
    /// place.
    Prefetch {
        /// Whether towards the host.
        to_host: bool,
        /// The first address.
        start: u64,
        /// Size, bytes.
        bytes: u64,
    },
    /// Gives up managed memory's contents: they need no transfer. Its bytes stay as they are.
    Discard {
        /// The first address.
        start: u64,
        /// Size, bytes.
        bytes: u64,
    },
    /// A memset. The device takes only its time; [`Effects::ended`] sets the bytes.
    Memset {
        /// Size, bytes.
        bytes: u64,
    },
    /// Takes no time, and ends when all before it in the stream has ended.
    Marker,
    /// `cuEventRecord`: a marker that takes its stream some time. The event's time is its end.
    Record {
        /// Whether the event has a time.
        timed: bool,
    },
    /// Ends when the other operation of this link has ended.
    WaitFor(Seq),
    /// Stops the stream until [`crate::Link::host_done`]: host functions, `cuStreamWaitValue`,
    /// conditional nodes. [`Effects::reached`] reports that the stream got there.
    Host,
}

/// Kind of advice about managed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Read-mostly: prefetches copy it.
    ReadMostly,
    /// The device is its preferred location.
    PreferDevice,
}

/// Managed memory that an operation uses, by the client's addresses. Unmanaged parts are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TouchedAddresses {
    /// The first address.
    pub start: u64,
    /// Size, bytes.
    pub bytes: u64,
    /// Whether it is written.
    pub write: bool,
}

/// Details of an operation. The default is an operation of which no news is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extra {
    /// Handed to [`Effects`] with the operation's news. 0: no news, except of [`Op::Host`] and held
    /// kernels.
    pub token: u64,
    /// Whether the news is wanted at once although no thread waits for it, as of a copy on whose
    /// result the host may spin. It costs the device a wake-up. [`Op::Host`] and held kernels are
    /// always prompt.
    pub prompt: bool,
    /// Graph launch to which it belongs, for the log; 0: none.
    pub graph: u64,
    /// Name for the log of an operation that is no kernel.
    pub label: NameId,
}

/// When an operation ran, device ns since the device's start ([`crate::Link::now`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Begin; for markers the end.
    pub start: Ns,
    /// End.
    pub end: Ns,
}

/// State of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It has not ended.
    Pending,
    /// It has ended and its effect has been performed.
    Done(Times),
    /// Ended long ago, so that its times are forgotten: its slot among [`crate::WINDOW`] was used
    /// again. [`Effects::ended`] has the times once.
    LongDone,
    /// It never ends: the device is gone, or this is a child of fork.
    Lost,
}

impl Status {
    /// Whether it has ended.
    pub fn is_done(self) -> bool {
        matches!(self, Status::Done(_) | Status::LongDone)
    }
}

/// A client's actions when the device has done its part. The thread that polls or waits calls them:
/// one call at a time, in the order in which operations ended.
///
/// A call may not block on the device: `wait`, `poll`, `status` or `submit` of the link would wait
/// for this very call. Anything longer than a copy goes to another thread: `reached` queues a host
/// function, a helper thread runs it and calls [`crate::Link::host_done`].
pub trait Effects: Send + Sync {
    /// The operation with this token has ended.
    fn ended(&self, token: u64, seq: Seq, times: Times);
    /// The stream got to an [`Op::Host`], or a held kernel began.
    fn reached(&self, token: u64, seq: Seq, at: Ns);
}

/// Effects of a client without any.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEffects;

impl Effects for NoEffects {
    fn ended(&self, _token: u64, _seq: Seq, _times: Times) {}
    fn reached(&self, _token: u64, _seq: Seq, _at: Ns) {}
}
