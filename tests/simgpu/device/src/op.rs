//! What a client can put on a stream and what it learns about it.
#![forbid(unsafe_code)]

pub use simgpu_engine::{Direction, Ns};

/// Names a submitted operation. Later ones are greater, over the whole link; they do not count by
/// one ([`Seq::count`] does).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// Before every operation: always done.
    pub const NONE: Seq = Seq(0);
}

/// A context of this link's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ctx(pub u32);

/// A stream of this link's process; unique over all its contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream(pub u32);

/// An interned name, see [`crate::Link::name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NameId(pub u32);

impl NameId {
    /// No name.
    pub const NONE: NameId = NameId(0);
}

/// A kernel launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Launch {
    /// The kernel.
    pub name: NameId,
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads a block in each direction.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// How long it runs, device nanoseconds. `None`: the device looks it up in its table
    /// ([`crate::Durations`]).
    pub duration: Option<Ns>,
    /// The kernel spins on something of the host: it runs until [`crate::Link::host_done`], or
    /// until `duration` (`None` then means 100 ms) is over. [`Effects::reached`] tells its start.
    pub held: bool,
}

/// One operation of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A kernel.
    Kernel(Launch),
    /// A copy. The device only takes the time; the bytes move in [`Effects::ended`].
    Copy {
        /// Which way.
        direction: Direction,
        /// How much.
        bytes: u64,
    },
    /// Managed memory moves between host and device, as far as it is not there. Its bytes stay
    /// where they are.
    Prefetch {
        /// Towards the host?
        to_host: bool,
        /// The first address.
        start: u64,
        /// How much.
        bytes: u64,
    },
    /// Managed memory's contents are given up: they need not be moved any more. Its bytes stay as
    /// they are.
    Discard {
        /// The first address.
        start: u64,
        /// How much.
        bytes: u64,
    },
    /// A memset. The same holds for its bytes.
    Memset {
        /// How much.
        bytes: u64,
    },
    /// Takes no time. `cuEventRecord`: the event's time is the marker's end.
    Marker,
    /// Ends when the other operation of this link has ended; at once if it has already.
    WaitFor(Seq),
    /// Stops the stream until [`crate::Link::host_done`]. [`Effects::reached`] tells that the
    /// stream got there. Host functions, `cuStreamWaitValue`, conditional nodes: everything that
    /// only the client can decide.
    Host,
}

/// What can be advised about managed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// It is mostly read: prefetches copy it.
    ReadMostly,
    /// The device of its ledger is its preferred location.
    PreferDevice,
}

/// Managed memory that an operation uses, by the client's own addresses. What of it is not managed
/// is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// The first address.
    pub start: u64,
    /// How much.
    pub bytes: u64,
    /// It is written.
    pub write: bool,
}

/// What goes with an operation. `Extra::default()` is an operation nobody needs to hear about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extra {
    /// Handed to [`Effects`] with the operation's news. 0: no news wanted (except of [`Op::Host`]
    /// and held kernels).
    pub token: u64,
    /// The news is wanted as soon as it happens, though no thread waits for it: a copy or a stream
    /// write whose result the host may spin on. Costs the device a wake-up. [`Op::Host`] and held
    /// kernels are always prompt.
    pub prompt: bool,
    /// The graph launch it belongs to, for the log; 0: none.
    pub graph: u64,
    /// A name for the log of operations other than kernels.
    pub label: NameId,
}

/// When an operation ran, in device nanoseconds since the device started ([`crate::Link::now`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// When it began; for markers the same as the end.
    pub start: Ns,
    /// When it ended.
    pub end: Ns,
}

/// What is known about an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It has not ended.
    Pending,
    /// It has ended and its effect has been performed.
    Done(Times),
    /// It ended so long ago that its times are forgotten (its slot among [`crate::WINDOW`] was used
    /// again). Who needs times later keeps them in [`Effects::ended`].
    LongDone,
    /// It never will: the device is gone, or this is a child of fork.
    Lost,
}

impl Status {
    /// Whether it has ended.
    pub fn is_done(self) -> bool {
        matches!(self, Status::Done(_) | Status::LongDone)
    }
}

/// What a client does when the device has done its part. Called by whichever thread polls or waits,
/// one call at a time, in the order in which operations ended.
///
/// A call may not block on the device: no `wait`, `poll`, `status`, `submit` of the same link (they
/// would wait for this very call). Anything longer than a copy goes to another thread, as host
/// functions do: `reached` queues them, a helper thread runs them and calls
/// [`crate::Link::host_done`].
pub trait Effects: Send + Sync {
    /// The operation with this token has ended.
    fn ended(&self, token: u64, seq: Seq, times: Times);
    /// The stream got to an [`Op::Host`], or a held kernel began.
    fn reached(&self, token: u64, seq: Seq, at: Ns);
}

/// Effects of a client that has none.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEffects;

impl Effects for NoEffects {
    fn ended(&self, _token: u64, _seq: Seq, _times: Times) {}
    fn reached(&self, _token: u64, _seq: Seq, _at: Ns) {}
}
