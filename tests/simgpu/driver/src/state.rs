// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process's state of the driver: the links to its devices, and whether it is initialised.
#![forbid(unsafe_code)]

use std::sync::OnceLock;

use simgpu_device::machine::{Device, Gpu};

use crate::abi::{Error, R};
use crate::fork;
use crate::timeline::Timeline;

/// The initialised driver.
pub(crate) struct Driver {
    /// The way to the devices.
    pub(crate) timeline: Timeline,
    /// Those that the process sees, by its numbers.
    pub(crate) devices: Vec<Device>,
    /// All that there are.
    gpus: Vec<Gpu>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

/// The driver, or the error of a process that has not called `cuInit`.
#[inline]
pub(crate) fn driver() -> R<&'static Driver> {
    if fork::is_forked() {
        return Err(Error::NOT_INITIALIZED);
    }
    DRIVER.get().ok_or(Error::NOT_INITIALIZED)
}

/// Is the process initialised, or the parent that it was forked from?
pub(crate) fn is_started() -> bool {
    DRIVER.get().is_some()
}

/// Makes this the process's driver.
pub(crate) fn start(driver: Driver) -> R {
    DRIVER.set(driver).map_err(|_| Error::UNKNOWN)?;
    fork::started();
    Ok(())
}

impl Driver {
    /// A driver with these devices of all that there are.
    pub(crate) fn new(timeline: Timeline, devices: Vec<Device>, gpus: Vec<Gpu>) -> Driver {
        Driver {
            timeline,
            devices,
            gpus,
        }
    }

    pub(crate) fn total_memory(&self, device: usize) -> usize {
        usize::try_from(self.timeline.memory(device).1).unwrap_or(usize::MAX)
    }

    /// The GPU that a device is, or is an instance of.
    pub(crate) fn whole<'a>(&'a self, device: &'a Device) -> &'a Device {
        self.gpus.get(device.gpu).map_or(device, |gpu| &gpu.whole)
    }
}
