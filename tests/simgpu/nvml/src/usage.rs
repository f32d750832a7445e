// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory, use and processes of the device.

use crate::abi::{Destination, Handle, NvmlError, R, export};
use crate::device::{check, workers};
use crate::live::{self, Process};

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessV1 {
    pid: u32,
    memory: u64,
}

/// `nvmlProcessInfo_v2_t`, which the third version of the calls has too.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessV2 {
    pid: u32,
    memory: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldValue {
    field: u32,
    scope: u32,
    timestamp: i64,
    latency: i64,
    kind: u32,
    result: u32,
    value: u64,
}

/// Answers a list; with too little room, the size that is needed.
fn list<T: Copy>(count: &Destination<u32>, out: &Destination<T>, found: &[T]) -> R {
    let room = count.get()?;
    count.set(u32::try_from(found.len()).map_err(|_| NvmlError::UNKNOWN)?)?;
    if (room as usize) < found.len() {
        return Err(NvmlError::INSUFFICIENT_SIZE);
    }
    found
        .iter()
        .enumerate()
        .try_for_each(|(at, item)| out.set_at(at, *item))
}

fn second(device: Handle, count: &Destination<u32>, out: &Destination<ProcessV2>) -> R {
    let mut found = Vec::new();
    for worker in workers(device)? {
        let instance = worker.instance.and_then(|at| u32::try_from(at + 1).ok());
        found.extend(
            live::processes(worker)
                .into_iter()
                .map(|Process { pid, memory }| ProcessV2 {
                    pid,
                    memory,
                    // No instance: the device is not divided.
                    gpu_instance: instance.unwrap_or(u32::MAX),
                    compute_instance: instance.map_or(u32::MAX, |_| 0),
                }),
        );
    }
    list(count, out, &found)
}

/// Memory of a divided GPU: used by all its instances, and its whole size.
fn memory(device: Handle) -> R<live::MemoryUse> {
    let whole = check(device)?;
    let mut used = 0;
    for worker in workers(device)? {
        used += live::memory(worker).ok_or(NvmlError::UNKNOWN)?.used;
    }
    let total = live::memory(whole).ok_or(NvmlError::UNKNOWN)?.total;
    Ok(live::MemoryUse { total, used })
}

fn none(device: Handle, count: &Destination<u32>) -> R {
    check(device)?;
    count.set(0)
}

export! {
    fn nvmlDeviceGetMemoryInfo(device: Handle, info: Destination<[u64; 3]>) {
        let memory = memory(device)?;
        // Total, free, used.
        info.set([memory.total, memory.total.saturating_sub(memory.used), memory.used])
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, info: Destination<MemoryV2>) {
        let memory = memory(device)?;
        let version = info.get()?.version;
        let free = memory.total.saturating_sub(memory.used);
        info.set(MemoryV2 { version, total: memory.total, reserved: 0, free, used: memory.used })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: Handle, info: Destination<[u64; 3]>) {
        check(device)?;
        // 64 GiB, as the A100's; nothing is mapped through it. Total, free, used.
        info.set([64 << 30, 64 << 30, 0])
    }

    fn nvmlDeviceGetUtilizationRates(device: Handle, rates: Destination<[u32; 2]>) {
        let each = workers(device)?.into_iter().map(live::utilization);
        let most = each.fold((0, 0), |most: (u32, u32), one| (most.0.max(one.0), most.1.max(one.1)));
        rates.set([most.0, most.1])
    }

    fn nvmlDeviceGetComputeRunningProcesses(device: Handle, count: Destination<u32>, out: Destination<ProcessV1>) {
        let of = |Process { pid, memory }| ProcessV1 { pid, memory };
        let all = workers(device)?.into_iter().flat_map(live::processes);
        list(&count, &out, &all.map(of).collect::<Vec<_>>())
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: Destination<u32>, out: Destination<ProcessV2>) {
        second(device, &count, &out)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: Destination<u32>, out: Destination<ProcessV2>) {
        second(device, &count, &out)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(device: Handle, count: Destination<u32>, out: Destination<ProcessV1>) {
        let _ = out;
        none(device, &count)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: Handle, count: Destination<u32>, out: Destination<ProcessV2>) {
        let _ = out;
        none(device, &count)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Handle, count: Destination<u32>, out: Destination<ProcessV2>) {
        let _ = out;
        none(device, &count)
    }

    fn nvmlDeviceGetFieldValues(device: Handle, count: i32, values: Destination<FieldValue>) {
        // Each field has a result of its own.
        check(device)?;
        if values.is_null() {
            return Err(NvmlError::INVALID_ARGUMENT);
        }
        (0..usize::try_from(count).unwrap_or(0)).try_for_each(|at| {
            let mut value = values.get_at(at)?;
            value.result = NvmlError::NOT_SUPPORTED.0;
            values.set_at(at, value)
        })
    }
}
