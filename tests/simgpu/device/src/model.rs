// SPDX-License-Identifier: MIT OR Apache-2.0
//! The GPU model that the device imitates: the answers of its driver and NVML, as far as models
//! differ.
//!
//! `SIMGPU_MODEL`: `a100` (the default) or `h100`. Speed and memory are the calibration's.
//!
//! A100: its data sheet, the programming guide's table of compute capability 8.0, device listings.
//! H100: `deviceQuery` of an H100 80GB HBM3 (thamada/nvidia-smi, nvsim/H100SXMx8_deviceQuery.py:
//! clocks, multiprocessors, L2, shared memory), OpenXLA's description of that device (opt-in shared
//! memory of a block), the programming guide's table of compute capability 9.0. Its persisting L2
//! is as on an H200: five eighths of L2, window of 128 MiB.
#![forbid(unsafe_code)]

use std::sync::OnceLock;

use crate::config::ConfigError;

/// Variable that names the model.
pub const VARIABLE: &str = "SIMGPU_MODEL";

/// One model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// Value of the variable.
    pub key: &'static str,
    /// Name that clients print.
    pub name: &'static str,
    /// Calibration if no other is named.
    pub calibration: &'static str,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub processors: u32,
    /// Multiprocessors of the smallest MIG instance.
    pub slice_processors: u32,
    /// CUDA cores of a multiprocessor.
    pub cores: u32,
    /// Shared memory of a multiprocessor, bytes.
    pub shared_per_processor: u32,
    /// Shared memory that a block may opt into, bytes.
    pub shared_optin: u32,
    /// L2, the part of it that may persist, and the window of addresses for that, bytes.
    pub l2: (i32, i32, i32),
    /// Boost clocks in MHz: graphics, multiprocessors, memory, video.
    pub clocks: [u32; 4],
    /// PCI device and vendor, and those of the board.
    pub pci: (u32, u32),
    /// `NVML_DEVICE_ARCH_...`.
    pub architecture: u32,
    /// Most blocks of a cluster; 0: neither clusters nor tensor maps.
    pub clusters: u32,
    /// Memory synchronisation domains.
    pub domains: i32,
}

/// All models; the first is the default.
pub const MODELS: [Model; 2] = [
    Model {
        key: "a100",
        name: "NVIDIA A100-SXM4-40GB (simulated)",
        calibration: simgpu_calibration::STANDARD,
        capability: (8, 0),
        processors: 108,
        slice_processors: 14,
        cores: 64,
        shared_per_processor: 167_936,
        shared_optin: 166_912,
        l2: (41_943_040, 31_457_280, 134_213_632),
        clocks: [1410, 1410, 1215, 1290],
        pci: (0x20b0_10de, 0x134f_10de),
        architecture: 7,
        clusters: 0,
        domains: 1,
    },
    Model {
        key: "h100",
        name: "NVIDIA H100 80GB HBM3 (simulated)",
        calibration: "h100-like",
        capability: (9, 0),
        processors: 132,
        slice_processors: 16,
        cores: 128,
        shared_per_processor: 233_472,
        shared_optin: 232_448,
        l2: (52_428_800, 32_768_000, 134_217_728),
        clocks: [1980, 1980, 2619, 1545],
        pci: (0x2330_10de, 0x16c1_10de),
        architecture: 9,
        clusters: 8,
        domains: 4,
    },
];

fn asked() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|key| !key.is_empty())
}

/// The model of the process's devices.
pub fn model() -> &'static Model {
    static MODEL: OnceLock<&'static Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let key = asked();
        let found = MODELS.iter().find(|model| Some(model.key) == key.as_deref());
        found.unwrap_or(&MODELS[0])
    })
}

/// Refuses an unknown name.
pub fn check() -> Result<(), ConfigError> {
    match asked() {
        Some(key) if MODELS.iter().all(|model| model.key != key) => Err(ConfigError::Variable(VARIABLE, key)),
        _ => Ok(()),
    }
}
