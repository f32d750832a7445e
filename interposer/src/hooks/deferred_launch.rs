//! Launches of jobs with a launch queue (`WEFT_QUEUE`): a launch at a closed gate may be deferred
//! instead of waiting ([`crate::deferred`]).

use std::ffi::c_void;
use std::hint::black_box;

use super::declare::{hooks, per_thread, written};
use super::launch::{GraphCall, KernelCall, LaunchMode, as_is, launches, old_launches};
use crate::deferred::{self, ClientLaunch, Offered};
use crate::driver::abi::{CuFunction, CuGraphExec, CuResult, CuStream, DeviceLaunch, LaunchConfig};
use crate::kernels::launch::LaunchInfo;
use crate::throttle;

/// A launch of a kernel may be deferred.
#[derive(Debug)]
struct Deferring;

impl LaunchMode for Deferring {
    #[inline(always)]
    fn kernel(call: KernelCall, real: impl FnOnce() -> CuResult) -> CuResult {
        told(&call.info(), || call.to_defer(), real)
    }

    #[inline(always)]
    fn graph(call: GraphCall, real: impl FnOnce() -> CuResult) -> CuResult {
        told(&call.info(), || None, real)
    }
}

/// Informs the session before and after the launch. `to_defer` returns the data to copy if the
/// launch is deferred.
#[inline(always)]
fn told(
    info: &LaunchInfo,
    to_defer: impl FnOnce() -> Option<ClientLaunch>,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    // Arguments of rare paths are copied inside them, so they are laid out in memory only there.
    if deferred::busy() {
        let (info, real) = (*info, black_box(real));
        return told_behind(&info, to_defer().as_ref(), real);
    }
    let ticket = throttle::before_launch(info);
    if ticket.is_nothing() {
        // As in `Straight`: the hook ends with a jump to the driver.
        return real();
    }
    if ticket.waits() {
        let (info, real) = (*info, black_box(real));
        return told_waiting(&info, to_defer().as_ref(), real);
    }
    let result = real();
    throttle::after_launch(ticket, info.stream, result.0);
    result
}

/// Handles a launch while the queue holds other launches.
#[cold]
#[inline(never)]
fn told_behind(info: &LaunchInfo, launch: Option<&ClientLaunch>, real: impl FnOnce() -> CuResult) -> CuResult {
    // SAFETY: these are the arguments that the client gives the driver.
    match unsafe { deferred::behind(info, launch) } {
        Offered::Taken => {
            throttle::counted();
            return CuResult::SUCCESS;
        }
        Offered::Failed(error) => return error,
        Offered::Declined => {}
    }
    let ticket = throttle::before_launch(info);
    if ticket.waits() {
        return told_waiting(info, launch, real);
    }
    let result = real();
    throttle::after_launch(ticket, info.stream, result.0);
    result
}

/// Handles a launch that must wait at the gate: it is deferred there, or waits itself.
#[cold]
#[inline(never)]
fn told_waiting(info: &LaunchInfo, launch: Option<&ClientLaunch>, real: impl FnOnce() -> CuResult) -> CuResult {
    // SAFETY: these are the arguments that the client gives the driver.
    match unsafe { deferred::offer(info, launch) } {
        Offered::Taken => return CuResult::SUCCESS,
        Offered::Failed(error) => return error,
        Offered::Declined => {}
    }
    let ticket = throttle::before_held(info);
    let result = real();
    throttle::after_launch(ticket, info.stream, result.0);
    if let (true, Some(launch)) = (result.ok(), launch) {
        deferred::learn(launch);
    }
    result
}

launches!(Deferring);
old_launches!(Deferring);
