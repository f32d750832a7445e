//! Statistics of each client's memory.
#![forbid(unsafe_code)]

use weft_protocol::Client;

/// One client's memory in bytes. Moves count from its joining.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
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
