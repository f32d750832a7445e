//! The device queries. There is one device, number 0, or none where `CUDA_VISIBLE_DEVICES` hides it.
#![deny(unsafe_code)]

pub(crate) mod attributes;
pub(crate) mod visible;

use crate::abi::{Error, In, Out, R};
use crate::export::export;
use crate::state;

/// The name clients print. It says what it is; no client parses more than the vendor's name in it.
pub(crate) const NAME: &str = "NVIDIA A100-SXM4-40GB (simulated)";
/// The device's UUID, the same in every process: NVML's answers must agree with ours.
pub(crate) const UUID: [u8; 16] = *b"\x5e\x1f\x6d\x75\x00\x00\x40\x00\x80\x00weft\x00\x01";
/// CUDA version the driver reports (13.2).
pub(crate) const VERSION: u32 = 13020;

/// The UUID as text.
pub(crate) fn uuid_text() -> String {
    let hex: Vec<String> = UUID.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        hex[..4].concat(),
        hex[4..6].concat(),
        hex[6..8].concat(),
        hex[8..10].concat(),
        hex[10..].concat()
    )
}

fn pci_text() -> String {
    let (domain, bus, device) = attributes::PCI;
    format!("{domain:04X}:{bus:02X}:{device:02X}.0")
}

/// Refuses every device number but 0.
pub(crate) fn check(device: i32) -> R {
    state::driver()?;
    if device == 0 {
        Ok(())
    } else {
        Err(Error::INVALID_DEVICE)
    }
}

export! {
    fn cuDeviceGetCount(count: Out<i32>) {
        state::driver()?;
        count.set(1)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        check(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(name: Out<u8>, room: i32, device: i32) {
        check(device)?;
        name.text(usize::try_from(room).unwrap_or(0), NAME)
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        check(device)?;
        uuid.set(UUID)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        check(device)?;
        uuid.set(UUID)
    }

    fn cuDeviceGetLuid(luid: Out<u8>, mask: Out<u32>, device: i32) {
        check(device)?;
        let _ = (luid, mask);
        // LUIDs are another system's.
        Err(Error::NOT_SUPPORTED)
    }

    fn cuDeviceTotalMem(bytes: Out<u32>, device: i32) {
        check(device)?;
        bytes.set(u32::try_from(state::driver()?.total_memory()).unwrap_or(u32::MAX))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        check(device)?;
        bytes.set(state::driver()?.total_memory())
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) {
        check(device)?;
        value.set(attributes::value(attribute).ok_or(Error::INVALID_VALUE)?)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        check(device)?;
        major.set(attributes::CAPABILITY.0)?;
        minor.set(attributes::CAPABILITY.1)
    }

    fn cuDeviceGetProperties(properties: Out<[i32; 14]>, device: i32) {
        check(device)?;
        // CUdevprop: threads a block, block extents, grid extents, shared memory, constant memory, warp, pitch, registers,
        // clock, texture alignment.
        let numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        properties.set(numbers.map(|n| attributes::value(n).unwrap_or(0)))
    }

    fn cuDeviceGetPCIBusId(text: Out<u8>, room: i32, device: i32) {
        check(device)?;
        text.text(usize::try_from(room).unwrap_or(0), &pci_text())
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: In<u8>) {
        state::driver()?;
        let asked = text.text()?.to_ascii_uppercase();
        let full = pci_text();
        // [domain]:bus:device.function, bus:device.function and without function are all accepted.
        let short = full.strip_prefix("0000:").unwrap_or(&full);
        let bare = |name: &str| name.strip_suffix(".0").unwrap_or(name).to_string();
        let names = [full.clone(), short.to_string(), bare(&full), bare(short)];
        if !names.contains(&asked) && asked != format!("0000{full}") {
            return Err(Error::INVALID_DEVICE);
        }
        device.set(0)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        check(device)?;
        check(peer)?;
        can.set(0)
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, source: i32, target: i32) {
        let _ = (value, attribute);
        check(source)?;
        check(target)?;
        // A device is no peer of itself, and there is no other.
        Err(Error::INVALID_DEVICE)
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(width: Out<usize>, format: u32, channels: u32, device: i32) {
        let _ = (format, channels);
        check(device)?;
        width.set(1 << 28)
    }

    fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, kind: u32, device: i32) {
        let _ = kind;
        check(device)?;
        supported.set(0)
    }

    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) {
        let _ = (target, scope);
        state::driver()?;
        Err(Error::NOT_SUPPORTED)
    }
}
