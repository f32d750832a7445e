// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device and the driver: the first line of every run.

use anyhow::Result;
use serde_json::{Value, json};

use crate::driver::Gpu;
use crate::report::Report;

/// Attributes by their numbers in the public header.
mod attribute {
    pub const MULTIPROCESSORS: i32 = 16;
    pub const PCI_BUS: i32 = 33;
    pub const PCI_DEVICE: i32 = 34;
    pub const PCI_DOMAIN: i32 = 50;
    pub const MAJOR: i32 = 75;
    pub const MINOR: i32 = 76;
    pub const COPY_ENGINES: i32 = 40;
    pub const MANAGED: i32 = 83;
    pub const CONCURRENT_MANAGED: i32 = 89;
    pub const PAGEABLE: i32 = 88;
    pub const PREEMPTION: i32 = 90;
}

/// Prints the line.
pub fn print(report: &Report) -> Result<()> {
    let gpu = Gpu::without_kernels()?;
    let attribute = |number| gpu.attribute(number).ok();
    let version = gpu.driver_version()?;
    let capability = match (attribute(attribute::MAJOR), attribute(attribute::MINOR)) {
        (Some(major), Some(minor)) => Some(format!("{major}.{minor}")),
        _ => None,
    };
    report
        .facts()
        .and("gpu", gpu.name()?)
        .and("driver", version)
        .and("simulated", gpu.is_simulated())
        .and("memory_bytes", gpu.total_memory()?)
        .and("free_bytes", gpu.free_memory()?)
        .and("compute_capability", capability)
        .and("multiprocessors", attribute(attribute::MULTIPROCESSORS))
        .and("copy_engines", attribute(attribute::COPY_ENGINES))
        .and("managed_memory", attribute(attribute::MANAGED))
        .and("concurrent_managed_access", attribute(attribute::CONCURRENT_MANAGED))
        .and("pageable_memory_access", attribute(attribute::PAGEABLE))
        .and("compute_preemption", attribute(attribute::PREEMPTION))
        .and("pci", pci(&gpu))
        .and("link", pci(&gpu).map(|device| link(&device)).unwrap_or_default())
        .and("uvm", uvm())
        .and("kernel_driver", first_line("/proc/driver/nvidia/version"))
        .and("host_memory_available", crate::host::available_memory().ok())
        .print();
    Ok(())
}

/// Place on the bus, as the kernel writes it.
fn pci(gpu: &Gpu) -> Option<String> {
    let number = |attribute| gpu.attribute(attribute).ok();
    let (domain, bus, device) = (
        number(attribute::PCI_DOMAIN)?,
        number(attribute::PCI_BUS)?,
        number(attribute::PCI_DEVICE)?,
    );
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.0"))
}

/// Present and greatest speed and width of the link; idle devices slow it down.
fn link(device: &str) -> Value {
    let read = |name: &str| first_line(&format!("/sys/bus/pci/devices/{device}/{name}"));
    json!({
        "speed": read("current_link_speed"),
        "width": read("current_link_width"),
        "most_speed": read("max_link_speed"),
        "most_width": read("max_link_width"),
        "numa_node": read("numa_node"),
    })
}

/// Settings of the kernel's part of managed memory, if readable: stock demand paging depends on
/// them.
fn uvm() -> Value {
    let parameters = [
        "uvm_perf_prefetch_enable",
        "uvm_perf_prefetch_threshold",
        "uvm_perf_prefetch_min_faults",
        "uvm_perf_fault_batch_count",
        "uvm_perf_thrashing_enable",
        "uvm_disable_hmm",
    ];
    let read = |name: &str| first_line(&format!("/sys/module/nvidia_uvm/parameters/{name}"));
    parameters
        .iter()
        .map(|name| ((*name).to_owned(), json!(read(name))))
        .collect()
}

fn first_line(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}
