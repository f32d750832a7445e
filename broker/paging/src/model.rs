// SPDX-License-Identifier: MIT OR Apache-2.0
//! Inputs and outputs of the planner.
#![forbid(unsafe_code)]

pub use weft_profiles::working_set::Access;

use weft_protocol::{Client, Ns};

/// Neighbouring granules of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GranuleRange {
    /// Number of the first granule.
    pub first: u64,
    /// Number of granules.
    pub count: u32,
}

impl GranuleRange {
    /// Number of the first granule behind it.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }

    /// Numbers of its granules.
    pub fn granules(&self) -> std::ops::Range<u64> {
        self.first..self.end()
    }
}

/// Granules that a client uses at some point of its own time.
///
/// [`Access::Write`]: whole granules are overwritten before they are read, so their content is
/// dead. A partial overwrite is [`Access::ReadWrite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// Client time since the start of its period.
    pub at: Ns,
    /// The granules.
    pub range: GranuleRange,
    /// Kind of access.
    pub access: Access,
}

/// Uses of a client in a period (a training step, a decoded token), by its own time, which passes
/// only while it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkingSet {
    /// Time until it repeats, after all uses. 0 counts as the last use + 1 ns.
    pub period: Ns,
    /// Uses by time. A granule may occur several times.
    pub uses: Vec<Use>,
}

/// Entry of the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidencySlot {
    /// The client that runs.
    pub client: Client,
    /// Own time of the client, without waits for memory.
    pub length: Ns,
}

/// Place of a granule's bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum GranulePlace {
    /// Nowhere: never touched, or dropped as dead.
    #[default]
    Nowhere,
    /// Only on the host.
    Host,
    /// On the device; the host may have a copy.
    Device,
}

/// Number of an order, never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderId(pub u64);

/// Kind of an order on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderKind {
    /// Move it to the device.
    Prefetch,
    /// Give it room on the device: its content is dead or never was.
    Populate,
    /// Move it to the host.
    Evict,
    /// Evict it without a copy: the host's is good. A stale copy does no harm, as the driver knows
    /// what is dirty.
    Release,
    /// Drop it from the device: its content is dead.
    Discard,
    /// Mark as mostly read, so that the host's copy stays (`true`), or not (`false`).
    /// [`super::Planner::done`] is optional.
    Advise(bool),
}

/// An order to a client's memory thread, which keeps the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagingOrder {
    /// Its number.
    pub id: OrderId,
    /// Owner of the memory.
    pub client: Client,
    /// Kind.
    pub kind: OrderKind,
    /// The granules.
    pub range: GranuleRange,
}

/// End of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderStatus {
    /// As ordered.
    Done,
    /// Refused by driver or client: the range stays, and is not ordered again before the next
    /// switch.
    Refused,
}

/// One client's memory in bytes. Moves count since it joined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagingStats {
    /// The client; `None` only in a default row.
    pub client: Option<Client>,
    /// Allocated.
    pub allocated: u64,
    /// Known to be touched in a period.
    pub working_set: u64,
    /// On the device now.
    pub resident: u64,
    /// On its way to the device.
    pub arriving: u64,
    /// On its way off the device.
    pub leaving: u64,
    /// Copied to the device ahead of use.
    pub prefetched: u64,
    /// Copied to the host.
    pub evicted: u64,
    /// Taken off the device without a copy.
    pub released: u64,
    /// Dropped as dead.
    pub discarded: u64,
    /// Came in by faults.
    pub faulted: u64,
    /// Number of orders that were refused.
    pub refused: u64,
}
