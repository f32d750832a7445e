//! What goes on on the device: memory, use, processes.

use crate::abi::{Error, Handle, Out, R, export};
use crate::device::check;
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

/// Answers a list: with too little room, how much is needed.
fn list<T: Copy>(count: &Out<u32>, out: &Out<T>, found: &[T]) -> R {
    let room = count.get()?;
    count.set(u32::try_from(found.len()).map_err(|_| Error::UNKNOWN)?)?;
    if (room as usize) < found.len() {
        return Err(Error::INSUFFICIENT_SIZE);
    }
    found
        .iter()
        .enumerate()
        .try_for_each(|(at, item)| out.set_at(at, *item))
}

fn second(device: Handle, count: &Out<u32>, out: &Out<ProcessV2>) -> R {
    check(device)?;
    // No instance: the device is not divided.
    let of = |Process { pid, memory }| ProcessV2 {
        pid,
        memory,
        gpu_instance: u32::MAX,
        compute_instance: u32::MAX,
    };
    list(count, out, &live::processes().into_iter().map(of).collect::<Vec<_>>())
}

fn none(device: Handle, count: &Out<u32>) -> R {
    check(device)?;
    count.set(0)
}

export! {
    fn nvmlDeviceGetMemoryInfo(device: Handle, info: Out<[u64; 3]>) {
        check(device)?;
        let memory = live::memory().ok_or(Error::UNKNOWN)?;
        // Total, free, used.
        info.set([memory.total, memory.total.saturating_sub(memory.used), memory.used])
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, info: Out<MemoryV2>) {
        check(device)?;
        let version = info.get()?.version;
        let memory = live::memory().ok_or(Error::UNKNOWN)?;
        let free = memory.total.saturating_sub(memory.used);
        info.set(MemoryV2 { version, total: memory.total, reserved: 0, free, used: memory.used })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: Handle, info: Out<[u64; 3]>) {
        check(device)?;
        // 64 GiB, as the A100's; nothing is mapped through it. Total, free, used.
        info.set([64 << 30, 64 << 30, 0])
    }

    fn nvmlDeviceGetUtilizationRates(device: Handle, rates: Out<[u32; 2]>) {
        check(device)?;
        let (compute, memory) = live::utilization();
        rates.set([compute, memory])
    }

    fn nvmlDeviceGetComputeRunningProcesses(device: Handle, count: Out<u32>, out: Out<ProcessV1>) {
        check(device)?;
        let of = |Process { pid, memory }| ProcessV1 { pid, memory };
        list(&count, &out, &live::processes().into_iter().map(of).collect::<Vec<_>>())
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: Out<u32>, out: Out<ProcessV2>) {
        second(device, &count, &out)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: Out<u32>, out: Out<ProcessV2>) {
        second(device, &count, &out)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(device: Handle, count: Out<u32>, out: Out<ProcessV1>) {
        let _ = out;
        none(device, &count)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: Handle, count: Out<u32>, out: Out<ProcessV2>) {
        let _ = out;
        none(device, &count)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Handle, count: Out<u32>, out: Out<ProcessV2>) {
        let _ = out;
        none(device, &count)
    }

    fn nvmlDeviceGetFieldValues(device: Handle, count: i32, values: Out<FieldValue>) {
        // Each field has a result of its own.
        check(device)?;
        if values.is_null() {
            return Err(Error::INVALID_ARGUMENT);
        }
        (0..usize::try_from(count).unwrap_or(0)).try_for_each(|at| {
            let mut value = values.get_at(at)?;
            value.result = Error::NOT_SUPPORTED.0;
            values.set_at(at, value)
        })
    }
}
