//! Contexts and streams: which device a process uses, and what is about to end.

use std::ffi::c_char;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{capture, hooks, written};
use crate::abi::{CuContext, CuDevice, CuResult, CuStream};
use crate::session::{self, Device, Sight, Where};
use crate::trouble::guarded;
use crate::{memory, real, session::Stream, table};

/// Devices already told of, a bit an ordinal. Processes with more than 64 devices do not exist.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// A context of this device came to be: tell the session about the device, once.
fn uses(device: CuDevice) {
    let Some(bit) = u32::try_from(device).ok().and_then(|at| 1u64.checked_shl(at)) else {
        return;
    };
    if TOLD.load(Ordering::Relaxed) & bit != 0 || capture::any() {
        return;
    }
    if TOLD.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        guarded(|| session::device_seen(device, &describe(device)));
    }
}

fn describe(device: CuDevice) -> Device {
    let mut name = [0u8; 128];
    let mut uuid = [0u8; 16];
    let mut memory = 0usize;
    let mut driver = 0;
    // What a driver does not answer stays zero.
    // SAFETY: the buffer is as long as it is said to be.
    let _ = unsafe { real::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), 128, device) };
    // SAFETY: the out-parameter is valid.
    if !unsafe { real::cuDeviceGetUuid_v2(&mut uuid, device) }.ok() {
        // SAFETY: the out-parameter is valid.
        let _ = unsafe { real::cuDeviceGetUuid(&mut uuid, device) };
    }
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { real::cuDeviceTotalMem_v2(&mut memory, device) };
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { real::cuDriverGetVersion(&mut driver) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Device {
        name: String::from_utf8_lossy(name.get(..end).unwrap_or_default()).into_owned(),
        uuid: uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
        memory: memory as u64,
        driver: u32::try_from(driver).unwrap_or(0),
    }
}

/// # Safety
/// `context` is the out-parameter of `real`.
unsafe fn made(context: *const CuContext, device: CuDevice, real: impl Fn() -> CuResult) -> CuResult {
    let enter = || session::enter(device, || (!capture::any()).then(|| sight(device)));
    if guarded(enter) == Some(session::Entry::NoMemory) {
        return CuResult::OUT_OF_MEMORY;
    }
    let at = session::of_device(device);
    // What a context takes is memory that changes hands, too.
    let moving = guarded(|| session::moving(at));
    let result = session::patiently(at, real);
    drop(moving);
    if result.ok() {
        uses(device);
        // SAFETY: the driver wrote the context.
        if let Some(context) = unsafe { written(context) } {
            looks(context, at);
        }
    }
    result
}

/// Looks at what is free beside a context that was made just now.
fn looks(context: CuContext, at: Where) {
    if capture::any() {
        return;
    }
    let Some(look) = guarded(|| session::looks_at_context(at)).flatten() else {
        return;
    };
    // A retained context is nobody's current one yet.
    // SAFETY: the driver has just given this context.
    if !unsafe { real::cuCtxPushCurrent_v2(context) }.ok() {
        return;
    }
    let (mut free, mut total, mut popped) = (0, 0, context);
    // SAFETY: both out-parameters are valid.
    let asked = unsafe { real::cuMemGetInfo_v2(&mut free, &mut total) };
    // SAFETY: the out-parameter is valid; the context was pushed above.
    let _ = unsafe { real::cuCtxPopCurrent_v2(&mut popped) };
    if asked.ok() {
        guarded(|| session::looked_at_context(at, look, free as u64));
    }
}

fn sight(device: CuDevice) -> Sight {
    let about = describe(device);
    let mut count = 0;
    // What the driver does not answer counts as one.
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { real::cuDeviceGetCount(&mut count) };
    Sight {
        uuid: about.uuid,
        total: about.memory,
        manageable: memory::is_open() && memory::backing::supported(device),
        devices: u32::try_from(count).unwrap_or(0).max(1),
    }
}

fn ending(real: impl FnOnce() -> CuResult) -> CuResult {
    guarded(session::context_ending);
    guarded(memory::context_ending);
    let result = real();
    guarded(memory::context_ended);
    guarded(session::forget_contexts);
    result
}

fn stream_ending(stream: Stream, real: impl FnOnce() -> CuResult) -> CuResult {
    guarded(|| session::stream_ending(stream));
    guarded(|| memory::stream_ending(stream));
    let result = real();
    if result.ok() && capture::any() {
        capture::ended(stream);
    }
    result
}

hooks! {
    fn cuDevicePrimaryCtxRetain(context: *mut CuContext, device: CuDevice) |real| {
        // SAFETY: the call's own out-parameter.
        unsafe { made(context, device, real) }
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
    /// Where a context came to be past us, its first query of the device tells as much.
    fn cuCtxGetDevice(device: *mut CuDevice) |real| {
        let result = real();
        if result.ok() {
            // SAFETY: the driver wrote the device.
            if let Some(device) = unsafe { written(device) } {
                uses(device);
            }
            // The CUDA runtime asks ten times a launch; further devices are seen when their contexts are made.
            if TOLD.load(Ordering::Relaxed) != 0 {
                table::unhook(table::index::cuCtxGetDevice);
            }
        }
        result
    }
    fn cuCtxDestroy(context: CuContext) |real| { ending(real) }
    fn cuCtxDestroy_v2(context: CuContext) |real| { ending(real) }
    fn cuCtxDetach(context: CuContext) |real| { ending(real) }
    fn cuDevicePrimaryCtxRelease(device: CuDevice) |real| { ending(real) }
    fn cuDevicePrimaryCtxRelease_v2(device: CuDevice) |real| { ending(real) }
    fn cuDevicePrimaryCtxReset(device: CuDevice) |real| { ending(real) }
    fn cuDevicePrimaryCtxReset_v2(device: CuDevice) |real| { ending(real) }
    fn cuStreamDestroy(stream: CuStream) |real| { stream_ending(stream, real) }
    fn cuStreamDestroy_v2(stream: CuStream) |real| { stream_ending(stream, real) }
}
