// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices and their facts: GPUs by index, their MIG instances by their GPU.

use std::sync::OnceLock;

use simgpu_device::machine::{self, Device, Gpu};
use simgpu_device::model::model;

use crate::abi::{ClientString, Destination, Handle, NvmlError, R, export};
use crate::facts;
use crate::system::ready;

/// Handle of the first device; the others follow. Handles look like aligned addresses, but are
/// never followed.
const FIRST: Handle = 0x51_6000;
/// Distance from a GPU's handle to the next one's, and to its first instance's.
const STEP: Handle = 0x100;
const INSTANCE: Handle = 0x8;

/// The machine's GPUs. NVML ignores `CUDA_VISIBLE_DEVICES`.
pub(crate) fn gpus() -> &'static [Gpu] {
    static GPUS: OnceLock<Vec<Gpu>> = OnceLock::new();
    GPUS.get_or_init(|| {
        machine::gpus().unwrap_or_else(|error| {
            eprintln!("simnvml[{}] {error}", std::process::id());
            Vec::new()
        })
    })
}

/// The GPU of a handle, its own or an instance's, and the handle's device.
fn find(handle: Handle) -> R<(&'static Gpu, &'static Device)> {
    ready()?;
    let from = handle.checked_sub(FIRST).ok_or(NvmlError::INVALID_ARGUMENT)?;
    let gpu = gpus().get(from / STEP).ok_or(NvmlError::INVALID_ARGUMENT)?;
    let device = match from % STEP {
        0 => Some(&gpu.whole),
        within if within % INSTANCE == 0 => gpu.instances.get(within / INSTANCE - 1),
        _ => None,
    };
    Ok((gpu, device.ok_or(NvmlError::INVALID_ARGUMENT)?))
}

/// The device of a handle; an error if there is none.
pub(crate) fn check(handle: Handle) -> R<&'static Device> {
    find(handle).map(|(_, device)| device)
}

/// The devices on which a handle's work runs: itself, or its instances.
pub(crate) fn workers(handle: Handle) -> R<Vec<&'static Device>> {
    let (gpu, device) = find(handle)?;
    Ok(match device.instance {
        None if gpu.mig() => gpu.instances.iter().collect(),
        _ => vec![device],
    })
}

