//! What goes into the planner and what comes out of it.
#![forbid(unsafe_code)]

pub use weft_profiles::working_set::Access;

use weft_protocol::{Client, Ns};

/// Neighbouring granules of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    /// Number of the first.
    pub first: u64,
    /// How many. A range of none is nothing.
    pub count: u32,
}

impl Range {
    /// Number of the first granule behind the range.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }

    /// The numbers.
    pub fn granules(&self) -> std::ops::Range<u64> {
        self.first..self.end()
    }
}

/// Granules that a client uses at some point of its own time.
///
/// [`Access::Write`] promises that the granules are overwritten as a whole before anything of them
/// is read: what they held before is dead. If only a part is overwritten, it is
/// [`Access::ReadWrite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// When, in the client's time on the device since the begin of its period.
    pub at: Ns,
    /// Which.
    pub range: Range,
    /// How.
    pub access: Access,
}

/// What a client touches, in the order of its own time, which passes only while the client runs. It
/// repeats: a training step, a decoded token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkingSet {
    /// How long until it repeats; all uses are before it. 0 counts as one nanosecond more than the
    /// last use.
    pub period: Ns,
    /// By time. A granule may come several times.
    pub uses: Vec<Use>,
}

/// A part of the timeline: who runs, for how long (its own time: what it waits for memory comes on
/// top).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Who.
    pub client: Client,
    /// For how long.
    pub length: Ns,
}

/// Where a granule's bytes are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Place {
    /// Nowhere yet: allocated, never touched, or dropped because it was dead.
    #[default]
    Nowhere,
    /// On the host alone.
    Host,
    /// On the device (and perhaps a good copy on the host too).
    Device,
}

/// An order's number. Never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderId(pub u64);

/// What is to be done with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// Bring it to the device.
    Prefetch,
    /// Give it room on the device without copying: what it held is dead, or it never held anything.
    Populate,
    /// Move it to the host.
    Evict,
    /// Evict it; the host's copy is still good, so nothing needs to be copied (correct also if it
    /// is not: the driver knows what is dirty).
    Release,
    /// Its content is dead: drop it from the device without copying.
    Discard,
    /// Tell the driver that it is mostly read, so that it keeps the host's copy (`true`), or take
    /// that back (`false`). Moves nothing, is not waited for, and [`super::Planner::done`] need not
    /// be called.
    Advise(bool),
}

/// Something for a client's helper to do. Those of one client are carried out in the order in which
/// they were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Its number.
    pub id: OrderId,
    /// Whose memory.
    pub client: Client,
    /// What.
    pub what: What,
    /// Which.
    pub range: Range,
}

/// How an order ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// As ordered.
    Done,
    /// The driver or the helper would not: the range stays where it was. It is not ordered again
    /// before the next switch.
    Refused,
}
