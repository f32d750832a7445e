// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points about events.
#![deny(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use simgpu_device::Op;

use crate::abi::{Error, Handle, Out, R};
use crate::capture::rules;
use crate::context::current::{self, by_handle};
use crate::effect::Effect;
use crate::event::{DISABLE_TIMING, EVENTS, EXTERNAL, Event};
use crate::export::export;
use crate::graph::capture::{capture_record, capture_wait};
use crate::memory::pool;
use crate::shared_event::{Bytes, EventHandleArgument, Shared};
use crate::timeline::device_of;
use crate::{state, stream};

/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: u32 = 4;
/// How often a thread looks that waits for another process's record.
const LOOK: Duration = Duration::from_micros(50);
fn create(out: Out<Handle>, flags: u32) -> R {
    if flags & !7 != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) || out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let shared = (flags & INTERPROCESS != 0).then(Shared::create).transpose()?;
    add(out, flags, shared)
}

fn add(out: Out<Handle>, flags: u32, shared: Option<Shared>) -> R {
    let context = current::get()?;
    out.set(Event::create(context, flags, shared))
}

fn destroy(event: Handle) -> R {
    state::driver()?;
    EVENTS.remove(event)?.context.check()
}

fn record(event: Handle, stream: Handle, flags: u32) -> R {
    let driver = state::driver()?;
    let event = EVENTS.get(event)?;
    let stream = stream::resolve(driver, stream)?;
    if flags & !EXTERNAL != 0 {
        return Err(Error::INVALID_VALUE);
    }
    if stream.is_capturing() {
        return capture_record(&stream, &event, flags);
    }
    if !Arc::ptr_eq(&event.context, &stream.context) {
        return Err(Error::INVALID_HANDLE);
    }
    event.record(driver, &stream, 0)
}

fn wait(stream: Handle, event: Handle, flags: u32) -> R {
    let driver = state::driver()?;
    let event = EVENTS.get(event)?;
    let stream = stream::resolve(driver, stream)?;
    if flags & !EXTERNAL != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let captured = event.captured();
    if stream.is_capturing() || captured.is_some() {
        return capture_wait(&stream, &event, captured, flags);
    }
    // Also if the device has passed it: the same operations reach the device in every run.
    if let Some(shared) = event.shared.clone().filter(|shared| shared.told() > 0) {
        let number = shared.told();
        let passed = Box::new(move || shared.has_passed(number));
        return stream
            .submit(driver, Op::Host, Some(Effect::Until(passed)), 0)
            .map(drop);
    }
    stream.wait_for(driver, event.seq())
}

/// Wall milliseconds between two records: a device with a dilation looks like a slower device.
fn elapsed(out: Out<f32>, start: Handle, end: Handle) -> R {
    let driver = state::driver()?;
    let (start, end) = (EVENTS.get(start)?, EVENTS.get(end)?);
    if (start.flags | end.flags) & DISABLE_TIMING != 0 {
        return Err(Error::INVALID_HANDLE);
    }
    let (first, last) = (start.recorded()?, end.recorded()?);
    let (Some(from), Some(to)) = (first.1, last.1) else {
        return Err(Error::INVALID_HANDLE);
    };
    // Each device has a clock of its own.
    if device_of(first.0) != device_of(last.0) {
        return Err(Error::INVALID_HANDLE);
    }
    driver.timeline.poll();
    start.context.check()?;
    let (Some(from), Some(to)) = (from.get(), to.get()) else {
        return Err(Error::NOT_READY);
    };
    #[expect(clippy::cast_precision_loss, reason = "the API answers in single precision")]
    let milliseconds =
        (i128::from(to) - i128::from(from)) as f64 / 1e6 * driver.timeline.dilation(device_of(first.0))?;
    #[expect(clippy::cast_possible_truncation, reason = "the API answers in single precision")]
    out.set(milliseconds as f32)
}

export! {
    fn cuEventCreate(event: Out<Handle>, flags: u32) {
        create(event, flags)
    }

    fn cuEventDestroy(event: Handle) {
        destroy(event)
    }

    fn cuEventDestroy_v2(event: Handle) {
        destroy(event)
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        record(event, stream, 0)
    }

    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: u32) {
        record(event, stream, flags)
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) {
        wait(stream, event, flags)
    }

    fn cuEventQuery(event: Handle) {
        let driver = state::driver()?;
        let event = EVENTS.get(event)?;
        let (seq, _) = event.recorded()?;
        rules::may_query()?;
        if event.open_record().is_some() {
            return Err(Error::NOT_READY);
        }
        event.context.check()?;
        if driver.timeline.is_done(seq) { event.context.check() } else { Err(driver.timeline.not_ready(seq)) }
    }

    fn cuEventSynchronize(event: Handle) {
        let driver = state::driver()?;
        let event = EVENTS.get(event)?;
        let (seq, _) = event.recorded()?;
        rules::may_query()?;
        event.context.check()?;
        driver.timeline.wait(seq)?;
        event.context.check()?;
        pool::synchronized(driver);
        if let Some((shared, number)) = event.open_record() {
            while !shared.has_passed(number) {
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(milliseconds, start, end)
    }

    fn cuCtxRecordEvent(context: Handle, event: Handle) {
        // Everything the context has so far: the legacy stream stands behind all blocking streams;
        // the others are waited for one by one.
        let driver = state::driver()?;
        let context = by_handle(context)?;
        let event = EVENTS.get(event)?;
        let legacy = stream::legacy(driver, &context)?;
        for stream in stream::of_context(&context) {
            if stream.is_capturing() {
                return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
            }
            if !Arc::ptr_eq(&stream, &legacy) {
                legacy.wait_for(driver, stream.last())?;
            }
        }
        event.record(driver, &legacy, 0)
    }

    fn cuCtxWaitEvent(context: Handle, event: Handle) {
        let driver = state::driver()?;
        let context = by_handle(context)?;
        let seq = EVENTS.get(event)?.seq();
        for stream in stream::of_context(&context) {
            if stream.is_capturing() {
                return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
            }
            stream.wait_for(driver, seq)?;
        }
        Ok(())
    }

    fn cuIpcGetEventHandle(handle: Out<Bytes>, event: Handle) {
        state::driver()?;
        let event = EVENTS.get(event)?;
        let shared = event.shared.as_ref().ok_or(Error::INVALID_VALUE)?;
        handle.set(shared.handle()?)
    }

    fn cuIpcOpenEventHandle(event: Out<Handle>, handle: EventHandleArgument) {
        state::driver()?;
        add(event, DISABLE_TIMING | INTERPROCESS, Some(Shared::open(handle.0)?))
    }
}
