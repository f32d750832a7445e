//! What the device is.

use crate::abi::{Error, Handle, Out, R, Text, export};
use crate::facts;
use crate::system::ready;

/// The one device's handle. It looks like an aligned address and is followed by nobody.
pub(crate) const DEVICE: Handle = 0x51_6000;

/// Refuses every handle but the device's.
pub(crate) fn check(device: Handle) -> R {
    ready()?;
    if device == DEVICE {
        Ok(())
    } else {
        Err(Error::INVALID_ARGUMENT)
    }
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct PciInfo {
    legacy: [u8; 16],
    domain: u32,
    bus: u32,
    device: u32,
    id: u32,
    subsystem: u32,
    text: [u8; 32],
}

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from;
    }
    bytes
}

fn pci() -> PciInfo {
    let (domain, bus, device) = facts::PCI;
    let (legacy, text) = (padded(&facts::pci_text(true)), padded(&facts::pci_text(false)));
    PciInfo {
        legacy,
        domain,
        bus,
        device,
        id: facts::PCI_ID,
        subsystem: facts::PCI_SUBSYSTEM,
        text,
    }
}

fn by_index(index: u32, device: &Out<Handle>) -> R {
    ready()?;
    if index == 0 {
        device.set(DEVICE)
    } else {
        Err(Error::INVALID_ARGUMENT)
    }
}

/// `domain:bus:device.function`, in hexadecimal, the function optional.
fn by_pci(text: &Text, device: &Out<Handle>) -> R {
    ready()?;
    let text = text.get()?;
    let numbers: Result<Vec<u32>, _> = text
        .split([':', '.'])
        .map(|part| u32::from_str_radix(part, 16))
        .collect();
    let (domain, bus, slot) = facts::PCI;
    match numbers.as_deref() {
        Ok([d, b, s] | [d, b, s, 0]) if (*d, *b, *s) == (domain, bus, slot) => device.set(DEVICE),
        Ok([b, s]) if domain == 0 && (*b, *s) == (bus, slot) => device.set(DEVICE),
        Ok(_) => Err(Error::NOT_FOUND),
        Err(_) => Err(Error::INVALID_ARGUMENT),
    }
}

fn clock(kind: u32, clock: &Out<u32>) -> R {
    clock.set(*facts::CLOCKS.get(kind as usize).ok_or(Error::INVALID_ARGUMENT)?)
}

export! {
    fn nvmlDeviceGetCount(count: Out<u32>) {
        ready()?;
        count.set(1)
    }

    fn nvmlDeviceGetCount_v2(count: Out<u32>) {
        ready()?;
        count.set(1)
    }

    fn nvmlDeviceGetHandleByIndex(index: u32, device: Out<Handle>) {
        by_index(index, &device)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<Handle>) {
        by_index(index, &device)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Handle>) {
        ready()?;
        if uuid.get()?.eq_ignore_ascii_case(facts::UUID) { device.set(DEVICE) } else { Err(Error::NOT_FOUND) }
    }

    fn nvmlDeviceGetHandleByPciBusId(text: Text, device: Out<Handle>) {
        by_pci(&text, &device)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(text: Text, device: Out<Handle>) {
        by_pci(&text, &device)
    }

    fn nvmlDeviceGetIndex(device: Handle, index: Out<u32>) {
        check(device)?;
        index.set(0)
    }

    fn nvmlDeviceGetMinorNumber(device: Handle, number: Out<u32>) {
        check(device)?;
        number.set(0)
    }

    fn nvmlDeviceGetName(device: Handle, name: Out<u8>, room: u32) {
        check(device)?;
        name.text(room, facts::NAME)
    }

    fn nvmlDeviceGetUUID(device: Handle, uuid: Out<u8>, room: u32) {
        check(device)?;
        uuid.text(room, facts::UUID)
    }

    fn nvmlDeviceGetBrand(device: Handle, brand: Out<u32>) {
        check(device)?;
        brand.set(facts::BRAND)
    }

    fn nvmlDeviceGetArchitecture(device: Handle, architecture: Out<u32>) {
        check(device)?;
        architecture.set(facts::ARCHITECTURE)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: Out<i32>, minor: Out<i32>) {
        check(device)?;
        major.set(facts::CAPABILITY.0)?;
        minor.set(facts::CAPABILITY.1)
    }

    fn nvmlDeviceGetPciInfo(device: Handle, info: Out<PciInfo>) {
        check(device)?;
        info.set(pci())
    }

    fn nvmlDeviceGetPciInfo_v2(device: Handle, info: Out<PciInfo>) {
        check(device)?;
        info.set(pci())
    }

    fn nvmlDeviceGetPciInfo_v3(device: Handle, info: Out<PciInfo>) {
        check(device)?;
        info.set(pci())
    }

    fn nvmlDeviceGetNumGpuCores(device: Handle, cores: Out<u32>) {
        check(device)?;
        cores.set(facts::CORES)
    }

    fn nvmlDeviceGetMemoryBusWidth(device: Handle, bits: Out<u32>) {
        check(device)?;
        bits.set(facts::BUS_WIDTH)
    }

    fn nvmlDeviceGetClockInfo(device: Handle, kind: u32, megahertz: Out<u32>) {
        check(device)?;
        clock(kind, &megahertz)
    }

    fn nvmlDeviceGetMaxClockInfo(device: Handle, kind: u32, megahertz: Out<u32>) {
        check(device)?;
        clock(kind, &megahertz)
    }

    fn nvmlDeviceGetP2PStatus(device: Handle, peer: Handle, capability: u32, status: Out<u32>) {
        let _ = capability;
        check(device)?;
        check(peer)?;
        // NVML_P2P_STATUS_OK: the only peer is the device itself, and NCCL asks about that too.
        status.set(0)
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(device: Handle, generation: Out<u32>) {
        check(device)?;
        generation.set(4)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(device: Handle, generation: Out<u32>) {
        check(device)?;
        generation.set(4)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(device: Handle, lanes: Out<u32>) {
        check(device)?;
        lanes.set(16)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(device: Handle, lanes: Out<u32>) {
        check(device)?;
        lanes.set(16)
    }

    fn nvmlDeviceGetComputeMode(device: Handle, mode: Out<u32>) {
        check(device)?;
        mode.set(0) // shared by as many processes as there are
    }

    fn nvmlDeviceGetPersistenceMode(device: Handle, mode: Out<u32>) {
        check(device)?;
        mode.set(1)
    }

    fn nvmlDeviceGetMigMode(device: Handle, current: Out<u32>, pending: Out<u32>) {
        check(device)?;
        current.set(0)?;
        pending.set(0)
    }

    fn nvmlDeviceIsMigDeviceHandle(device: Handle, is_mig: Out<u32>) {
        check(device)?;
        is_mig.set(0)
    }

    fn nvmlDeviceGetDisplayMode(device: Handle, mode: Out<u32>) {
        check(device)?;
        mode.set(0)
    }

    fn nvmlDeviceGetDisplayActive(device: Handle, active: Out<u32>) {
        check(device)?;
        active.set(0)
    }

    fn nvmlDeviceOnSameBoard(one: Handle, other: Handle, same: Out<i32>) {
        check(one)?;
        check(other)?;
        same.set(1)
    }

    fn nvmlDeviceGetCpuAffinity(device: Handle, words: u32, set: Out<u64>) {
        // No processor is nearer than another.
        check(device)?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        (0..words as usize).try_for_each(|word| {
            let here = processors.saturating_sub(64 * word).min(64);
            set.set_at(word, if here == 64 { u64::MAX } else { (1 << here) - 1 })
        })
    }
}
