// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points about contexts in general.
#![deny(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, In, Out, R};
use crate::capture::rules;
use crate::context::current::{self, by_handle};
use crate::context::{CONTEXTS, Context};
use crate::export::export;
use crate::memory::pool;
use crate::state::Driver;
use crate::stream::{self, PRIORITIES, synchronize_context};
use crate::{device, event, memory, module, state};

fn create(context: Out<Handle>, flags: u32, device: i32, api_version: u32) -> R {
    let device = device::check(device)?;
    if flags & !0x7f != 0 || context.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let made = Context::make(&state::driver()?.timeline, device, false, flags, api_version)?;
    context.set(made.handle)?;
    current::push(made);
    Ok(())
}

fn pushed(handle: Handle) -> R<Arc<Context>> {
    state::driver()?;
    if handle == 0 {
        Err(Error::INVALID_CONTEXT)
    } else {
        by_handle(handle)
    }
}

/// Ends the objects of a context: streams, events, modules, memory.
pub(super) fn empty(driver: &Driver, context: &Arc<Context>) {
    let _ = synchronize_context(driver, context);
    stream::forget_context(context);
    event::forget_context(context);
    module::forget_context(context);
    memory::forget_context(driver, context);
}

/// Ends a created context.
fn destroy(driver: &Driver, handle: Handle) -> R {
    let context = CONTEXTS.get(handle).map_err(|_| Error::INVALID_CONTEXT)?;
    if context.is_primary {
        return Err(Error::INVALID_CONTEXT);
    }
    empty(driver, &context);
    context.end();
    CONTEXTS.remove(handle).map_err(|_| Error::INVALID_CONTEXT)?;
    current::forget(&context);
    driver.timeline.close_context(context.link);
    Ok(())
}

export! {
    fn cuCtxCreate(context: Out<Handle>, flags: u32, device: i32) {
        create(context, flags, device, 3010)
    }

    fn cuCtxCreate_v2(context: Out<Handle>, flags: u32, device: i32) {
        create(context, flags, device, 3020)
    }

    fn cuCtxCreate_v3(context: Out<Handle>, affinity: In<u64>, count: i32, flags: u32, device: i32) {
        let _ = (affinity, count);
        create(context, flags, device, 3020)
    }

    fn cuCtxCreate_v4(context: Out<Handle>, parameters: In<u64>, flags: u32, device: i32) {
        let _ = parameters;
        create(context, flags, device, 3020)
    }

    fn cuCtxDestroy(context: Handle) {
        destroy(state::driver()?, context)
    }

    fn cuCtxDestroy_v2(context: Handle) {
        destroy(state::driver()?, context)
    }

    fn cuCtxPushCurrent(context: Handle) {
        current::push(pushed(context)?);
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        current::push(pushed(context)?);
        Ok(())
    }

    fn cuCtxPopCurrent(context: Out<Handle>) {
        state::driver()?;
        context.set_if(current::pop().ok_or(Error::INVALID_CONTEXT)?);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        state::driver()?;
        context.set_if(current::pop().ok_or(Error::INVALID_CONTEXT)?);
        Ok(())
    }

    fn cuCtxSetCurrent(context: Handle) {
        state::driver()?;
        let next = if context == 0 { None } else { Some(by_handle(context)?) };
        current::set(next);
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<Handle>) {
        state::driver()?;
        context.set(current::handle())
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        device.set(current::any()?.ordinal())
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, context: Handle) {
        device.set(by_handle(context)?.ordinal())
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.set(current::any()?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: u32) {
        current::any()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetId(context: Handle, id: Out<u64>) {
        id.set(by_handle(context)?.id)
    }

    fn cuCtxGetApiVersion(context: Handle, version: Out<u32>) {
        version.set(by_handle(context)?.api_version)
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        let limits = lock(&current::any()?.limits).0;
        value.set(*limits.get(limit as usize).ok_or(Error::INVALID_VALUE)?)
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        let context = current::any()?;
        *lock(&context.limits).0.get_mut(limit as usize).ok_or(Error::INVALID_VALUE)? = value;
        Ok(())
    }

    fn cuCtxGetCacheConfig(config: Out<u32>) {
        config.set(current::any()?.cache_config.load(Ordering::Relaxed))
    }

    fn cuCtxSetCacheConfig(config: u32) {
        if config > 3 {
            return Err(Error::INVALID_VALUE);
        }
        current::any()?.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetSharedMemConfig(config: Out<u32>) {
        current::any()?;
        config.set(1) // banks of four bytes; not settable since sm_50
    }

    fn cuCtxSetSharedMemConfig(config: u32) {
        let _ = config;
        current::any()?;
        Ok(())
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current::any()?;
        least.set_if(PRIORITIES.0);
        greatest.set_if(PRIORITIES.1);
        Ok(())
    }

    fn cuCtxGetExecAffinity(affinity: Out<u64>, kind: u32) {
        let _ = (affinity, kind);
        current::any()?;
        Err(Error::NOT_SUPPORTED)
    }

    fn cuCtxResetPersistingL2Cache() {
        current::any()?;
        Ok(())
    }

    fn cuCtxSynchronize() {
        let context = current::get()?;
        rules::may_synchronize_context(context.id)?;
        let driver = state::driver()?;
        synchronize_context(driver, &context)?;
        pool::synchronized(driver);
        Ok(())
    }

    fn cuCtxSynchronize_v2(context: Handle) {
        let context = by_handle(context)?;
        rules::may_synchronize_context(context.id)?;
        let driver = state::driver()?;
        synchronize_context(driver, &context)?;
        pool::synchronized(driver);
        Ok(())
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) {
        let _ = flags;
        by_handle(peer)?;
        Err(Error::PEER_ACCESS_UNSUPPORTED)
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        by_handle(peer)?;
        Err(Error(705)) // PEER_ACCESS_NOT_ENABLED
    }
}
