//! Which device and which driver: the first line of every run.

use anyhow::Result;

use crate::driver::Gpu;
use crate::report::Report;

/// Attributes by their numbers in the public header.
mod attribute {
    pub const MULTIPROCESSORS: i32 = 16;
    pub const MAJOR: i32 = 75;
    pub const MINOR: i32 = 76;
    pub const COPY_ENGINES: i32 = 40;
    pub const MANAGED: i32 = 83;
    pub const CONCURRENT_MANAGED: i32 = 89;
    pub const PAGEABLE: i32 = 88;
    pub const PREEMPTION: i32 = 90;
}

/// Prints it.
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
        .print();
    Ok(())
}
