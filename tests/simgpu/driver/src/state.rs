//! What the process has of the driver: the links to its devices, whether it is initialised, whether
//! it was forked.
#![deny(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use simgpu_device::lock::lock;
use simgpu_device::machine::{self, Device, Gpu};

use crate::abi::{Error, Out, R};
use crate::context::Context;
use crate::export::export;
use crate::timeline::Timeline;
use crate::{device, fork};

/// The initialised driver.
pub(crate) struct Driver {
    /// The way to the devices.
    pub(crate) timeline: Timeline,
    /// Those that the process sees, by its numbers.
    pub(crate) devices: Vec<Device>,
    /// All that there are.
    gpus: Vec<Gpu>,
    /// The devices' primary contexts; a handle is valid from the start, the context is usable while
    /// retained.
    pub(crate) primaries: Vec<Arc<Context>>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
/// Set in a child that was forked after its parent had called `cuInit`: like the real driver, ours
/// does not survive that.
static FORKED: AtomicBool = AtomicBool::new(false);
static STARTING: Mutex<()> = Mutex::new(());

/// The driver, or the error of a process that has not called `cuInit`.
#[inline]
pub(crate) fn driver() -> R<&'static Driver> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(Error::NOT_INITIALIZED);
    }
    DRIVER.get().ok_or(Error::NOT_INITIALIZED)
}

/// Is this a child that was forked after its parent's `cuInit`?
#[inline]
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Called in the child of every fork.
pub(crate) fn forked() {
    if DRIVER.get().is_some() {
        FORKED.store(true, Ordering::Relaxed);
    }
}

impl Driver {
    pub(crate) fn total_memory(&self, device: usize) -> usize {
        usize::try_from(self.timeline.memory(device).1).unwrap_or(usize::MAX)
    }

    /// The primary context of a device.
    pub(crate) fn primary(&self, device: usize) -> R<&Arc<Context>> {
        self.primaries.get(device).ok_or(Error::INVALID_DEVICE)
    }

    /// The GPU that a device is, or is an instance of.
    pub(crate) fn whole<'a>(&'a self, device: &'a Device) -> &'a Device {
        self.gpus.get(device.gpu).map_or(device, |gpu| &gpu.whole)
    }
}

fn start() -> R {
    if FORKED.load(Ordering::Relaxed) {
        return Err(Error::NOT_INITIALIZED);
    }
    let _one = lock(&STARTING);
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let gpus = machine::gpus().map_err(|error| {
        eprintln!("simcuda[{}] cuInit: {error}", std::process::id());
        Error::UNKNOWN
    })?;
    let devices = device::visible::devices(variable.as_deref(), &gpus);
    if devices.is_empty() {
        return Err(Error::NO_DEVICE);
    }
    let timeline = Timeline::open(&devices)?;
    let primaries = (0..devices.len()).map(|device| Context::primary(&timeline, device));
    let primaries = primaries.collect::<R<Vec<_>>>()?;
    fork::watch()?;
    let driver = Driver {
        timeline,
        devices,
        gpus,
        primaries,
    };
    DRIVER.set(driver).map_err(|_| Error::UNKNOWN)?;
    Ok(())
}

export! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        start()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(i32::try_from(device::VERSION).unwrap_or(i32::MAX))
    }
}
