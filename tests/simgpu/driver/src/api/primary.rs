// SPDX-License-Identifier: MIT OR Apache-2.0
//! The primary context, which the runtime API and most clients use.
#![deny(unsafe_code)]

use std::sync::atomic::Ordering;

use crate::abi::{Error, Handle, Out, R};
use crate::api::context::empty;
use crate::export::export;
use crate::state;
use crate::{context, device};

fn release(device: i32) -> R {
    let device = device::check(device)?;
    let driver = state::driver()?;
    let primary = context::primary_of(device)?;
    if !primary.release()? {
        return Ok(());
    }
    empty(driver, primary);
    primary.end();
    driver.timeline.drain_context(device);
    Ok(())
}

fn reset(device: i32) -> R {
    let device = device::check(device)?;
    let driver = state::driver()?;
    let primary = context::primary_of(device)?;
    if primary.is_alive() {
        empty(driver, primary);
        primary.end();
        driver.timeline.drain_context(device);
        primary.release_all();
    }
    Ok(())
}

fn set_flags(device: i32, flags: u32) -> R {
    let device = device::check(device)?;
    if flags & !0x7f != 0 {
        return Err(Error::INVALID_VALUE);
    }
    context::primary_of(device)?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

export! {
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) {
        let device = device::check(device)?;
        let driver = state::driver()?;
        let primary = context::primary_of(device)?;
        context.set(primary.handle)?;
        primary.retain(&driver.timeline)
    }

    fn cuDevicePrimaryCtxRelease(device: i32) {
        release(device)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        release(device)
    }

    fn cuDevicePrimaryCtxReset(device: i32) {
        reset(device)
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        reset(device)
    }

    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) {
        set_flags(device, flags)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        set_flags(device, flags)
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let device = device::check(device)?;
        let primary = context::primary_of(device)?;
        flags.set_if(primary.flags.load(Ordering::Relaxed));
        active.set_if(i32::from(primary.is_alive()));
        Ok(())
    }
}
