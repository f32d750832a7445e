// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launches of jobs on managed memory: the memory that each launch names is noted.
//!
//! They have their own set of hooks, so a launch of another job pays no check.

use std::ffi::c_void;

use super::declare::{hooks, per_thread};
use super::launch::{GraphCall, KernelCall, LaunchMode, Straight, as_is, launches, straight};
use crate::driver::abi::{CuFunction, CuGraphExec, CuResult, CuStream, LaunchConfig};
use crate::kernels::launch::Launch;
use crate::paging::access_tracker::{self, Kernel, Noted};
use crate::throttle;

/// Mode that notes the memory that a launch touches.
#[derive(Debug)]
pub(super) struct Managed;

impl LaunchMode for Managed {
    #[inline(always)]
    fn kernel(call: KernelCall, real: impl FnOnce() -> CuResult) -> CuResult {
        let kernel = Kernel {
            function: call.function,
            grid: call.grid,
            block: call.block,
            shared: call.shared,
            stream: call.stream,
        };
        // SAFETY: the call's own arguments.
        let noted = unsafe { access_tracker::launch(kernel, call.arguments, call.extra) };
        if noted.is_observed() {
            return observed(call.stream, noted, real);
        }
        Straight::kernel(call, || noted.around(real))
    }

    #[inline(always)]
    fn graph(call: GraphCall, real: impl FnOnce() -> CuResult) -> CuResult {
        access_tracker::unseen();
        Straight::graph(call, real)
    }
}

/// Makes an observed launch. It passes the gate and yields no sample of its kernel's time.
#[cold]
fn observed(stream: CuStream, noted: Noted, real: impl FnOnce() -> CuResult) -> CuResult {
    throttle::interrupt_samples(stream);
    straight(Launch::kernel(0, stream, false), || noted.around(real))
}

launches!(Managed);
