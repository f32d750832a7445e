//! Launches, in every way the driver offers. This is the hot path: no lock, no allocation, no formatting.

use std::ffi::c_void;

use super::{capture, graph, hooks, per_thread, written};
use crate::abi::{CuFunction, CuGraphExec, CuResult, CuStream, DeviceLaunch, LaunchConfig};
use crate::names;
use crate::session::{self, LaunchInfo, LaunchKind};

/// Tells the session about a launch, around it. The shape goes by single numbers: see [`names::identify`].
#[inline(always)]
pub(super) fn launch(
    function: CuFunction,
    (gx, gy, gz): (u32, u32, u32),
    (bx, by, bz): (u32, u32, u32),
    shared: u32,
    stream: CuStream,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    let info = LaunchInfo {
        kernel_hash: names::identify(function, gx, gy, gz, bx, by, bz, shared),
        stream,
        kind: LaunchKind::Kernel,
        cost_hint: 0,
        capturing: capture::on(stream),
    };
    told(&info, real)
}

#[inline(always)]
fn told(info: &LaunchInfo, real: impl FnOnce() -> CuResult) -> CuResult {
    let ticket = session::before_launch(info);
    if ticket.is_nothing() {
        // Most launches, and the last thing done for them: the hook ends by a jump to the driver, with the client's own stack arguments.
        return real();
    }
    let result = real();
    session::after_launch(ticket, info.stream, result.0);
    result
}

/// # Safety
/// `config` is null or a launch configuration.
#[inline(always)]
pub(super) unsafe fn launch_ex(
    config: *const LaunchConfig,
    function: CuFunction,
    stream: fn(CuStream) -> CuStream,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    // SAFETY: the caller's promise. Without one the driver refuses the launch.
    let Some(config) = (unsafe { written(config) }) else {
        return real();
    };
    launch(
        function,
        config.grid.into(),
        config.block.into(),
        config.shared,
        stream(config.stream),
        real,
    )
}

#[inline(always)]
pub(super) fn launch_graph(exec: CuGraphExec, stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    let info = LaunchInfo {
        kernel_hash: graph::identity(exec),
        stream,
        kind: LaunchKind::Graph,
        cost_hint: 0,
        capturing: capture::on(stream),
    };
    told(&info, real)
}

pub(super) fn as_is(stream: CuStream) -> CuStream {
    stream
}

hooks! {
    fn cuLaunchKernel(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        launch(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream, real)
    }

    fn cuLaunchKernel_ptsz(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        launch(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, per_thread(stream), real)
    }

    fn cuLaunchKernelEx(
        config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        // SAFETY: the client's promise to the driver.
        unsafe { launch_ex(config, function, as_is, real) }
    }

    fn cuLaunchKernelEx_ptsz(
        config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        // SAFETY: the client's promise to the driver.
        unsafe { launch_ex(config, function, per_thread, real) }
    }

    fn cuLaunchCooperativeKernel(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void,
    ) |real| {
        launch(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream, real)
    }

    fn cuLaunchCooperativeKernel_ptsz(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void,
    ) |real| {
        launch(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, per_thread(stream), real)
    }

    /// One kernel on several devices: told as the first device's launch, because it starts on all of them or on none.
    fn cuLaunchCooperativeKernelMultiDevice(list: *const DeviceLaunch, count: u32, flags: u32) |real| {
        // SAFETY: the client's promise to the driver, if there is a first one.
        let first = (count > 0).then(|| unsafe { written(list) }).flatten();
        match first {
            Some(first) => launch(first.function, first.grid.into(), first.block.into(), first.shared, first.stream, real),
            None => real(),
        }
    }

    /// The oldest way: shape and shared memory were set on the function before; they are not part of the call.
    fn cuLaunch(function: CuFunction) |real| {
        launch(function, (1, 1, 1), (0, 0, 0), 0, 0, real)
    }

    fn cuLaunchGrid(function: CuFunction, width: i32, height: i32) |real| {
        launch(function, (width.unsigned_abs(), height.unsigned_abs(), 1), (0, 0, 0), 0, 0, real)
    }

    fn cuLaunchGridAsync(function: CuFunction, width: i32, height: i32, stream: CuStream) |real| {
        launch(function, (width.unsigned_abs(), height.unsigned_abs(), 1), (0, 0, 0), 0, stream, real)
    }

    fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) |real| {
        launch_graph(exec, stream, real)
    }

    fn cuGraphLaunch_ptsz(exec: CuGraphExec, stream: CuStream) |real| {
        launch_graph(exec, per_thread(stream), real)
    }
}
