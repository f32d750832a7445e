// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches of jobs with a launch queue (`WEFT_QUEUE`): a launch at a closed gate may be deferred
//! instead of waiting ([`crate::deferred`]).

use std::ffi::c_void;
use std::hint::black_box;

use super::declare::{hooks, per_thread, written};
use super::launch::{GraphCall, KernelCall, LaunchMode, as_is, launches, old_launches};
use crate::deferred::{self, ClientLaunch, Offered};
use crate::driver::abi::{CuFunction, CuGraphExec, CuResult, CuStream, DeviceLaunch, LaunchConfig};
use crate::kernels::launch::Launch;
use crate::throttle;

/// A launch of a kernel may be deferred.
#[derive(Debug)]
struct Deferring;

impl LaunchMode for Deferring {
    #[inline(always)]
    fn kernel(call: KernelCall, real: impl FnOnce() -> CuResult) -> CuResult {
        told(call.launch(), || call.to_defer(), real)
    }

    #[inline(always)]
    fn graph(call: GraphCall, real: impl FnOnce() -> CuResult) -> CuResult {
        told(call.launch(), || None, real)
    }
}

/// Informs the session before and after the launch. `to_defer` returns the data to copy if the
/// launch is deferred.
#[inline(always)]
fn told(launch: Launch, to_defer: impl FnOnce() -> Option<ClientLaunch>, real: impl FnOnce() -> CuResult) -> CuResult {
    // Arguments of rare paths are copied inside them, so they are laid out in memory only there.
    if deferred::busy() {
        return told_behind(launch, to_defer().as_ref(), black_box(real));
    }
    let ticket = throttle::before_launch(launch);
    if ticket.is_nothing() {
        // As in `Straight`: the hook ends with a jump to the driver.
        return real();
    }
    if ticket.waits() {
        return told_waiting(launch, to_defer().as_ref(), black_box(real));
    }
    let result = real();
    throttle::after_launch(ticket, launch.stream(), result.0);
    result
}

/// Handles a launch while the queue holds other launches.
#[cold]
#[inline(never)]
fn told_behind(launch: Launch, to_defer: Option<&ClientLaunch>, real: impl FnOnce() -> CuResult) -> CuResult {
    // SAFETY: these are the arguments that the client gives the driver.
    match unsafe { deferred::behind(launch, to_defer) } {
        Offered::Taken => {
            throttle::counted();
            return CuResult::SUCCESS;
        }
        Offered::Failed(error) => return error,
        Offered::Declined => {}
    }
    let ticket = throttle::before_launch(launch);
    if ticket.waits() {
        return told_waiting(launch, to_defer, real);
    }
    let result = real();
    throttle::after_launch(ticket, launch.stream(), result.0);
    result
}

/// Handles a launch that must wait at the gate: it is deferred there, or waits itself.
#[cold]
#[inline(never)]
fn told_waiting(launch: Launch, to_defer: Option<&ClientLaunch>, real: impl FnOnce() -> CuResult) -> CuResult {
    // SAFETY: these are the arguments that the client gives the driver.
    match unsafe { deferred::offer(launch, to_defer) } {
        Offered::Taken => return CuResult::SUCCESS,
        Offered::Failed(error) => return error,
        Offered::Declined => {}
    }
    let ticket = throttle::before_deferred(launch);
    let result = real();
    throttle::after_launch(ticket, launch.stream(), result.0);
    if let (true, Some(call)) = (result.ok(), to_defer) {
        deferred::learn(call);
    }
    result
}

launches!(Deferring);
old_launches!(Deferring);
