// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses cut into blocks and pages.

/// The driver's leaf, in which the ledger counts, bytes.
pub const PAGE_BYTES: u64 = 64 << 10;
/// The unit in which the driver evicts and prefetches, bytes.
pub const BLOCK_BYTES: u64 = 2 << 20;
/// Pages of a block: bits of a `u32`.
pub(super) const PAGES: u32 = (BLOCK_BYTES / PAGE_BYTES) as u32;
/// The unit in which the device reports faults, bytes.
const FAULT_BYTES: u64 = 4 << 10;

/// Some of an owner's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// Size, bytes.
    pub len: u64,
}

/// The part of a range that lies in one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockPart {
    /// Number of the block: its address over [`BLOCK_BYTES`].
    pub(super) number: u64,
    /// Pages that the range touches.
    pub(super) pages: u32,
}

impl Range {
    /// From an address on.
    pub fn new(start: u64, len: u64) -> Range {
        Range { start, len }
    }

    /// The first address behind it.
    pub fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Its parts, block by block. Pages touched in part count whole.
    pub(super) fn parts(self) -> impl Iterator<Item = BlockPart> {
        let (start, end) = (self.start, self.end());
        let last = if self.len == 0 {
            start / BLOCK_BYTES
        } else {
            (end - 1) / BLOCK_BYTES + 1
        };
        (start / BLOCK_BYTES..last).map(move |number| {
            let base = number * BLOCK_BYTES;
            let first = start.saturating_sub(base) / PAGE_BYTES;
            let behind = (end - base).min(BLOCK_BYTES).div_ceil(PAGE_BYTES);
            BlockPart {
                number,
                pages: mask(first as u32, behind as u32),
            }
        })
    }

    /// Number of 4 KiB units that it touches in a page of a block, 1 to 16.
    pub(super) fn faults(self, number: u64, page: u32) -> u32 {
        let base = number * BLOCK_BYTES + u64::from(page) * PAGE_BYTES;
        let from = self.start.max(base);
        let to = self.end().min(base + PAGE_BYTES);
        if to <= from {
            return 1;
        }
        (to.div_ceil(FAULT_BYTES) - from / FAULT_BYTES) as u32
    }
}

/// Pages from `first` to before `behind`.
pub(super) fn mask(first: u32, behind: u32) -> u32 {
    let below = |n: u32| if n >= PAGES { u32::MAX } else { (1 << n) - 1 };
    below(behind) & !below(first)
}

/// Size of these pages, bytes.
pub(super) fn bytes(pages: u32) -> u64 {
    u64::from(pages.count_ones()) * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_falls_into_blocks() {
        let parts: Vec<BlockPart> = Range::new(BLOCK_BYTES - 1, 2 + BLOCK_BYTES).parts().collect();
        let expected = [(0, 1 << 31), (1, u32::MAX), (2, 1)];
        assert_eq!(
            parts.iter().map(|part| (part.number, part.pages)).collect::<Vec<_>>(),
            expected
        );
        assert_eq!(Range::new(5, 0).parts().count(), 0);
        assert_eq!(mask(0, 32), u32::MAX);
        assert_eq!(mask(3, 5), 0b11000);
    }

    #[test]
    fn faults_are_counted_in_units_of_4_kib() {
        assert_eq!(Range::new(0, BLOCK_BYTES).faults(0, 7), 16);
        assert_eq!(Range::new(10, 10).faults(0, 0), 1);
        assert_eq!(Range::new(4095, 2).faults(0, 0), 2);
    }
}
