// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts of every device, equal to the simulated driver's (`driver/src/device`), as a test checks.
//! `simgpu_device::machine` lists the devices, `simgpu_device::model` has the values that differ by
//! model.
#![forbid(unsafe_code)]

/// CUDA version that the driver supports.
pub(crate) const CUDA: i32 = 13020;
/// Driver release that first brought CUDA 13.2's level; clients compare its first number.
pub(crate) const DRIVER: &str = "595.45.04";
/// Width of the memory bus in bits.
pub(crate) const BUS_WIDTH: u32 = 5120;
/// `NVML_BRAND_NVIDIA`.
pub(crate) const BRAND: u32 = 14;

/// The PCI bus id as text: the domain in eight digits, or in four for the legacy form.
pub(crate) fn pci_text((domain, bus, device): (i32, i32, i32), legacy: bool) -> String {
    if legacy {
        format!("{domain:04X}:{bus:02X}:{device:02X}.0")
    } else {
        format!("{domain:08X}:{bus:02X}:{device:02X}.0")
    }
}
