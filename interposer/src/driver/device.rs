//! What the driver says of a device.
#![forbid(unsafe_code)]

/// A device that the process uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// As `cuDeviceGetName` says.
    pub name: String,
    /// As `cuDeviceGetUuid` says, in hexadecimal.
    pub uuid: String,
    /// Bytes.
    pub memory: u64,
    /// As `cuDriverGetVersion` says.
    pub driver: u32,
    /// Whether this process shares it under NVIDIA's multi-process service; `None`: the driver does
    /// not say.
    pub mps: Option<bool>,
}
