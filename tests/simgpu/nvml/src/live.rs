// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the running devices.
//!
//! The device process answers with JSON on its socket. A request starts no device and attaches
//! nothing, so monitoring changes nothing.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use simgpu_device::machine::Device;

/// One process on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    /// Process number.
    pub(crate) pid: u32,
    /// Device memory, bytes.
    pub(crate) memory: u64,
}

/// Bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    pub(crate) total: u64,
    pub(crate) used: u64,
}

fn status(device: &Device) -> Option<Value> {
    let text = simgpu_device::status(&device.socket()).ok()?;
    serde_json::from_str(&text).ok()
}

/// Total and used memory; without a running device, that of a newly started one.
pub(crate) fn memory(device: &Device) -> Option<MemoryUse> {
    match status(device) {
        Some(status) => {
            let memory = status.get("memory")?;
            Some(MemoryUse {
                total: memory.get("total")?.as_u64()?,
                used: memory.get("used")?.as_u64()?,
            })
        }
        None => {
            let total = match device.memory {
                Some(memory) => memory,
                None => simgpu_device::Config::from_environment().ok()?.device.memory,
            };
            Some(MemoryUse { total, used: 0 })
        }
    }
}

/// Processes with a context on the device.
pub(crate) fn processes(device: &Device) -> Vec<Process> {
    let status = status(device);
    let clients = status.as_ref().and_then(|status| status.get("clients")?.as_array());
    let process = |client: &Value| {
        let pid = u32::try_from(client.get("pid")?.as_u64()?).ok()?;
        Some(Process {
            pid,
            memory: client.get("memory")?.as_u64()?,
        })
    };
    clients
        .map(|clients| {
            clients
                .iter()
                .filter_map(process)
                .filter(|process| process.memory > 0)
                .collect()
        })
        .unwrap_or_default()
}

/// Name of a process on a device.
pub(crate) fn process_name(device: &Device, pid: u32) -> Option<String> {
    let status = status(device)?;
    let clients = status.get("clients")?.as_array()?;
    let client = clients
        .iter()
        .find(|client| client.get("pid").and_then(Value::as_u64) == Some(pid.into()))?;
    Some(client.get("process")?.as_str()?.to_string())
}

/// Per cent of the time since the last question during which a kernel ran, and a copy. NVML's own
/// window is a sixth of a second to a second. The first question covers the device's whole life.
pub(crate) fn utilization(device: &Device) -> (u32, u32) {
    static LAST: Mutex<BTreeMap<[u8; 16], [u64; 3]>> = Mutex::new(BTreeMap::new());
    let Some(status) = status(device) else { return (0, 0) };
    let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0);
    let copies: u64 = status
        .get("copy_ns")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .sum();
    let now = [number(status.get("now")), number(status.get("compute_ns")), copies];
    let mut all = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let last = all.entry(device.uuid).or_default();
    // A device started since then has younger clocks.
    let before = if now[0] < last[0] { [0; 3] } else { *last };
    *last = now;
    let elapsed = now[0] - before[0];
    let share = |n: usize| {
        let percent = now[n]
            .saturating_sub(before[n])
            .saturating_mul(100)
            .checked_div(elapsed)
            .unwrap_or(0);
        u32::try_from(percent.min(100)).unwrap_or(100)
    };
    (share(1), share(2))
}
