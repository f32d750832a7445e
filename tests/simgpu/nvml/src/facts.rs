//! What every device is: the same as the simulated driver says (`driver/src/device`), which a test compares. Which there are says `simgpu_device::machine`.
#![forbid(unsafe_code)]

/// PCI device and vendor: the A100's.
pub(crate) const PCI_ID: u32 = 0x20b0_10de;
/// PCI identity of the board: the A100 SXM4's.
pub(crate) const PCI_SUBSYSTEM: u32 = 0x134f_10de;
/// Compute capability.
pub(crate) const CAPABILITY: (i32, i32) = (8, 0);
/// CUDA version that the driver supports.
pub(crate) const CUDA: i32 = 13020;
/// Driver release that first brought CUDA 13.2's level; clients compare its first number.
pub(crate) const DRIVER: &str = "595.45.04";
/// CUDA cores of a multiprocessor.
pub(crate) const CORES: u32 = 64;
/// Width of the memory bus in bits.
pub(crate) const BUS_WIDTH: u32 = 5120;
/// Boost clocks in MHz: graphics, multiprocessors, memory, video.
pub(crate) const CLOCKS: [u32; 4] = [1410, 1410, 1215, 1290];
/// `NVML_DEVICE_ARCH_AMPERE`.
pub(crate) const ARCHITECTURE: u32 = 7;
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
