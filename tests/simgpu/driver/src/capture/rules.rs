// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that are forbidden while a capture is in progress, by CUDA's manual.
//!
//! - A captured stream or event has no state on the device: to synchronise with it or to query it
//!   is an error and spoils the capture. The same holds for the context that such a stream belongs
//!   to.
//! - The legacy default stream orders itself with every blocking stream, so while one of those is
//!   an origin it may not be used.
//! - Calls that *may* synchronise by themselves (allocation, queries of other events) are forbidden
//!   to a thread by the mode of the captures going on and by its own mode ([`exchange`]).
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use simgpu_device::lock::lock;

use crate::abi::{Error, R};
use crate::capture::{Capture, CaptureMode};

/// Captures in progress: with one load every other call learns that there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static GOING_ON: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// Sets the calling thread's mode and returns the mode before.
pub(crate) fn exchange(mode: CaptureMode) -> CaptureMode {
    MODE.try_with(|own| own.replace(mode)).unwrap_or(CaptureMode::Global)
}

pub(super) fn began(capture: &Arc<Capture>) {
    let mut going_on = lock(&GOING_ON);
    going_on.push(capture.clone());
    COUNT.store(going_on.len(), Ordering::Release);
}

pub(super) fn ended(capture: &Capture) {
    let mut going_on = lock(&GOING_ON);
    going_on.retain(|other| other.id != capture.id);
    COUNT.store(going_on.len(), Ordering::Release);
}

/// Spoils every capture that forbids the call, and fails if there was one.
#[inline]
fn refuse(error: Error, forbids: impl Fn(&Capture) -> bool) -> R {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    refuse_slowly(error, forbids)
}

#[cold]
fn refuse_slowly(error: Error, forbids: impl Fn(&Capture) -> bool) -> R {
    let mut refused = Ok(());
    for capture in lock(&GOING_ON).iter().filter(|capture| forbids(capture)) {
        capture.invalidate();
        refused = Err(error);
    }
    refused
}

/// A call that may synchronise by itself.
#[inline]
fn potentially_unsafe() -> R {
    refuse(Error::STREAM_CAPTURE_UNSUPPORTED, |capture| {
        let own = MODE.try_with(Cell::get).unwrap_or(CaptureMode::Global);
        let mine = capture.thread == thread::current().id();
        match own {
            CaptureMode::Relaxed => false,
            CaptureMode::ThreadLocal => mine && capture.mode != CaptureMode::Relaxed,
            CaptureMode::Global => {
                (mine && capture.mode != CaptureMode::Relaxed) || capture.mode == CaptureMode::Global
            }
        }
    })
}

/// A query of, or a wait for, something that is in no capture.
#[inline]
pub(crate) fn may_query() -> R {
    potentially_unsafe()
}

/// A use of the legacy default stream of a context: not while a blocking stream is an origin.
#[inline]
pub(crate) fn may_use_legacy(context: u64) -> R {
    refuse(Error::STREAM_CAPTURE_IMPLICIT, |capture| {
        capture.context == context && capture.blocking
    })
}

/// A query of the legacy default stream: an error if its use would be one, but it spoils no
/// capture.
#[inline]
pub(crate) fn may_use_legacy_quietly(context: u64) -> R {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let refused = lock(&GOING_ON)
        .iter()
        .any(|capture| capture.context == context && capture.blocking);
    if refused {
        Err(Error::STREAM_CAPTURE_IMPLICIT)
    } else {
        Ok(())
    }
}

/// A wait for everything in a context.
#[inline]
pub(crate) fn may_synchronize_context(context: u64) -> R {
    refuse(Error::STREAM_CAPTURE_UNSUPPORTED, |capture| capture.context == context)?;
    potentially_unsafe()
}
