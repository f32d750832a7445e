//! What is shown of each client's memory.
#![forbid(unsafe_code)]

use weft_protocol::Client;

/// One client's memory, in bytes. Counts of what was moved are since it joined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// Who; `None` only in a default row.
    pub client: Option<Client>,
    /// All that it has.
    pub allocated: u64,
    /// What it is known to touch in a period.
    pub working_set: u64,
    /// What lies on the device now.
    pub resident: u64,
    /// What is on its way to the device.
    pub arriving: u64,
    /// What is on its way to the host.
    pub leaving: u64,
    /// What was brought to the device ahead of its use, by copying.
    pub prefetched: u64,
    /// What was copied to the host.
    pub evicted: u64,
    /// What was taken off the device without copying, because the host's copy was good.
    pub released: u64,
    /// What was dropped, because it was dead.
    pub discarded: u64,
    /// What came in by faults.
    pub faulted: u64,
    /// Orders that were refused.
    pub refused: u64,
}
