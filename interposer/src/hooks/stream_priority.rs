// SPDX-License-Identifier: MIT OR Apache-2.0
//! Priorities of a background job's streams, under MPS.
//!
//! Under MPS stream priorities count across clients: a background job's stream of priority -5 goes
//! before a foreground job's default stream ([`weft_protocol::device_share`]). So such a job's
//! streams get the lowest priority that keeps their order ([`StreamLevels`]). The job's queries
//! return the priority that it asked for. Order on a stream, and between streams by events, does
//! not depend on priorities: CUDA calls them a hint.
//!
//! Hooked only in a job for which [`DeviceShare::lowers_streams`] is set. weft queries once whether
//! the device is shared under MPS, when the first stream is made. A driver before CUDA 12.4 has no
//! answer, and then nothing is lowered. Unchanged: the default streams; priorities of single
//! launches (`CU_LAUNCH_ATTRIBUTE_PRIORITY`) and of graph nodes that the job sets itself. A
//! captured node has the priority of the stream that it was captured from.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock};

use dashmap::DashMap;

use super::declare::{hooks, written};
use crate::client::device_share::DeviceShare;
use crate::client::settings::Settings;
use crate::client::stream_levels::StreamLevels;
use crate::driver::abi::{CuContext, CuResult, CuStream};
use crate::driver::calls;
use crate::driver::capture;
use crate::driver::device::MPS_ENABLED;
use crate::driver::queries::{current_context, here};
use crate::driver::stream::PER_THREAD_STREAM;
use crate::internal_error::guarded;
use crate::lock::lock;
use crate::trace;

/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
const PRIORITY: u32 = 8;

/// A `CUlaunchAttributeValue`: 64 bytes, of which a priority is the first four.
type AttributeValue = [i32; 16];

/// Whether priorities may be lowered in this process. Read once per symbol, when it binds.
pub fn wanted() -> bool {
    static WANTED: LazyLock<bool> = LazyLock::new(|| {
        let share: DeviceShare = Settings::of_process().0.device_share;
        share.lowers_streams && !trace::on()
    });
    *WANTED
}

/// Priorities that the driver has, from the greatest to the least.
#[derive(Debug, Clone, Copy)]
struct PriorityRange {
    greatest: i32,
    least: i32,
}

/// The driver's range if priorities are lowered: decided at the first stream, for the process.
static RANGE: OnceLock<Option<PriorityRange>> = OnceLock::new();

static LEVELS: Mutex<StreamLevels> = Mutex::new(StreamLevels::new());

/// A stream whose priority was lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lowered {
    asked: i32,
    given: i32,
    context: CuContext,
}

static LOWERED: LazyLock<DashMap<CuStream, Lowered>> = LazyLock::new(DashMap::new);

/// Whether any stream was ever lowered; if not, no thread reads the map.
static ANY: AtomicBool = AtomicBool::new(false);

fn range() -> Option<PriorityRange> {
    if let Some(decided) = RANGE.get() {
        return *decided;
    }
    // During a capture no query is allowed. The first stream stays as requested, so all streams do.
    if capture::any() {
        return *RANGE.get_or_init(|| None);
    }
    // Without a context this call fails.
    let (device, _) = here()?;
    *RANGE.get_or_init(|| {
        let mut mps = 0;
        // SAFETY: the out-parameter is valid.
        let said = unsafe { calls::cuDeviceGetAttribute(&mut mps, MPS_ENABLED, device) };
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both out-parameters are valid.
        let asked = unsafe { calls::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        let range = PriorityRange { greatest, least };
        (said.ok() && mps != 0 && asked.ok() && greatest < least).then_some(range)
    })
}

/// The driver's clamped value of a requested priority, and the priority to pass instead: the same,
/// if that is low enough. `None`: nothing is lowered in this process.
fn lower(wish: i32) -> Option<(i32, i32)> {
    let lower = || {
        let range = range()?;
        let asked = wish.clamp(range.greatest, range.least);
        Some((asked, lock(&LEVELS).lowered(asked)))
    };
    guarded(lower).flatten()
}

/// Makes a stream. `make` calls the driver with another priority.
///
/// # Safety
/// `stream` is the out-parameter of both calls.
unsafe fn create(
    stream: *const CuStream,
    wish: i32,
    real: impl FnOnce() -> CuResult,
    make: impl FnOnce(i32) -> CuResult,
) -> CuResult {
    let Some((asked, given)) = lower(wish) else {
        return real();
    };
    let result = if given == asked { real() } else { make(given) };
    if result.ok() {
        // SAFETY: the driver wrote the handle.
        let made = unsafe { written(stream) };
        guarded(|| made.map(|stream| has_got(stream, asked, given)));
    }
    result
}

/// Notes the priority that a stream asked for and the one that it got.
fn has_got(stream: CuStream, asked: i32, given: i32) {
    if given == asked {
        // The handle may have belonged to a stream whose end was not seen.
        return ended(stream);
    }
    let context = current_context();
    LOWERED.insert(stream, Lowered { asked, given, context });
    ANY.store(true, Ordering::Release);
}

/// Forgets a stream that ends: another may get its handle.
pub(super) fn ended(stream: CuStream) {
    if ANY.load(Ordering::Acquire) {
        guarded(|| LOWERED.remove(&stream));
    }
}

/// Forgets the streams of an ended context; 0: an unknown one.
pub(super) fn context_ended(context: CuContext) {
    if ANY.load(Ordering::Acquire) {
        guarded(|| LOWERED.retain(|_, lowered| context != 0 && lowered.context != context));
    }
}

fn lowered(stream: CuStream) -> Option<Lowered> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    guarded(|| LOWERED.get(&stream).map(|lowered| *lowered)).flatten()
}