fn handle_of(device: &Device) -> Handle {
    FIRST + device.gpu * STEP + device.instance.map_or(0, |at| (at + 1) * INSTANCE)
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

fn pci(device: &Device) -> PciInfo {
    let (domain, bus, slot) = device.pci;
    let (legacy, text) = (
        padded(&facts::pci_text(device.pci, true)),
        padded(&facts::pci_text(device.pci, false)),
    );
    PciInfo {
        legacy,
        domain: domain.cast_unsigned(),
        bus: bus.cast_unsigned(),
        device: slot.cast_unsigned(),
        id: model().pci.0,
        subsystem: model().pci.1,
        text,
    }
}

fn by_index(index: u32, device: &Destination<Handle>) -> R {
    ready()?;
    let gpu = gpus().get(index as usize).ok_or(NvmlError::INVALID_ARGUMENT)?;
    device.set(handle_of(&gpu.whole))
}

fn by_uuid(text: &ClientString, device: &Destination<Handle>) -> R {
    ready()?;
    let text = text.get()?;
    let all = gpus()
        .iter()
        .flat_map(|gpu| std::iter::once(&gpu.whole).chain(&gpu.instances));
    let found = all
        .into_iter()
        .find(|device| device.uuid_text().eq_ignore_ascii_case(&text));
    device.set(handle_of(found.ok_or(NvmlError::NOT_FOUND)?))
}

/// `domain:bus:device.function`, in hexadecimal, the function optional.
fn by_pci(text: &ClientString, device: &Destination<Handle>) -> R {
    ready()?;
    let text = text.get()?;
    let numbers: Result<Vec<u32>, _> = text
        .split([':', '.'])
        .map(|part| u32::from_str_radix(part, 16))
        .collect();
    let numbers = numbers.map_err(|_| NvmlError::INVALID_ARGUMENT)?;
    let found = gpus().iter().map(|gpu| &gpu.whole).find(|one| {
        let (domain, bus, slot) = one.pci;
        let own = [domain.cast_unsigned(), bus.cast_unsigned(), slot.cast_unsigned()];
        match numbers.as_slice() {
            [d, b, s] | [d, b, s, 0] if [*d, *b, *s] == own => true,
            [b, s] => [0, *b, *s] == own,
            _ => false,
        }
    });
    device.set(handle_of(found.ok_or(NvmlError::NOT_FOUND)?))
}

fn clock(kind: u32, clock: &Destination<u32>) -> R {
    clock.set(*model().clocks.get(kind as usize).ok_or(NvmlError::INVALID_ARGUMENT)?)
}

export! {
    fn nvmlDeviceGetCount(count: Destination<u32>) {
        ready()?;
        count.set(u32::try_from(gpus().len()).unwrap_or(0))
    }

    fn nvmlDeviceGetCount_v2(count: Destination<u32>) {
        ready()?;
        count.set(u32::try_from(gpus().len()).unwrap_or(0))
    }

    fn nvmlDeviceGetHandleByIndex(index: u32, device: Destination<Handle>) {
        by_index(index, &device)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Destination<Handle>) {
        by_index(index, &device)
    }

    fn nvmlDeviceGetHandleByUUID(uuid: ClientString, device: Destination<Handle>) {
        by_uuid(&uuid, &device)
    }

    fn nvmlDeviceGetHandleByPciBusId(text: ClientString, device: Destination<Handle>) {
        by_pci(&text, &device)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(text: ClientString, device: Destination<Handle>) {
        by_pci(&text, &device)
    }

    fn nvmlDeviceGetIndex(device: Handle, index: Destination<u32>) {
        index.set(u32::try_from(check(device)?.gpu).unwrap_or(0))
    }

    fn nvmlDeviceGetMinorNumber(device: Handle, number: Destination<u32>) {
        number.set(u32::try_from(check(device)?.gpu).unwrap_or(0))
    }

    fn nvmlDeviceGetName(device: Handle, name: Destination<u8>, room: u32) {
        name.text(room, &check(device)?.name)
    }

    fn nvmlDeviceGetUUID(device: Handle, uuid: Destination<u8>, room: u32) {
        uuid.text(room, &check(device)?.uuid_text())
    }

    fn nvmlDeviceGetBrand(device: Handle, brand: Destination<u32>) {
        check(device)?;
        brand.set(facts::BRAND)
    }

    fn nvmlDeviceGetArchitecture(device: Handle, architecture: Destination<u32>) {
        check(device)?;
        architecture.set(model().architecture)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: Destination<i32>, minor: Destination<i32>) {
        check(device)?;
        major.set(model().capability.0)?;
        minor.set(model().capability.1)
    }

    fn nvmlDeviceGetPciInfo(device: Handle, info: Destination<PciInfo>) {
        info.set(pci(check(device)?))
    }

    fn nvmlDeviceGetPciInfo_v2(device: Handle, info: Destination<PciInfo>) {
        info.set(pci(check(device)?))
    }

    fn nvmlDeviceGetPciInfo_v3(device: Handle, info: Destination<PciInfo>) {
        info.set(pci(check(device)?))
    }

    fn nvmlDeviceGetNumGpuCores(device: Handle, cores: Destination<u32>) {
        cores.set(check(device)?.processors * model().cores)
    }

    fn nvmlDeviceGetMemoryBusWidth(device: Handle, bits: Destination<u32>) {
        check(device)?;
        bits.set(facts::BUS_WIDTH)
    }

    fn nvmlDeviceGetClockInfo(device: Handle, kind: u32, megahertz: Destination<u32>) {
        check(device)?;
        clock(kind, &megahertz)
    }

    fn nvmlDeviceGetMaxClockInfo(device: Handle, kind: u32, megahertz: Destination<u32>) {
        check(device)?;
        clock(kind, &megahertz)
    }

    fn nvmlDeviceGetP2PStatus(device: Handle, peer: Handle, capability: u32, status: Destination<u32>) {
        let _ = capability;
        // NVML_P2P_STATUS_OK for the device itself, about which NCCL asks too; of others, that the
        // topology does not allow it.
        let same = check(device)? == check(peer)?;
        status.set(if same { 0 } else { 5 })
    }

    fn nvmlDeviceGetMaxPcieLinkGeneration(device: Handle, generation: Destination<u32>) {
        check(device)?;
        generation.set(4)
    }

    fn nvmlDeviceGetCurrPcieLinkGeneration(device: Handle, generation: Destination<u32>) {
        check(device)?;
        generation.set(4)
    }

    fn nvmlDeviceGetMaxPcieLinkWidth(device: Handle, lanes: Destination<u32>) {
        check(device)?;
        lanes.set(16)
    }

    fn nvmlDeviceGetCurrPcieLinkWidth(device: Handle, lanes: Destination<u32>) {
        check(device)?;
        lanes.set(16)
    }

    fn nvmlDeviceGetComputeMode(device: Handle, mode: Destination<u32>) {
        check(device)?;
        mode.set(0) // shared by as many processes as there are
    }

    fn nvmlDeviceGetPersistenceMode(device: Handle, mode: Destination<u32>) {
        check(device)?;
        mode.set(1)
    }

    fn nvmlDeviceGetMigMode(device: Handle, current: Destination<u32>, pending: Destination<u32>) {
        let mig = u32::from(find(device)?.0.mig());
        current.set(mig)?;
        pending.set(mig)
    }

    fn nvmlDeviceIsMigDeviceHandle(device: Handle, is_mig: Destination<u32>) {
        is_mig.set(u32::from(check(device)?.instance.is_some()))
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Destination<u32>) {
        let gpu = find(device)?.0;
        count.set(if gpu.mig() { 7 } else { 0 })
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, index: u32, instance: Destination<Handle>) {
        let found = find(device)?.0.instances.get(index as usize).ok_or(NvmlError::NOT_FOUND)?;
        instance.set(handle_of(found))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance: Handle, device: Destination<Handle>) {
        let (gpu, found) = find(instance)?;
        if found.instance.is_none() {
            return Err(NvmlError::INVALID_ARGUMENT);
        }
        device.set(handle_of(&gpu.whole))
    }

    fn nvmlDeviceGetGpuInstanceId(device: Handle, id: Destination<u32>) {
        let instance = check(device)?.instance.ok_or(NvmlError::NOT_SUPPORTED)?;
        id.set(u32::try_from(instance + 1).unwrap_or(0))
    }

    fn nvmlDeviceGetComputeInstanceId(device: Handle, id: Destination<u32>) {
        check(device)?.instance.ok_or(NvmlError::NOT_SUPPORTED)?;
        id.set(0)
    }

    fn nvmlDeviceGetDisplayMode(device: Handle, mode: Destination<u32>) {
        check(device)?;
        mode.set(0)
    }

    fn nvmlDeviceGetDisplayActive(device: Handle, active: Destination<u32>) {
        check(device)?;
        active.set(0)
    }

    fn nvmlDeviceOnSameBoard(one: Handle, other: Handle, same: Destination<i32>) {
        same.set(i32::from(check(one)?.gpu == check(other)?.gpu))
    }

    fn nvmlDeviceGetCpuAffinity(device: Handle, words: u32, set: Destination<u64>) {
        // No processor is nearer than another.
        check(device)?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        (0..words as usize).try_for_each(|word| {
            let here = processors.saturating_sub(64 * word).min(64);
            set.set_at(word, if here == 64 { u64::MAX } else { (1 << here) - 1 })
        })
    }
}
