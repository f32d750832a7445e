//! Device facts from the driver.
#![forbid(unsafe_code)]

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// From `cuDeviceGetName`.
    pub name: String,
    /// From `cuDeviceGetUuid`, hexadecimal.
    pub uuid: String,
    pub memory: u64,
    /// From `cuDriverGetVersion`.
    pub driver: u32,
    /// Whether this process shares it under MPS; `None` if the driver does not say.
    pub mps: Option<bool>,
}
