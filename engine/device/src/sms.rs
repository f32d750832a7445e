// SPDX-License-Identifier: MIT OR Apache-2.0
//! Capacity of an SM, and the part of it that the blocks of a kernel take.
//!
//! A block takes the part of an SM that it needs most of: with `r` blocks of its kind in an SM it
//! takes `1 / r`. All SMs are one pool: the place of a free part makes no difference.

use crate::time::Ns;

/// An SM in units: the least common multiple of 1 to 32, so that `1 / r` of it is a whole number.
const SM_UNITS: u64 = 144_403_552_893_600;

/// Largest value of [`SmLimits::blocks`].
const MAX_BLOCKS_PER_SM: u32 = 32;

/// Largest value of [`SmLimits::sms`]: [`SM_UNITS`] times this fits in 64 bits.
const MAX_SMS: u32 = 65_536;

/// Shared memory that the system takes of each block, bytes (CUDA C++ Programming Guide, compute
/// capability 8.x and 9.0).
const SYSTEM_SHARED_BYTES: u32 = 1_024;

/// The SMs of a GPU, for [`crate::Mode::MpsShared`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SmLimits {
    /// Number of SMs.
    pub sms: u32,
    /// Threads that an SM holds.
    pub threads: u32,
    /// Blocks that an SM holds; 32 at most.
    pub blocks: u32,
    /// Shared memory of an SM, bytes.
    pub shared_bytes: u32,
    /// Registers of an SM.
    pub registers: u32,
    /// Assumed registers a thread of a kernel whose registers are not known. Convolutions and
    /// matrix products have 96 to 255, elementwise kernels 16 to 40.
    pub usual_registers: u32,
    /// How much longer blocks take, in thousandths, while others' blocks have all the rest of the
    /// device. It grows with the part that they have. No kernel's own need of bandwidth is known,
    /// so it is the same for all.
    pub contention: u32,
}

impl SmLimits {
    /// An A100: 108 SMs of 2,048 threads, 32 blocks and 164 KiB of shared memory.
    pub const A100_LIKE: SmLimits = SmLimits {
        sms: 108,
        threads: 2_048,
        blocks: 32,
        shared_bytes: 164 << 10,
        registers: 65_536,
        usual_registers: 64,
        contention: 300,
    };

    /// An H100: 132 SMs, 228 KiB of shared memory in each, else as [`SmLimits::A100_LIKE`].
    pub const H100_LIKE: SmLimits = SmLimits {
        sms: 132,
        shared_bytes: 228 << 10,
        ..SmLimits::A100_LIKE
    };

    /// The device in units.
    pub(crate) fn units(&self) -> u64 {
        u64::from(self.sms.clamp(1, MAX_SMS)) * SM_UNITS
    }

    /// The demand of a kernel on the device.
    pub(crate) fn need(&self, shape: KernelShape) -> BlockNeed {
        let resident = u64::from(self.resident(shape));
        let slots = u64::from(self.sms.clamp(1, MAX_SMS)) * resident;
        let blocks = match shape.blocks {
            0 => slots,
            blocks => u64::from(blocks),
        };
        BlockNeed {
            blocks,
            units: SM_UNITS / resident,
            waves: blocks.div_ceil(slots),
        }
    }

    /// Blocks of a kernel that one SM holds. A block that does not fit has an SM to itself.
    pub fn resident(&self, shape: KernelShape) -> u32 {
        if shape.blocks == 0 {
            return 1;
        }
        let threads = shape.threads.max(1).div_ceil(32).saturating_mul(32);
        let registers = match shape.registers {
            0 => self.usual_registers,
            registers => registers,
        };
        let by_threads = self.threads / threads;
        let by_shared = self.shared_bytes / shape.shared_bytes.saturating_add(SYSTEM_SHARED_BYTES);
        let by_registers = self.registers / threads.saturating_mul(registers.max(1));
        let most = self.blocks.min(MAX_BLOCKS_PER_SM);
        by_threads.min(by_shared).min(by_registers).clamp(1, most.max(1))
    }
}

/// A kernel's blocks, as far as they are known. The default is a kernel of unknown shape: one wave
/// of blocks that have an SM each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct KernelShape {
    /// Blocks of the grid; 0 if unknown.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory of a block, bytes.
    pub shared_bytes: u32,
    /// Registers of a thread; 0 if unknown.
    pub registers: u32,
}

impl KernelShape {
    /// The shape of a launch with this grid and block. A grid without blocks has an unknown shape.
    pub fn of(grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> KernelShape {
        let product = |sides: [u32; 3]| sides.into_iter().fold(1, u32::saturating_mul);
        KernelShape {
            blocks: product(grid),
            threads: product(block),
            shared_bytes,
            registers: 0,
        }
    }

    /// Part of a device's block slots that the kernel's blocks take over its whole time.
    pub fn share(self, limits: &SmLimits) -> f64 {
        let need = limits.need(self);
        need.blocks as f64 * need.units as f64 / (need.waves as f64 * limits.units() as f64)
    }
}

/// The demand of a kernel on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockNeed {
    pub blocks: u64,
    /// SM units of each block.
    pub units: u64,
    /// Rounds in which an otherwise idle device runs the blocks.
    pub waves: u64,
}

/// Progress of a kernel in a nanosecond at full speed, for each of its waves.
pub(crate) const PROGRESS_PER_NS: u64 = 1 << 20;

/// Progress of a block from its begin to its end, for a kernel that takes `duration` without
/// others.
pub(crate) fn block_progress(duration: Ns) -> u128 {
    u128::from(duration) * u128::from(PROGRESS_PER_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A100: SmLimits = SmLimits::A100_LIKE;

    fn resident(threads: u32, shared_bytes: u32, registers: u32) -> u32 {
        A100.resident(KernelShape {
            blocks: 1,
            threads,
            shared_bytes,
            registers,
        })
    }

    #[test]
    fn an_sm_holds_what_its_scarcest_part_allows() {
        assert_eq!(resident(32, 0, 16), 32, "blocks");
        assert_eq!(resident(1_024, 0, 32), 2, "threads");
        assert_eq!(resident(250, 0, 32), 8, "whole warps");
        assert_eq!(resident(128, 40 << 10, 32), 4, "shared memory");
        assert_eq!(resident(256, 0, 128), 2, "registers");
        assert_eq!(resident(256, 0, 0), 4, "usual registers");
        assert_eq!(resident(1_024, 200 << 10, 255), 1, "what does not fit has an SM");
    }

    #[test]
    fn waves_are_rounds_of_all_sms() {
        let shape = |blocks| KernelShape {
            blocks,
            threads: 1_024,
            ..KernelShape::default()
        };
        assert_eq!(A100.need(shape(108)).waves, 1);
        assert_eq!(A100.need(shape(109)).waves, 2);
        assert!((shape(54).share(&A100) - 0.5).abs() < 1e-12);
        let unknown = A100.need(KernelShape::default());
        assert_eq!((unknown.blocks, unknown.waves, unknown.units), (108, 1, SM_UNITS));
        assert_eq!(KernelShape::of([4, 3, 2], [32, 2, 1], 7).blocks, 24);
    }

    #[test]
    fn every_part_of_an_sm_is_whole() {
        for resident in 1..=u64::from(MAX_BLOCKS_PER_SM) {
            assert_eq!(SM_UNITS % resident, 0, "{resident}");
        }
        assert!(SM_UNITS.checked_mul(u64::from(MAX_SMS)).is_some());
    }
}
