// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts and streams: the devices that a process uses, and the objects that a call may end.

use std::ffi::c_char;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::declare::{hooks, written};
use super::stream_priority;
use crate::deferred::tables;
use crate::driver::abi::{CuContext, CuDevice, CuResult, CuStream};
use crate::driver::capture;
use crate::driver::device::{Device, MPS_ENABLED};
use crate::driver::queries::{current_context, free_memory, within};
use crate::driver::stream::Stream;
use crate::driver::{calls, symbols};
use crate::internal_error::guarded;
use crate::lifecycle;
use crate::movable;
use crate::paging;
use crate::process;
use crate::throttle::{self, DeviceNumber, DeviceRequest};

/// Devices already reported, one bit per ordinal: 64 devices.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// Reports a device to the session once, when a context of it exists.
fn uses(device: CuDevice) {
    let Some(bit) = u32::try_from(device).ok().and_then(|at| 1u64.checked_shl(at)) else {
        return;
    };
    if TOLD.load(Ordering::Relaxed) & bit != 0 || capture::any() {
        return;
    }
    if TOLD.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        guarded(|| tables::device_used(device));
        guarded(|| throttle::device_seen(device, &describe(device)));
    }
}

fn describe(device: CuDevice) -> Device {
    let mut name = [0u8; 128];
    let mut uuid = [0u8; 16];
    let mut memory = 0usize;
    let mut driver = 0;
    // Values that the driver does not answer stay zero.
    // SAFETY: the buffer has the stated length.
    let _ = unsafe { calls::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), 128, device) };
    // SAFETY: the out-parameter is valid.
    if !unsafe { calls::cuDeviceGetUuid_v2(&mut uuid, device) }.ok() {
        // SAFETY: the out-parameter is valid.
        let _ = unsafe { calls::cuDeviceGetUuid(&mut uuid, device) };
    }
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { calls::cuDeviceTotalMem_v2(&mut memory, device) };
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { calls::cuDriverGetVersion(&mut driver) };
    let mut mps = 0;
    // SAFETY: the out-parameter is valid.
    let said = unsafe { calls::cuDeviceGetAttribute(&mut mps, MPS_ENABLED, device) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Device {
        name: String::from_utf8_lossy(name.get(..end).unwrap_or_default()).into_owned(),
        uuid: uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
        memory: memory as u64,
        driver: u32::try_from(driver).unwrap_or(0),
        mps: said.ok().then_some(mps != 0),
    }
}

/// Begins the session at the first context if a private table initialised the driver without
/// `cuInit`.
fn begin() {
    let mut count = 0;
    // SAFETY: the out-parameter is valid. An uninitialised driver answers with an error.
    if process::life().is_before() && unsafe { calls::cuDeviceGetCount(&mut count) }.ok() {
        lifecycle::initialised();
    }
}

/// Makes a context within admission.
///
/// # Safety
/// `context` is the out-parameter of `real`.
unsafe fn made(context: *const CuContext, device: CuDevice, real: impl Fn() -> CuResult) -> CuResult {
    begin();
    let enter = || throttle::enter(device, || sight(device));
    if guarded(enter) == Some(throttle::AdmissionAnswer::NoMemory) {
        return CuResult::OUT_OF_MEMORY;
    }
    let at = throttle::of_device(device);
    // A context also takes device memory.
    let grant = throttle::reserve_context(at);
    let result = grant.run(real);
    drop(grant);
    if result.ok() {
        uses(device);
        // SAFETY: the driver wrote the context.
        if let Some(context) = unsafe { written(context) } {
            probe(context, at);
            guarded(|| movable::context_made(context));
        }
    }
    result
}

/// Probes free memory when a context is new.
fn probe(context: CuContext, at: DeviceNumber) {
    if capture::any() {
        return;
    }
    throttle::probe_context(at, || {
        // A retained context is not yet current.
        within(context, || Ok(free_memory())).ok().flatten()
    });
}

