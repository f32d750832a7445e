// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device facts from the driver.
#![forbid(unsafe_code)]

/// `CU_DEVICE_ATTRIBUTE_MPS_ENABLED`: contexts of this process on the device are shared under MPS.
/// Drivers before CUDA 12.4 refuse it.
pub const MPS_ENABLED: i32 = 133;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// From `cuDeviceGetName`.
    pub name: String,
    /// From `cuDeviceGetUuid`, hexadecimal.
    pub uuid: String,
    pub memory: u64,
    /// From `cuDriverGetVersion`.
    pub driver: u32,
    /// Whether this process shares it under MPS; `None` if the driver does not know.
    pub mps: Option<bool>,
}
