// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cuInit`: opens the devices and puts the parts of the driver together.
#![deny(unsafe_code)]

use std::sync::Mutex;

use simgpu_device::lock::lock;
use simgpu_device::machine;

use crate::abi::{Error, Out, R};
use crate::export::export;
use crate::state::Driver;
use crate::timeline::Timeline;
use crate::{checkpoint, context, device, fork, helper, state};

fn start() -> R {
    static STARTING: Mutex<()> = Mutex::new(());
    if fork::is_forked() {
        return Err(Error::NOT_INITIALIZED);
    }
    let _one = lock(&STARTING);
    if state::is_started() {
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
    let timeline = Timeline::open(&devices, helper::reached)?;
    fork::watch()?;
    context::open_primaries(&timeline, devices.len())?;
    state::start(Driver::new(timeline, devices, gpus))?;
    checkpoint::listen();
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