/// Device for admission. `None` during a capture, and for a device that the driver does not know:
/// then the driver's own answer is enough.
fn sight(device: CuDevice) -> Option<DeviceRequest> {
    let about = (!capture::any())
        .then(|| describe(device))
        .filter(|about| about.memory > 0)?;
    let mut count = 0;
    // A missing count becomes one.
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { calls::cuDeviceGetCount(&mut count) };
    Some(DeviceRequest {
        uuid: about.uuid,
        total: about.memory,
        manageable: paging::is_open() && paging::backing::supported(device) && paging::backing::tried(&about.name),
        devices: u32::try_from(count).unwrap_or(0).max(1),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// This context.
    Made(CuContext),
    /// This context, if each attach has had its detach.
    Attached(CuContext),
    /// A device's primary context, unless it is still retained.
    Retained(CuDevice),
    /// A device's primary context, even if still retained.
    Primary(CuDevice),
}

impl Ends {
    /// The context that may end; 0 if unknown. Read before the call, after which the driver may
    /// reuse the handle.
    fn context(self) -> CuContext {
        match self {
            Ends::Made(context) | Ends::Attached(context) => context,
            Ends::Retained(device) | Ends::Primary(device) => primary(device),
        }
    }

    /// Whether the call, which answered `result`, ended `context`.
    fn ended(self, context: CuContext, result: CuResult) -> bool {
        result.ok()
            && match self {
                Ends::Made(_) | Ends::Primary(_) => true,
                // `cuCtxDetach` requires the current context, which is no longer current after it
                // has ended.
                Ends::Attached(_) => current_context() != context,
                Ends::Retained(device) => !is_active(device),
            }
    }
}

/// Each device's primary context as last retained. 0 = unknown.
static PRIMARIES: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

fn primary_place(device: CuDevice) -> Option<&'static AtomicUsize> {
    PRIMARIES.get(usize::try_from(device).ok()?)
}

/// A device's primary context if it has one now; 0 if unknown.
fn primary(device: CuDevice) -> CuContext {
    let Some(place) = primary_place(device) else { return 0 };
    let known = place.load(Ordering::Acquire);
    if known != 0 || capture::any() || !is_active(device) {
        return known;
    }
    // It was made without a call that weft saw. One more retain and release of a live context
    // changes nothing.
    let mut context = 0;
    // SAFETY: the out-parameter is valid.
    if !unsafe { calls::cuDevicePrimaryCtxRetain(&mut context, device) }.ok() {
        return 0;
    }
    // SAFETY: retained just now.
    if !unsafe { calls::cuDevicePrimaryCtxRelease_v2(device) }.ok() {
        // SAFETY: as above.
        let _ = unsafe { calls::cuDevicePrimaryCtxRelease(device) };
    }
    context
}

/// Whether a device's primary context lives; false if unknown. Allowed during a capture, which a
/// device query does not affect.
fn is_active(device: CuDevice) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both out-parameters are valid.
    let asked = unsafe { calls::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) };
    asked.ok() && active != 0
}

/// Makes a call that may end a context, and forgets a context that ended. If the context is
/// retained, its memory, pending errors and events live on.
fn ending(what: Ends, real: impl FnOnce() -> CuResult) -> CuResult {
    let context = guarded(|| what.context()).unwrap_or(0);
    let ending = guarded(lifecycle::context_ending);
    guarded(paging::context_ending);
    // A context also takes device memory.
    let changes = guarded(throttle::changing_anywhere);
    let ends = super::allocation::context_ending();
    let resting = guarded(|| movable::context_ending(context));
    let result = real();
    let ended = guarded(|| what.ended(context, result)).unwrap_or(result.ok());
    guarded(|| movable::context_left(context, resting.unwrap_or_default(), ended));
    if ended {
        guarded(|| lifecycle::context_ended(context));
        guarded(|| movable::context_ended(context));
        guarded(|| super::allocation::context_ended(context, ends));
        stream_priority::context_ended(context);
    }
    drop(ending);
    guarded(|| paging::context_ended(ended.then_some(context)));
    if ended {
        guarded(throttle::forget_contexts);
    }
    drop(changes);
    result
}

