// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of an owner: bytes unless noted.

/// One owner's memory and traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerUsage {
    /// Managed memory allocated.
    pub allocated: u64,
    /// On the device or on its way there.
    pub resident: u64,
    /// On the host; pages on both count on both.
    pub on_host: u64,
    /// Number of batches of faults, per block.
    pub faults: u64,
    /// Copied to the device by a kernel's touch.
    pub faulted: u64,
    /// Created on the device by a kernel's first touch, without a copy.
    pub created: u64,
    /// Copied to the device by prefetches.
    pub prefetched: u64,
    /// Copied to the host by prefetches.
    pub returned: u64,
    /// Copied to the host because the device was full.
    pub evicted: u64,
    /// Left the device without a copy, as the host had one.
    pub dropped: u64,
    /// Discarded while on the device or the host.
    pub discarded: u64,
}
