//! Which GPU the device is in the likeness of: what its driver and NVML answer, as far as models
//! differ.
//!
//! `SIMGPU_MODEL`: `a100` (the default) or `h100`. How fast it is says the calibration, and how
//! large it is the configuration, whatever the model.
//!
//! The A100's values: its data sheet, the programming guide's table of compute capability 8.0,
//! device listings. The H100's: `deviceQuery` of an H100 80GB HBM3 (the repository
//! thamada/nvidia-smi, nvsim/H100SXMx8_deviceQuery.py: clocks, multiprocessors, L2, shared memory),
//! OpenXLA's description of that device (shared memory of a block that asks for it), the
//! programming guide's table of compute capability 9.0, and, of L2 that persists, what an H200 says
//! (five eighths of its L2; window of 128 MiB).
#![forbid(unsafe_code)]

use std::sync::OnceLock;

use crate::config::ConfigError;

/// The variable that names it.
pub const VARIABLE: &str = "SIMGPU_MODEL";

/// One model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// What the variable calls it.
    pub key: &'static str,
    /// The name clients print.
    pub name: &'static str,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub processors: u32,
    /// Multiprocessors of the smallest MIG instance.
    pub slice_processors: u32,
    /// CUDA cores of a multiprocessor.
    pub cores: u32,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_per_processor: u32,
    /// Bytes of shared memory that a block may have which asks for it.
    pub shared_optin: u32,
    /// Bytes of L2, of its part that may persist, and of the window of addresses that may have it.
    pub l2: (i32, i32, i32),
    /// Boost clocks in MHz: graphics, multiprocessors, memory, video.
    pub clocks: [u32; 4],
    /// PCI device and vendor, and those of the board.
    pub pci: (u32, u32),
    /// `NVML_DEVICE_ARCH_...`.
    pub architecture: u32,
    /// Most blocks of a cluster; 0: it has no clusters, nor tensor maps.
    pub clusters: u32,
    /// Memory synchronisation domains.
    pub domains: i32,
}

/// All there are; the first is the default.
pub const MODELS: [Model; 2] = [
    Model {
        key: "a100",
        name: "NVIDIA A100-SXM4-40GB (simulated)",
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

/// Refuses a name of no model.
pub fn check() -> Result<(), ConfigError> {
    match asked() {
        Some(key) if MODELS.iter().all(|model| model.key != key) => Err(ConfigError::Variable(VARIABLE, key)),
        _ => Ok(()),
    }
}
