// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sync points: calls after which the client knows that work has ended. The session learns it at no
//! extra cost.

use std::ffi::c_void;

use super::declare::{hooks, per_thread, written};
use super::pools;
use crate::deferred;
use crate::driver::abi::{Copy2d, Copy3d, CuContext, CuDevicePtr, CuEvent, CuResult, CuStream, MEMORY_HOST};
use crate::driver::capture;
use crate::driver::symbols::StreamOp;
use crate::throttle::{self, Synced};

/// CU_EVENT_DISABLE_TIMING.
const WITHOUT_TIME: u32 = 2;

#[inline(always)]
fn wait(what: Synced, real: impl FnOnce() -> CuResult) -> CuResult {
    let since = throttle::wait_begins(what);
    let result = real();
    if result.ok() {
        throttle::synced(what, since);
        pools::synced();
    }
    result
}

/// Makes a query that succeeds when the work has ended.
#[inline(always)]
fn ask(what: Synced, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if result.ok() {
        throttle::synced(what, 0);
        pools::synced();
    }
    result
}

/// Waits for an event. The broker compares the end of the wait with the work before the event.
#[inline(always)]
fn wait_for_event(event: CuEvent, real: impl FnOnce() -> CuResult) -> CuResult {
    let Some(since) = throttle::before_event_wait() else {
        return wait(Synced::Event(event), real);
    };
    let result = real();
    if result.ok() {
        throttle::event_waited(event, since);
        pools::synced();
    }
    result
}

/// Forgets an event: another event may get its handle from now on.
fn destroy(event: CuEvent, real: impl FnOnce() -> CuResult) -> CuResult {
    throttle::event_gone(event);
    real()
}

/// Queries whether a stream's work has ended. Deferred launches have not.
#[inline(always)]
fn ask_stream(stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    if deferred::busy()
        && let Some(answer) = deferred::answer_about(stream)
    {
        return answer;
    }
    ask(Synced::Stream(stream), real)
}

/// Makes a copy to host memory that returns when the bytes are there. So all earlier work on its
/// stream has ended.
#[inline(always)]
fn copy_out(bytes: u64, stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    if capture::on(stream) {
        return real();
    }
    throttle::before_stream_op(StreamOp::CopyToHost, bytes, stream);
    wait(Synced::Stream(stream), real)
}

/// # Safety
/// `copy` is null or the pointer that the client gives the driver.
#[inline(always)]
unsafe fn copy_2d(copy: *const Copy2d, stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    // SAFETY: the caller's promise.
    let Some(shape) = (unsafe { written(copy) }) else {
        return real();
    };
    let bytes = (shape.width as u64).saturating_mul(shape.height as u64);
    shaped(shape.source_kind, shape.target_kind, bytes, stream, real)
}

/// # Safety
/// `copy` is null or the pointer that the client gives the driver.
#[inline(always)]
unsafe fn copy_3d(copy: *const Copy3d, stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    // SAFETY: the caller's promise.
    let Some(shape) = (unsafe { written(copy) }) else {
        return real();
    };
    let slices = (shape.height as u64).saturating_mul(shape.depth as u64);
    shaped(
        shape.source_kind,
        shape.target_kind,
        (shape.width as u64).saturating_mul(slices),
        stream,
        real,
    )
}

fn shaped(source: u32, target: u32, bytes: u64, stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    if target == MEMORY_HOST && source != MEMORY_HOST {
        return copy_out(bytes, stream, real);
    }
    if !capture::on(stream) {
        let op = if source == MEMORY_HOST {
            StreamOp::CopyToDevice
        } else {
            StreamOp::CopyOnDevice
        };
        throttle::before_stream_op(op, bytes, stream);
    }
    real()
}

/// The legacy default stream, used by copies without a stream.
const LEGACY: CuStream = 0;

hooks! {
    fn cuCtxSynchronize() |real| { wait(Synced::Context, real) }
    fn cuCtxSynchronize_v2(context: CuContext) |real| { wait(Synced::Context, real) }
    fn cuStreamSynchronize(stream: CuStream) |real| { wait(Synced::Stream(stream), real) }
    fn cuStreamSynchronize_ptsz(stream: CuStream) |real| { wait(Synced::Stream(per_thread(stream)), real) }
    fn cuEventSynchronize(event: CuEvent) |real| { wait_for_event(event, real) }
    /// A job that times itself makes events with times.
    fn cuEventCreate(event: *mut CuEvent, flags: u32) |real| {
        let result = real();
        if result.ok() && flags & WITHOUT_TIME == 0 {
            // SAFETY: the driver wrote the event.
            if let Some(event) = unsafe { written(event) } {
                throttle::timed_event_made(event);
            }
        }
        result
    }
    fn cuEventDestroy(event: CuEvent) |real| { destroy(event, real) }
    fn cuEventDestroy_v2(event: CuEvent) |real| { destroy(event, real) }
    fn cuStreamQuery(stream: CuStream) |real| { ask_stream(stream, real) }
    fn cuStreamQuery_ptsz(stream: CuStream) |real| { ask_stream(per_thread(stream), real) }
    fn cuEventQuery(event: CuEvent) |real| { ask(Synced::Event(event), real) }

    fn cuMemcpyDtoH(to: *mut c_void, from: u32, bytes: u32) |real| { copy_out(u64::from(bytes), LEGACY, real) }
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CuDevicePtr, bytes: usize) |real| { copy_out(bytes as u64, LEGACY, real) }
    fn cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: CuDevicePtr, bytes: usize) |real| {
        copy_out(bytes as u64, per_thread(0), real)
    }
    fn cuMemcpyAtoH(to: *mut c_void, array: usize, from: u32, bytes: u32) |real| {
        copy_out(u64::from(bytes), LEGACY, real)
    }
    fn cuMemcpyAtoH_v2(to: *mut c_void, array: usize, from: usize, bytes: usize) |real| {
        copy_out(bytes as u64, LEGACY, real)
    }
    fn cuMemcpyAtoH_v2_ptds(to: *mut c_void, array: usize, from: usize, bytes: usize) |real| {
        copy_out(bytes as u64, per_thread(0), real)
    }
    fn cuMemcpy2D_v2(copy: *const Copy2d) |real| {
        // SAFETY: the client's promise.
        unsafe { copy_2d(copy, LEGACY, real) }
    }
    fn cuMemcpy2D_v2_ptds(copy: *const Copy2d) |real| {
        // SAFETY: the client's promise.
        unsafe { copy_2d(copy, per_thread(0), real) }
    }
    fn cuMemcpy2DUnaligned_v2(copy: *const Copy2d) |real| {
        // SAFETY: the client's promise.
        unsafe { copy_2d(copy, LEGACY, real) }
    }
    fn cuMemcpy2DUnaligned_v2_ptds(copy: *const Copy2d) |real| {
        // SAFETY: the client's promise.
        unsafe { copy_2d(copy, per_thread(0), real) }
    }
    fn cuMemcpy3D_v2(copy: *const Copy3d) |real| {
        // SAFETY: the client's promise.
        unsafe { copy_3d(copy, LEGACY, real) }
    }
    fn cuMemcpy3D_v2_ptds(copy: *const Copy3d) |real| {
        // SAFETY: the client's promise.
        unsafe { copy_3d(copy, per_thread(0), real) }
    }
}