/// Reports the device of a context that was made without a call that weft saw, at its first device
/// query.
///
/// # Safety
/// `device` is the out-parameter of `real`, a call of symbol `at`.
unsafe fn device_query(device: *const CuDevice, at: usize, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if result.ok() {
        // SAFETY: the driver wrote the device.
        if let Some(device) = unsafe { written(device) } {
            uses(device);
        }
        // The CUDA runtime makes this query ten times per launch. Further devices are seen at
        // context creation.
        if TOLD.load(Ordering::Relaxed) != 0 {
            symbols::unhook(at);
        }
    }
    result
}

fn stream_ending(stream: Stream, real: impl FnOnce() -> CuResult) -> CuResult {
    guarded(|| lifecycle::stream_ending(stream));
    guarded(|| paging::stream_ending(stream));
    guarded(|| movable::stream_ending(stream));
    stream_priority::ended(stream);
    let result = real();
    if result.ok() && capture::any() {
        capture::ended(stream);
    }
    result
}

hooks! {
    fn cuDevicePrimaryCtxRetain(context: *mut CuContext, device: CuDevice) |real| {
        // SAFETY: the call's own out-parameter.
        let result = unsafe { made(context, device, real) };
        // SAFETY: the driver wrote the context.
        if result.ok() && let (Some(context), Some(place)) = (unsafe { written(context) }, primary_place(device)) {
            place.store(context, Ordering::Release);
        }
        result
    }
    fn cuCtxCreate(context: *mut CuContext, flags: u32, device: CuDevice) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { made(context, device, real) }
    }
    fn cuCtxCreate_v2(context: *mut CuContext, flags: u32, device: CuDevice) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { made(context, device, real) }
    }
    fn cuCtxCreate_v3(context: *mut CuContext, affinities: usize, count: i32, flags: u32, device: CuDevice) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { made(context, device, real) }
    }
    fn cuCtxCreate_v4(context: *mut CuContext, parameters: usize, flags: u32, device: CuDevice) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { made(context, device, real) }
    }
    fn cuCtxGetDevice(device: *mut CuDevice) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { device_query(device, symbols::index::cuCtxGetDevice, real) }
    }
    fn cuCtxGetDevice_v2(device: *mut CuDevice, context: CuContext) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { device_query(device, symbols::index::cuCtxGetDevice_v2, real) }
    }
    fn cuCtxDestroy(context: CuContext) |real| { ending(Ends::Made(context), real) }
    fn cuCtxDestroy_v2(context: CuContext) |real| { ending(Ends::Made(context), real) }
    fn cuCtxDetach(context: CuContext) |real| { ending(Ends::Attached(context), real) }
    fn cuDevicePrimaryCtxRelease(device: CuDevice) |real| { ending(Ends::Retained(device), real) }
    fn cuDevicePrimaryCtxRelease_v2(device: CuDevice) |real| { ending(Ends::Retained(device), real) }
    fn cuDevicePrimaryCtxReset(device: CuDevice) |real| { ending(Ends::Primary(device), real) }
    fn cuDevicePrimaryCtxReset_v2(device: CuDevice) |real| { ending(Ends::Primary(device), real) }
    /// Its memory is the primary context's; its streams and events end.
    fn cuGreenCtxDestroy(green: CuContext) |real| {
        let mut context = 0;
        // SAFETY: the out-parameter is valid; the client names a green context.
        let _ = guarded(|| unsafe { calls::cuCtxFromGreenCtx(&mut context, green) });
        let ending = guarded(lifecycle::context_ending);
        let result = real();
        if result.ok() {
            guarded(|| lifecycle::context_ended(context));
        }
        drop(ending);
        result
    }
    fn cuStreamDestroy(stream: CuStream) |real| { stream_ending(stream, real) }
    fn cuStreamDestroy_v2(stream: CuStream) |real| { stream_ending(stream, real) }
}