/// Returns the priority that the job asked for in place of the stream's real one.
///
/// # Safety
/// `priority` is null, or an out-parameter of a call about `stream` that answered `result`.
unsafe fn tell(result: CuResult, stream: CuStream, priority: *mut i32) {
    let Some(lowered) = lowered(stream).filter(|_| result.ok()) else {
        return;
    };
    // SAFETY: the caller's promise.
    let seen = unsafe { written(priority) };
    if seen == Some(lowered.given) {
        // SAFETY: not null, and the driver has just written there.
        unsafe { priority.write(lowered.asked) };
    }
}

/// The driver's priority of a created stream. `None` during captures, too.
fn of_driver(stream: CuStream) -> Option<i32> {
    if stream <= PER_THREAD_STREAM || capture::any() {
        return None;
    }
    let mut priority = 0;
    // SAFETY: the out-parameter is valid; the driver has just accepted the stream.
    let asked = unsafe { calls::cuStreamGetPriority(stream, &mut priority) };
    asked.ok().then_some(priority)
}

/// Sets a stream's priority. `set` calls the driver with another value.
fn set(
    stream: CuStream,
    wish: Option<i32>,
    real: impl FnOnce() -> CuResult,
    set: impl FnOnce(&AttributeValue) -> CuResult,
) -> CuResult {
    let created = stream > PER_THREAD_STREAM;
    let lowered = wish.filter(|_| created).and_then(lower);
    // The driver decides whether it accepts a value out of its range.
    let Some((asked, given)) = lowered.filter(|(asked, _)| wish == Some(*asked)) else {
        return real();
    };
    let result = if given == asked {
        real()
    } else {
        let mut value = AttributeValue::default();
        if let Some(first) = value.first_mut() {
            *first = given;
        }
        set(&value)
    };
    // A driver may accept the attribute and keep the priority.
    if result.ok() && guarded(|| of_driver(stream)).flatten() == Some(given) {
        guarded(|| has_got(stream, asked, given));
    }
    result
}

/// After attributes were copied between streams: the priority may be one of them.
fn copied(to: CuStream, from: CuStream) {
    let Some(source) = lowered(from) else { return };
    guarded(|| {
        if to != from && of_driver(to) == Some(source.given) && lowered(to).is_none_or(|own| own.given != source.given)
        {
            has_got(to, source.asked, source.given);
        }
    });
}

hooks! {
    fn cuStreamCreateWithPriority(stream: *mut CuStream, flags: u32, priority: i32) |real| {
        // SAFETY: the client's arguments, except the priority.
        let make = |given| unsafe { calls::cuStreamCreateWithPriority(stream, flags, given) };
        // SAFETY: the call's own out-parameter.
        unsafe { create(stream, priority, real, make) }
    }
    fn cuGreenCtxStreamCreate(stream: *mut CuStream, green: CuContext, flags: u32, priority: i32) |real| {
        // SAFETY: the client's arguments, except the priority.
        let make = |given| unsafe { calls::cuGreenCtxStreamCreate(stream, green, flags, given) };
        // SAFETY: the call's own out-parameter.
        unsafe { create(stream, priority, real, make) }
    }
    fn cuStreamGetPriority(stream: CuStream, priority: *mut i32) |real| {
        let result = real();
        // SAFETY: the call's own out-parameter.
        unsafe { tell(result, stream, priority) };
        result
    }
    fn cuStreamGetPriority_ptsz(stream: CuStream, priority: *mut i32) |real| {
        let result = real();
        // SAFETY: the call's own out-parameter.
        unsafe { tell(result, stream, priority) };
        result
    }
    fn cuStreamGetAttribute(stream: CuStream, attribute: u32, value: *mut i32) |real| {
        let result = real();
        if attribute == PRIORITY {
            // SAFETY: the call's own out-parameter, which begins with the priority.
            unsafe { tell(result, stream, value) };
        }
        result
    }
    fn cuStreamGetAttribute_ptsz(stream: CuStream, attribute: u32, value: *mut i32) |real| {
        let result = real();
        if attribute == PRIORITY {
            // SAFETY: the call's own out-parameter, which begins with the priority.
            unsafe { tell(result, stream, value) };
        }
        result
    }
    fn cuStreamSetAttribute(stream: CuStream, attribute: u32, value: *const i32) |real| {
        // SAFETY: the client gives a value of this attribute, which begins with the priority.
        let wish = (attribute == PRIORITY).then(|| unsafe { written(value) }).flatten();
        // SAFETY: the client's stream, and a whole value.
        set(stream, wish, real, |value| unsafe { calls::cuStreamSetAttribute(stream, PRIORITY, value.as_ptr()) })
    }
    fn cuStreamSetAttribute_ptsz(stream: CuStream, attribute: u32, value: *const i32) |real| {
        // SAFETY: the client gives a value of this attribute, which begins with the priority.
        let wish = (attribute == PRIORITY).then(|| unsafe { written(value) }).flatten();
        // SAFETY: the client's stream, and a whole value.
        set(stream, wish, real, |value| unsafe { calls::cuStreamSetAttribute(stream, PRIORITY, value.as_ptr()) })
    }
    fn cuStreamCopyAttributes(to: CuStream, from: CuStream) |real| {
        let result = real();
        if result.ok() {
            copied(to, from);
        }
        result
    }
    fn cuStreamCopyAttributes_ptsz(to: CuStream, from: CuStream) |real| {
        let result = real();
        if result.ok() {
            copied(to, from);
        }
        result
    }
}
