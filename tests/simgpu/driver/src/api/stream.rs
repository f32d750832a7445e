// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points about streams, except captures (`graph/capture`) and other topics' work.
#![deny(unsafe_code)]

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, In, Out, R};
use crate::api::enqueue::enqueue;
use crate::context::current;
use crate::export::export;
use crate::graph::capture::stream_destroyed;
use crate::memory::pool;
use crate::state;
use crate::stream::attributes::{PRIORITY, Value};
use crate::stream::{NON_BLOCKING, PRIORITIES, STREAMS, Stream, resolve};
use crate::work::{HostCall, StreamWork};

fn create(out: Out<Handle>, flags: u32, priority: i32) -> R {
    let driver = state::driver()?;
    let context = current::get()?;
    if flags & !NON_BLOCKING != 0 || out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let (least, greatest) = PRIORITIES;
    out.set(Stream::create(
        driver,
        &context,
        flags,
        priority.clamp(greatest, least),
    )?)
}

fn destroy(stream: Handle) -> R {
    state::driver()?;
    // Work on it continues; the link keeps the stream until it has ended.
    let stream = STREAMS.remove(stream)?;
    stream_destroyed(&stream);
    stream.context.check()
}

fn call(stream: Handle, call: HostCall) -> R {
    let driver = state::driver()?;
    let stream = resolve(driver, stream)?;
    enqueue(driver, &stream, StreamWork::Host(call))
}

export! {
    fn cuStreamCreate(stream: Out<Handle>, flags: u32) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, priority: i32) {
        create(stream, flags, priority)
    }

    fn cuStreamDestroy(stream: Handle) {
        destroy(stream)
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        destroy(stream)
    }

    fn cuStreamSynchronize(stream: Handle) {
        let driver = state::driver()?;
        let stream = resolve(driver, stream)?;
        stream.may_synchronize()?;
        stream.synchronize(driver)?;
        pool::synchronized(driver);
        Ok(())
    }

    fn cuStreamQuery(stream: Handle) {
        let driver = state::driver()?;
        let stream = resolve(driver, stream)?;
        stream.may_synchronize()?;
        if stream.is_idle(driver) { stream.context.check() } else { Err(driver.timeline.not_ready(stream.last())) }
    }

    fn cuStreamGetPriority(stream: Handle, priority: Out<i32>) {
        priority.set(resolve(state::driver()?, stream)?.priority())
    }

    fn cuStreamGetFlags(stream: Handle, flags: Out<u32>) {
        flags.set(resolve(state::driver()?, stream)?.flags)
    }

    fn cuStreamGetId(stream: Handle, id: Out<u64>) {
        id.set(resolve(state::driver()?, stream)?.id)
    }

    fn cuStreamGetDevice(stream: Handle, device: Out<i32>) {
        device.set(resolve(state::driver()?, stream)?.context.ordinal())
    }

    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) {
        context.set(resolve(state::driver()?, stream)?.context.handle)
    }

    fn cuStreamGetCtx_v2(stream: Handle, context: Out<Handle>, green: Out<Handle>) {
        let stream = resolve(state::driver()?, stream)?;
        green.set_if(0);
        context.set(stream.context.handle)
    }

    fn cuStreamGetGreenCtx(stream: Handle, green: Out<Handle>) {
        resolve(state::driver()?, stream)?;
        green.set(0)
    }

    fn cuStreamGetAttribute(stream: Handle, attribute: u32, value: Out<Value>) {
        let stream = resolve(state::driver()?, stream)?;
        let known = lock(&stream.attributes).get(attribute)?;
        if attribute == PRIORITY {
            return value.cast::<i32>().set(stream.priority());
        }
        value.set(known)
    }

    fn cuStreamSetAttribute(stream: Handle, attribute: u32, value: In<Value>) {
        let stream = resolve(state::driver()?, stream)?;
        let value = value.get()?;
        if attribute == PRIORITY {
            stream.set_priority((value[0] as u32).cast_signed());
            return Ok(());
        }
        lock(&stream.attributes).set(attribute, value)
    }

    fn cuStreamCopyAttributes(target: Handle, source: Handle) {
        let driver = state::driver()?;
        let (source, target) = (resolve(driver, source)?, resolve(driver, target)?);
        let attributes = lock(&source.attributes).clone();
        *lock(&target.attributes) = attributes;
        target.set_priority(source.priority());
        Ok(())
    }

    fn cuStreamAttachMemAsync(stream: Handle, pointer: u64, length: usize, flags: u32) {
        // Attachment limits which processor may touch managed memory; here both always may.
        let _ = (pointer, length, flags);
        let driver = state::driver()?;
        let stream = resolve(driver, stream)?;
        enqueue(driver, &stream, StreamWork::Empty)
    }

    fn cuLaunchHostFunc(stream: Handle, function: usize, data: usize) {
        call(stream, HostCall::function(function, data)?)
    }

    fn cuLaunchHostFunc_v2(stream: Handle, function: usize, data: usize, sync_mode: u32) {
        let _ = sync_mode;
        call(stream, HostCall::function(function, data)?)
    }

    fn cuStreamAddCallback(stream: Handle, callback: usize, data: usize, flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        let driver = state::driver()?;
        if resolve(driver, stream)?.is_capturing() {
            return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
        }
        call(stream, HostCall::callback(callback, stream, data)?)
    }
}
