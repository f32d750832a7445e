// SPDX-License-Identifier: MIT OR Apache-2.0
//! 32 pages as bit masks, and the density prefetcher.

use super::Owner;
use super::range::{PAGES, mask};

/// No block.
pub(super) const NONE: u32 = u32::MAX;

/// A block of 2 MiB, or the part of it that is allocated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) owner: Owner,
    /// Address over the block size.
    pub(super) number: u64,
    /// Pages that are allocated.
    pub(super) valid: u32,
    /// Pages on the device.
    pub(super) device: u32,
    /// Pages on the host.
    pub(super) host: u32,
    /// Pages on their way to the device. They have their room there, and still lie on the host if
    /// they did.
    pub(super) arriving: u32,
    /// Pages that a queued prefetch will bring to the device.
    pub(super) queued: u32,
    /// Pages advised as mostly read.
    pub(super) read_mostly: u32,
    /// Pages whose preferred location is the device. Others collapse to the host's copy.
    pub(super) prefers_device: u32,
    /// Neighbours in the order of eviction.
    pub(super) before: u32,
    pub(super) behind: u32,
}

impl Block {
    pub(super) fn new(owner: Owner, number: u64) -> Block {
        Block {
            owner,
            number,
            valid: 0,
            device: 0,
            host: 0,
            arriving: 0,
            queued: 0,
            read_mostly: 0,
            prefers_device: 0,
            before: NONE,
            behind: NONE,
        }
    }

    /// Pages that take room on the device.
    pub(super) fn held(&self) -> u32 {
        self.device | self.arriving
    }

    /// Pages whose host copy becomes stale when the device writes.
    pub(super) fn shared(&self) -> u32 {
        self.device & self.host
    }
}

/// The pages that the density prefetcher adds: for each faulted page the largest part of the block
/// of which more than `threshold` per cent is there or faulted. `there` are the pages on the
/// device, `valid` those that may be brought.
pub(super) fn widen(faulted: u32, there: u32, valid: u32, threshold: u32) -> u32 {
    if threshold >= 100 {
        return 0;
    }
    let counted = (faulted | there) & valid;
    let mut all = 0;
    let mut left = faulted;
    while left != 0 {
        let page = left.trailing_zeros();
        let mut part = 1 << page;
        let mut size = 2;
        while size <= PAGES {
            let first = page / size * size;
            let tree = mask(first, first + size) & valid;
            if (counted & tree).count_ones() * 100 > tree.count_ones() * threshold {
                part = tree;
            }
            size *= 2;
        }
        all |= part;
        left &= !part;
    }
    all & !faulted & !there & valid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_one_after_the_other_double_their_part() {
        // One page at a time from the front, threshold 51.
        let (mut there, mut faults) = (0_u32, Vec::new());
        while there != u32::MAX {
            let page = (!there).trailing_zeros();
            faults.push(page);
            there |= 1 << page;
            there |= widen(1 << page, there & !(1 << page), u32::MAX, 51);
        }
        assert_eq!(faults, [0, 1, 2, 4, 8, 16]);
    }

    #[test]
    fn a_low_threshold_brings_the_block_at_once_and_a_high_one_nothing() {
        assert_eq!(widen(1 << 9, 0, u32::MAX, 1), !(1 << 9));
        assert_eq!(widen(1 << 9, 0, u32::MAX, 100), 0);
        // Unallocated pages are neither brought nor missing.
        assert_eq!(widen(1, 0, 0b11, 49), 0b10);
    }
}
