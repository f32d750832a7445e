//! Launches, in every way the driver offers. This is the hot path: no lock, no allocation, no
//! formatting.
//!
//! One list of hooks serves each [`Way`] of telling the session: [`Straight`], and
//! [`super::deferred_launch`] for jobs whose launches may be deferred. Each way has its own hooks,
//! so other jobs pay no check.

use std::ffi::c_void;

use super::declare::{hooks, per_thread, written};
use super::graph;
use crate::deferred::Launch;
use crate::driver::abi::{CuFunction, CuGraphExec, CuResult, CuStream, DeviceLaunch, LaunchConfig};
use crate::driver::capture;
use crate::kernels;
use crate::kernels::launch::{LaunchInfo, LaunchKind};
use crate::throttle;

/// How the session is told about a launch.
pub(super) trait Way {
    /// Tells the session around the launch. `leave` returns the copy to defer at a closed gate;
    /// `None`: the launch must wait.
    fn told(info: &LaunchInfo, leave: impl FnOnce() -> Option<Launch>, real: impl FnOnce() -> CuResult) -> CuResult;
}

/// Every launch goes to the driver before the hook returns.
#[derive(Debug)]
pub(super) struct Straight;

impl Way for Straight {
    #[inline(always)]
    fn told(info: &LaunchInfo, _leave: impl FnOnce() -> Option<Launch>, real: impl FnOnce() -> CuResult) -> CuResult {
        let ticket = throttle::before_launch(info);
        if ticket.is_nothing() {
            // Most launches end here, by a jump to the driver with the client's own stack
            // arguments.
            return real();
        }
        let result = real();
        throttle::after_launch(ticket, info.stream, result.0);
        result
    }
}

/// Passes the shape as single numbers: see [`kernels::identify`].
#[inline(always)]
fn info(
    function: CuFunction,
    (gx, gy, gz): (u32, u32, u32),
    (bx, by, bz): (u32, u32, u32),
    shared: u32,
    stream: CuStream,
) -> LaunchInfo {
    LaunchInfo {
        kernel_hash: kernels::identify(function, gx, gy, gz, bx, by, bz, shared),
        stream,
        kind: LaunchKind::Kernel,
        cost_hint: 0,
        capturing: capture::on(stream),
    }
}

/// Makes a launch that cannot be deferred.
#[inline(always)]
pub(super) fn launch<W: Way>(
    function: CuFunction,
    grid: (u32, u32, u32),
    block: (u32, u32, u32),
    shared: u32,
    stream: CuStream,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    W::told(&info(function, grid, block, shared, stream), || None, real)
}

/// Makes a launch that may be deferred.
#[inline(always)]
pub(super) fn launch_plain<W: Way>(
    function: CuFunction,
    grid: (u32, u32, u32),
    block: (u32, u32, u32),
    shared: u32,
    stream: CuStream,
    (arguments, extra): (*const c_void, *const c_void),
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    let leave = move || {
        Some(Launch {
            function,
            grid: grid.into(),
            block: block.into(),
            shared,
            stream,
            arguments,
            extra,
            attributes: std::ptr::null(),
            attribute_count: 0,
        })
    };
    W::told(&info(function, grid, block, shared, stream), leave, real)
}

/// Makes a launch with a configuration, which may be deferred.
///
/// # Safety
/// `config` is null or a launch configuration.
#[inline(always)]
pub(super) unsafe fn launch_ex<W: Way>(
    config: *const LaunchConfig,
    function: CuFunction,
    stream: fn(CuStream) -> CuStream,
    (arguments, extra): (*const c_void, *const c_void),
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    // SAFETY: the caller's promise. Without a configuration the driver refuses the launch.
    let Some(config) = (unsafe { written(config) }) else {
        return real();
    };
    let stream = stream(config.stream);
    let leave = move || {
        Some(Launch {
            function,
            grid: config.grid,
            block: config.block,
            shared: config.shared,
            stream,
            arguments,
            extra,
            attributes: config.attributes,
            attribute_count: config.attribute_count,
        })
    };
    let info = info(function, config.grid.into(), config.block.into(), config.shared, stream);
    W::told(&info, leave, real)
}

#[inline(always)]
pub(super) fn launch_graph<W: Way>(exec: CuGraphExec, stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    let info = LaunchInfo {
        kernel_hash: graph::identity(exec),
        stream,
        kind: LaunchKind::Graph,
        cost_hint: 0,
        capturing: capture::on(stream),
    };
    W::told(&info, || None, real)
}

pub(super) fn as_is(stream: CuStream) -> CuStream {
    stream
}

/// Declares the hooks of all launches for a [`Way`]. Names that it uses must be in scope there.
macro_rules! launches {
    ($way:ty) => {
        hooks! {
            fn cuLaunchKernel(
                function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
                shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
            ) |real| {
                let parameters = (arguments, extra);
                launch_plain::<$way>(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream, parameters, real)
            }

            fn cuLaunchKernel_ptsz(
                function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
                shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
            ) |real| {
                let (stream, parameters) = (per_thread(stream), (arguments, extra));
                launch_plain::<$way>(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream, parameters, real)
            }

            fn cuLaunchKernelEx(
                config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
            ) |real| {
                // SAFETY: the client's promise.
                unsafe { launch_ex::<$way>(config, function, as_is, (arguments, extra), real) }
            }

            fn cuLaunchKernelEx_ptsz(
                config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
            ) |real| {
                // SAFETY: the client's promise.
                unsafe { launch_ex::<$way>(config, function, per_thread, (arguments, extra), real) }
            }

            fn cuLaunchCooperativeKernel(
                function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
                shared: u32, stream: CuStream, arguments: *const c_void,
            ) |real| {
                launch::<$way>(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream, real)
            }

            fn cuLaunchCooperativeKernel_ptsz(
                function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
                shared: u32, stream: CuStream, arguments: *const c_void,
            ) |real| {
                launch::<$way>(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, per_thread(stream), real)
            }

            /// Told as the first device's launch: the kernel starts on all devices or on none.
            fn cuLaunchCooperativeKernelMultiDevice(list: *const DeviceLaunch, count: u32, flags: u32) |real| {
                // SAFETY: the client's promise to the driver, if there is a first one.
                let first = (count > 0).then(|| unsafe { written(list) }).flatten();
                match first {
                    Some(first) => launch::<$way>(first.function, first.grid.into(), first.block.into(), first.shared, first.stream, real),
                    None => real(),
                }
            }

            /// The oldest way: grid, block and shared memory were set on the function before.
            fn cuLaunch(function: CuFunction) |real| {
                launch::<$way>(function, (1, 1, 1), (0, 0, 0), 0, 0, real)
            }

            fn cuLaunchGrid(function: CuFunction, width: i32, height: i32) |real| {
                launch::<$way>(function, (width.unsigned_abs(), height.unsigned_abs(), 1), (0, 0, 0), 0, 0, real)
            }

            fn cuLaunchGridAsync(function: CuFunction, width: i32, height: i32, stream: CuStream) |real| {
                launch::<$way>(function, (width.unsigned_abs(), height.unsigned_abs(), 1), (0, 0, 0), 0, stream, real)
            }

            fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) |real| {
                launch_graph::<$way>(exec, stream, real)
            }

            fn cuGraphLaunch_ptsz(exec: CuGraphExec, stream: CuStream) |real| {
                launch_graph::<$way>(exec, per_thread(stream), real)
            }
        }
    };
}
pub(super) use launches;

launches!(Straight);
