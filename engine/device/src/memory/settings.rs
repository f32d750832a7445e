// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parameters of memory and of the link to the host. The defaults are those of `rtx5080-like.toml`
//! in the calibration folder, which has their sources.

use crate::Ns;

/// Capacity, limits, rates and costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySettings {
    /// Device memory for managed pages, bytes.
    pub capacity: u64,
    /// Host memory for managed pages, bytes: the most that can be allocated.
    pub host_limit: u64,
    /// Rate of prefetches towards the device with the other direction idle, bytes a microsecond.
    pub to_device: u64,
    /// Rate of prefetches towards the host with the other direction idle, bytes a microsecond.
    pub to_host: u64,
    /// Sum of both rates while both directions move, bytes a microsecond.
    pub both_ways: u64,
    /// Whether the two directions run at once; otherwise one piece moves at a time.
    pub duplex: bool,
    /// Cost of each block of a batch of faults before its data moves, ns.
    pub fault_batch: Ns,
    /// Faults of 4 KiB that the driver handles at once.
    pub batch_faults: u32,
    /// Cost of evicting a block to make room, without its data, ns.
    pub evict_block: Ns,
    /// The density prefetcher's threshold, per cent; from 100 on it is off.
    pub threshold: u32,
}

impl Default for MemorySettings {
    fn default() -> MemorySettings {
        MemorySettings {
            capacity: 16 << 30,
            host_limit: 96 << 30,
            to_device: 41_700,
            to_host: 41_700,
            both_ways: 63_500,
            duplex: true,
            fault_batch: 30_219,
            batch_faults: 256,
            evict_block: 77_000,
            threshold: 51,
        }
    }
}

impl MemorySettings {
    /// Time of a piece in one direction, with the other one idle or busy.
    pub(super) fn transfer(&self, to_host: bool, bytes: u64, other_busy: bool) -> Ns {
        let alone = if to_host { self.to_host } else { self.to_device };
        let rate = if other_busy && self.duplex {
            // The sum is shared in proportion to the directions' own rates; neither gets faster.
            let sum = u128::from(self.to_device) + u128::from(self.to_host);
            alone.min((u128::from(self.both_ways) * u128::from(alone) / sum.max(1)) as u64)
        } else {
            alone
        };
        (u128::from(bytes) * 1_000).div_ceil(u128::from(rate.max(1))) as Ns
    }
}
