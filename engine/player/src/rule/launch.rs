// SPDX-License-Identifier: MIT OR Apache-2.0
//! A rule's knowledge of a launch: the profile's time, and the properties that follow from its
//! identity.
#![forbid(unsafe_code)]

use weft_engine::{KernelShape, SmLimits};
use weft_kernel_id::KernelId;

use crate::Ns;

/// The part of the device that a kernel keeps busiest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelClass {
    /// Its arithmetic.
    Compute,
    /// Its memory.
    Memory,
    /// None of them, or unknown.
    #[default]
    Neither,
}

/// A kernel's needs on the device, as far as they follow from its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelNeeds {
    /// SMs that all its blocks take at once; if they do not fit, more than the device has.
    pub sms: u32,
    /// Number of its blocks.
    pub blocks: u32,
    /// The part of the device that it keeps busiest.
    pub class: KernelClass,
}

/// Words in the names of matrix products, convolutions and attention.
const COMPUTE: [&str; 12] = [
    "gemm", "gemv", "cutlass", "xmma", "conv", "winograd", "implicit", "fft", "flash", "fmha", "matmul", "dgrad",
];

impl KernelNeeds {
    /// The needs of a kernel on an A100, whose recordings weft brings. Registers are not in an
    /// identity: a usual number is taken. A graph takes all SMs.
    pub fn of(id: &KernelId) -> KernelNeeds {
        let limits = SmLimits::A100_LIKE;
        if id.graph_kernels().is_some() {
            return KernelNeeds {
                sms: limits.sms,
                ..KernelNeeds::default()
            };
        }
        let product = |sizes: [u32; 3]| {
            sizes
                .into_iter()
                .fold(1u32, |product, size| product.saturating_mul(size))
        };
        let blocks = product(id.grid);
        let resident = limits.resident(KernelShape {
            blocks,
            threads: product(id.block),
            shared_bytes: id.shared,
            registers: 0,
        });
        let name = id.symbol.to_ascii_lowercase();
        KernelNeeds {
            sms: blocks.div_ceil(resident.max(1)),
            blocks,
            class: match COMPUTE.iter().any(|word| name.contains(word)) {
                true => KernelClass::Compute,
                false => KernelClass::Memory,
            },
        }
    }
}

/// A rule's view of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaunchView {
    /// The profile's mean device time, ns; 0 if the profile does not know the kernel.
    pub time: Ns,
    /// Its needs on the device.
    pub needs: KernelNeeds,
    /// Whether it is a copy or a fill.
    pub transfer: bool,
}

/// The pieces in which a rewritten kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelPieces {
    /// Number of pieces, of equal length.
    pub count: u32,
    /// Time of them all, in thousandths of the kernel's own.
    pub permille: Ns,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_known_by_its_grid_and_its_name() {
        let id = |name: &str, grid, block, shared| KernelNeeds::of(&KernelId::new(1, name, grid, block, shared));
        // Registers: 65,536 / (256 x 64) = 4 blocks per SM.
        let gemm = id("ampere_sgemm_128x64_nn", [40, 2, 1], [256, 1, 1], 0);
        assert_eq!((gemm.sms, gemm.blocks, gemm.class), (20, 80, KernelClass::Compute));
        // Shared memory: 164 KiB / 49 KiB = 3 blocks per SM.
        let add = id("vectorized_elementwise_kernel", [1_000, 1, 1], [128, 1, 1], 48 << 10);
        assert_eq!((add.sms, add.class), (334, KernelClass::Memory));
        let graph = KernelNeeds::of(&KernelId::graph(7, 20));
        assert_eq!((graph.sms, graph.class), (108, KernelClass::Neither));
    }
}
