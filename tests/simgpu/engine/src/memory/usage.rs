//! What is counted for each owner, bytes but where it says otherwise.

/// One owner's memory and traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerUsage {
    /// Managed memory allocated.
    pub allocated: u64,
    /// On the device now, what is on its way there included.
    pub resident: u64,
    /// On the host now; what lies on both counts on both.
    pub on_host: u64,
    /// Batches of faults, counted once for each block.
    pub faults: u64,
    /// Copied to the device because a kernel touched it.
    pub faulted: u64,
    /// Came to be on the device at a kernel's first touch: nothing was copied.
    pub created: u64,
    /// Copied to the device by prefetches.
    pub prefetched: u64,
    /// Copied to the host by prefetches.
    pub returned: u64,
    /// Copied to the host because the device was full.
    pub evicted: u64,
    /// Left the device without a copy, since the host had the same.
    pub dropped: u64,
    /// Given up by discards while it lay on the device or the host.
    pub discarded: u64,
}
