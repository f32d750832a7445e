// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answers of `cuDeviceGetAttribute`: a consistent sm_80 device in the likeness of an A100, or
//! an sm_90 one in that of an H100.
//!
//! Numbers are those of the public header's `CUdevice_attribute`. `simgpu_device::model` has the
//! values that differ between the models, with their sources. The rest comes from `deviceQuery` and
//! the programming guide, and holds for both. Deliberately off: multicast and fabric handles, which
//! need several GPUs.
#![forbid(unsafe_code)]

use std::io::Write;
use std::sync::OnceLock;

use simgpu_device::config::{Config, Sharing, mps_daemon};
use simgpu_device::machine::Device;
use simgpu_device::model::model;

use crate::device::support::{Support, support};

/// Threads of a block, at most.
pub(crate) const MAX_THREADS: u32 = 1024;
/// Threads of a warp.
pub(crate) const WARP: u32 = 32;
/// Threads resident on one multiprocessor.
pub(crate) const THREADS_PER_PROCESSOR: u32 = 2048;
/// Blocks resident on one multiprocessor.
pub(crate) const BLOCKS_PER_PROCESSOR: u32 = 32;
/// Registers of one multiprocessor (and of one block, at most).
pub(crate) const REGISTERS: u32 = 65536;
/// Shared memory a block may have without asking.
pub(crate) const SHARED_PER_BLOCK: u32 = 49_152;
/// Shared memory the driver keeps for itself in each block.
pub(crate) const SHARED_RESERVED: u32 = 1024;
/// Grid extents.
pub(crate) const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65535, 65535];
/// Block extents.
pub(crate) const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Bytes of constant memory.
pub(crate) const CONSTANT: u32 = 65536;

/// Does this process share the device under MPS? Its own environment decides. With a real driver
/// the environment names the daemon's pipe.
fn mps() -> bool {
    static MPS: OnceLock<bool> = OnceLock::new();
    *MPS.get_or_init(|| {
        let mps = Config::from_environment().is_ok_and(|config| config.device.mode == Sharing::Mps);
        // A client of the daemon until the process ends.
        if mps
            && std::env::var_os("SIMGPU_MODE").is_some_and(|mode| mode == "control")
            && let Some(mut daemon) = mps_daemon()
        {
            let _ = daemon.write_all(b"client\n");
            std::mem::forget(daemon);
        }
        mps
    })
}

/// The compute mode (`SIMGPU_COMPUTE_MODE`): 0 is the default, 3 is exclusive.
fn compute_mode() -> i32 {
    std::env::var("SIMGPU_COMPUTE_MODE")
        .ok()
        .and_then(|mode| mode.parse().ok())
        .unwrap_or(0)
}

/// The last attribute that a driver of another age knows (`SIMGPU_ATTRIBUTES`).
fn last() -> i32 {
    static LAST: OnceLock<i32> = OnceLock::new();
    let said = || std::env::var("SIMGPU_ATTRIBUTES").ok()?.parse().ok();
    *LAST.get_or_init(|| said().unwrap_or(i32::MAX))
}

/// The value of an attribute; `None` for numbers that the header of 13.2 does not name.
pub(crate) fn value(attribute: i32, device: &Device) -> Option<i32> {
    if attribute > last() {
        return None;
    }
    let int = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    let model = model();
    let hopper = i32::from(model.clusters > 0);
    Some(match attribute {
        1 => int(MAX_THREADS),
        2..=4 => int(MAX_BLOCK[usize::try_from(attribute - 2).ok()?]),
        5..=7 => int(MAX_GRID[usize::try_from(attribute - 5).ok()?]),
        8 => int(SHARED_PER_BLOCK),
        9 => int(CONSTANT),
        10 => int(WARP),
        11 => i32::MAX, // largest pitch
        12 => int(REGISTERS),
        13 => int(1000 * model.clocks[1]),
        14 => 512, // texture alignment
        15 => 1,   // copies overlap kernels
        16 => int(device.processors),
        17 => 0, // no time limit on kernels
        18 => 0, // not integrated
        19 => 1, // maps host memory
        20 => compute_mode(),
        21 => 131_072,
        22 => 131_072,
        23 => 65_536,
        24..=26 => 16_384,
        27 | 28 => 32_768,
        29 => 2048,
        30 => 512, // surface alignment
        31 => 1,   // concurrent kernels
        32 => 1,   // ECC
        33 => device.pci.1,
        34 => device.pci.2,
        35 => 0,
        36 => int(1000 * model.clocks[2]),
        37 => 5120,       // bus width in bits
        38 => model.l2.0, // L2
        39 => int(THREADS_PER_PROCESSOR),
        40 => 3, // copy engines as both report them
        41 => 1, // unified addressing
        42 => 32_768,
        43 => 2048,
        44 => 1,
        45 | 46 => 32_768,
        47 | 48 => 8192,
        49 => 32_768,
        50 => device.pci.0,
        51 => 32, // texture pitch alignment
        52 | 53 => 32_768,
        54 => 2046,
        55 => 32_768,
        56 => 131_072,
        57 => 65_536,
        58..=60 => 16_384,
        61 => 32_768,
        62 => 2048,
        63 | 64 => 32_768,
        65 => 2048,
        66 | 67 => 32_768,
        68 => 2046,
        69 => 268_435_456,
        70 => 131_072,
        71 => 65_000,
        72 => 2_097_120,
        73 | 74 => 32_768,
        75 => model.capability.0,
        76 => model.capability.1,
        77 => 32_768,
        78 => 1, // stream priorities
        79 | 80 => 1,
        81 => int(model.shared_per_processor),
        82 => int(REGISTERS),
        83 => i32::from(support() != Support::None), // managed memory
        84 | 85 => 0,                                // single board
        86 => 0,                                     // no native host atomics over PCIe
        87 => 2,
        88 => 0,                                     // no pageable access
        89 => i32::from(support() != Support::None), // concurrent managed access
        90 => 1,                                     // compute preemption
        91 => 1,
        92..=94 => 0, // first versions of stream memory operations: removed with CUDA 12
        95 => 1,      // cooperative launch
        96 => 0,      // multi-device cooperative launch: removed with CUDA 13
        97 => int(model.shared_optin),
        98 => 1,
        99 => 1,
        100 | 101 => 0,
        102 => 1, // virtual memory management
        103 => 1, // POSIX file descriptors as handles
        104 | 105 => 0,
        106 => int(BLOCKS_PER_PROCESSOR),
        107 => 1,
        108 => model.l2.1,
        109 => model.l2.2,
        110 => 0, // no RDMA here
        111 => int(SHARED_RESERVED),
        112 => 0, // sparse arrays
        113 => 1,
        114 => 0, // no timeline semaphores
        115 => 1, // memory pools
        116..=118 => 0,
        119 => 1,      // pool handles: POSIX file descriptors
        120 => hopper, // cluster launch
        121 => 0,
        122 | 123 => 1, // stream memory operations
        124 => 0,
        125 => 0, // IPC events: refused, see event.rs
        126 => model.domains,
        127 => hopper, // tensor maps
        128 => 0,
        129 => 1, // unified function pointers
        130 => 0,
        131 => -1,
        132 => 0,
        133 => i32::from(mps()),
        134 => 0,
        135..=138 => 0,
        139 => model.pci.0.cast_signed(), // PCI identity
        140 => model.pci.1.cast_signed(),
        141..=143 => 0,
        144 | 145 => 0,
        146..=148 => 0,
        151..=156 => 0,
        _ => return None,
    })
}
