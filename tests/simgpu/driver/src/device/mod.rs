// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device queries. Devices are numbered as the process sees them (`visible.rs`).
//! `simgpu_device::machine` lists all devices.
#![deny(unsafe_code)]

pub(crate) mod attributes;
pub(crate) mod support;
pub(crate) mod visible;

use crate::abi::{Error, In, Out, R};
use crate::export::export;
use crate::state;
use simgpu_device::machine::Device;
use simgpu_device::model::model;

/// CUDA version the driver reports (13.2).
pub(crate) const VERSION: u32 = 13020;

fn pci_text(device: &Device) -> String {
    let (domain, bus, number) = device.pci;
    format!("{domain:04X}:{bus:02X}:{number:02X}.0")
}

/// The device of a number; refuses those of none.
pub(crate) fn get(device: i32) -> R<&'static Device> {
    let devices = &state::driver()?.devices;
    let at = usize::try_from(device).map_err(|_| Error::INVALID_DEVICE)?;
    devices.get(at).ok_or(Error::INVALID_DEVICE)
}

/// Refuses the numbers of no device; the place of the others.
pub(crate) fn check(device: i32) -> R<usize> {
    get(device)?;
    usize::try_from(device).map_err(|_| Error::INVALID_DEVICE)
}

export! {
    fn cuDeviceGetCount(count: Out<i32>) {
        count.set(i32::try_from(state::driver()?.devices.len()).unwrap_or(i32::MAX))
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        check(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(name: Out<u8>, room: i32, device: i32) {
        name.text(usize::try_from(room).unwrap_or(0), &get(device)?.name)
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        // For an instance, the first version answers its GPU's UUID, the second its own.
        uuid.set(state::driver()?.whole(get(device)?).uuid)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(get(device)?.uuid)
    }

    fn cuDeviceGetLuid(luid: Out<u8>, mask: Out<u32>, device: i32) {
        check(device)?;
        let _ = (luid, mask);
        // LUIDs are another system's.
        Err(Error::NOT_SUPPORTED)
    }

    fn cuDeviceTotalMem(bytes: Out<u32>, device: i32) {
        let at = check(device)?;
        bytes.set(u32::try_from(state::driver()?.total_memory(at)).unwrap_or(u32::MAX))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        let at = check(device)?;
        bytes.set(state::driver()?.total_memory(at))
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) {
        value.set(attributes::value(attribute, get(device)?).ok_or(Error::INVALID_VALUE)?)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        check(device)?;
        major.set(model().capability.0)?;
        minor.set(model().capability.1)
    }

    fn cuDeviceGetProperties(properties: Out<[i32; 14]>, device: i32) {
        let device = get(device)?;
        // CUdevprop: threads a block, block extents, grid extents, shared memory, constant memory,
        // warp, pitch, registers, clock, texture alignment.
        let numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        properties.set(numbers.map(|n| attributes::value(n, device).unwrap_or(0)))
    }

    fn cuDeviceGetPCIBusId(text: Out<u8>, room: i32, device: i32) {
        text.text(usize::try_from(room).unwrap_or(0), &pci_text(get(device)?))
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: In<u8>) {
        state::driver()?;
        let asked = text.text()?.to_ascii_uppercase();
        let names = |one: &Device| {
            let full = pci_text(one);
            // [domain]:bus:device.function, bus:device.function and without function are all
            // accepted.
            let short = full.strip_prefix("0000:").unwrap_or(&full);
            let bare = |name: &str| name.strip_suffix(".0").unwrap_or(name).to_string();
            [full.clone(), short.to_string(), bare(&full), bare(short), format!("0000{full}")]
        };
        let found = state::driver()?.devices.iter().position(|one| names(one).contains(&asked));
        device.set(found.and_then(|at| i32::try_from(at).ok()).ok_or(Error::INVALID_DEVICE)?)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        check(device)?;
        check(peer)?;
        can.set(0)
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, source: i32, target: i32) {
        // A device is no peer of itself. It has no access to other devices, no atomics and no rank;
        // copies go through the host.
        if check(source)? == check(target)? || !(1..=4).contains(&attribute) {
            return Err(Error::INVALID_DEVICE);
        }
        value.set(0)
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
