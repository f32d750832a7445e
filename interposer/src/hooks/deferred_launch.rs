//! Launches of jobs with a launch queue (`WEFT_QUEUE`): instead of waiting at a closed gate a
//! launch may be deferred ([`crate::deferred`]).

use std::ffi::c_void;
use std::hint::black_box;

use super::declare::{hooks, per_thread, written};
use super::launch::{Way, as_is, launch, launch_ex, launch_graph, launch_plain, launches};
use crate::deferred::{self, Launch, Offered};
use crate::driver::abi::{CuFunction, CuGraphExec, CuResult, CuStream, DeviceLaunch, LaunchConfig};
use crate::kernels::launch::LaunchInfo;
use crate::throttle;

/// A launch may be deferred.
#[derive(Debug)]
struct Leaving;

impl Way for Leaving {
    #[inline(always)]
    fn told(info: &LaunchInfo, leave: impl FnOnce() -> Option<Launch>, real: impl FnOnce() -> CuResult) -> CuResult {
        // Arguments of rare paths are copied there, so they are laid out in memory only there.
        if deferred::busy() {
            let (info, real) = (*info, black_box(real));
            return told_behind(&info, leave().as_ref(), real);
        }
        let ticket = throttle::before_launch(info);
        if ticket.is_nothing() {
            // As in `Straight`: the hook ends by a jump to the driver.
            return real();
        }
        if ticket.waits() {
            let (info, real) = (*info, black_box(real));
            return told_waiting(&info, leave().as_ref(), real);
        }
        let result = real();
        throttle::after_launch(ticket, info.stream, result.0);
        result
    }
}

/// Handles a launch while the queue holds others.
#[cold]
#[inline(never)]
fn told_behind(info: &LaunchInfo, leave: Option<&Launch>, real: impl FnOnce() -> CuResult) -> CuResult {
    // SAFETY: what the client gives the driver.
    match unsafe { deferred::behind(info, leave) } {
        Offered::Taken => {
            throttle::counted();
            return CuResult::SUCCESS;
        }
        Offered::Failed(error) => return error,
        Offered::Declined => {}
    }
    let ticket = throttle::before_launch(info);
    if ticket.waits() {
        return told_waiting(info, leave, real);
    }
    let result = real();
    throttle::after_launch(ticket, info.stream, result.0);
    result
}

/// Handles a launch that must wait at the gate: it is deferred there, or waits itself.
#[cold]
#[inline(never)]
fn told_waiting(info: &LaunchInfo, leave: Option<&Launch>, real: impl FnOnce() -> CuResult) -> CuResult {
    // SAFETY: what the client gives the driver.
    match unsafe { deferred::offer(info, leave) } {
        Offered::Taken => return CuResult::SUCCESS,
        Offered::Failed(error) => return error,
        Offered::Declined => {}
    }
    let ticket = throttle::before_held(info);
    let result = real();
    throttle::after_launch(ticket, info.stream, result.0);
    if let (true, Some(leave)) = (result.ok(), leave) {
        deferred::learn(leave);
    }
    result
}

launches!(Leaving);
