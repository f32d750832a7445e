//! Launches of jobs with `WEFT_QUEUE=on`: as in [`super::launch`], and one that would wait at a closed gate may be left behind there ([`crate::queue`]).
//!
//! A set of hooks of their own, so that a launch of any other job does not even ask.

use std::ffi::c_void;

use super::launch::as_is;
use super::{capture, graph, hooks, per_thread, written};
use crate::abi::{CuFunction, CuGraphExec, CuResult, CuStream, DeviceLaunch, LaunchConfig};
use crate::names;
use crate::queue::{self, Launch, Offered};
use crate::session::{self, LaunchInfo, LaunchKind};

/// Tells the session about a launch, around it. The shape goes by single numbers: see [`names::identify`].
#[inline(always)]
fn launch(
    function: CuFunction,
    grid: (u32, u32, u32),
    block: (u32, u32, u32),
    shared: u32,
    stream: CuStream,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    told(&info(function, grid, block, shared, stream), || None, real)
}

#[inline(always)]
fn info(
    function: CuFunction,
    (gx, gy, gz): (u32, u32, u32),
    (bx, by, bz): (u32, u32, u32),
    shared: u32,
    stream: CuStream,
) -> LaunchInfo {
    LaunchInfo {
        kernel_hash: names::identify(function, gx, gy, gz, bx, by, bz, shared),
        stream,
        kind: LaunchKind::Kernel,
        cost_hint: 0,
        capturing: capture::on(stream),
    }
}

/// `leave`: what has to be copied if the launch is to be left behind at a closed gate; `None` where it has to wait there itself.
#[inline(always)]
fn told(info: &LaunchInfo, leave: impl FnOnce() -> Option<Launch>, real: impl FnOnce() -> CuResult) -> CuResult {
    if queue::busy() {
        return told_behind(info, leave().as_ref(), real);
    }
    let ticket = session::before_launch(info);
    if ticket.waits() {
        return told_waiting(info, leave().as_ref(), real);
    }
    let result = real();
    session::after_launch(ticket, info.stream, result.0);
    result
}

/// A launch while others are in the queue.
#[cold]
#[inline(never)]
fn told_behind(info: &LaunchInfo, leave: Option<&Launch>, real: impl FnOnce() -> CuResult) -> CuResult {
    // SAFETY: what the client gives the driver.
    match unsafe { queue::behind(info, leave) } {
        Offered::Taken => {
            session::counted();
            return CuResult::SUCCESS;
        }
        Offered::Failed(error) => return error,
        Offered::Declined => {}
    }
    let ticket = session::before_launch(info);
    if ticket.waits() {
        return told_waiting(info, leave, real);
    }
    let result = real();
    session::after_launch(ticket, info.stream, result.0);
    result
}

/// A launch that has to wait at the gate: it is left behind there, or waits itself.
#[cold]
#[inline(never)]
fn told_waiting(info: &LaunchInfo, leave: Option<&Launch>, real: impl FnOnce() -> CuResult) -> CuResult {
    // SAFETY: what the client gives the driver.
    match unsafe { queue::offer(info, leave) } {
        Offered::Taken => return CuResult::SUCCESS,
        Offered::Failed(error) => return error,
        Offered::Declined => {}
    }
    let ticket = session::before_held(info);
    let result = real();
    session::after_launch(ticket, info.stream, result.0);
    if let (true, Some(leave)) = (result.ok(), leave) {
        queue::learn(leave);
    }
    result
}

/// As [`launch`], for one that may be left behind.
#[inline(always)]
fn launch_plain(
    function: CuFunction,
    grid: (u32, u32, u32),
    block: (u32, u32, u32),
    shared: u32,
    stream: CuStream,
    (arguments, extra): (*const c_void, *const c_void),
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    let leave = || {
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
    told(&info(function, grid, block, shared, stream), leave, real)
}

/// The same with a configuration.
///
/// # Safety
/// `config` is null or a launch configuration.
#[inline(always)]
unsafe fn launch_plain_ex(
    config: *const LaunchConfig,
    function: CuFunction,
    stream: fn(CuStream) -> CuStream,
    (arguments, extra): (*const c_void, *const c_void),
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    // SAFETY: the caller's promise. Without one the driver refuses the launch.
    let Some(config) = (unsafe { written(config) }) else {
        return real();
    };
    let stream = stream(config.stream);
    let leave = || {
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
    told(&info, leave, real)
}

#[inline(always)]
fn launch_graph(exec: CuGraphExec, stream: CuStream, real: impl FnOnce() -> CuResult) -> CuResult {
    let info = LaunchInfo {
        kernel_hash: graph::identity(exec),
        stream,
        kind: LaunchKind::Graph,
        cost_hint: 0,
        capturing: capture::on(stream),
    };
    told(&info, || None, real)
}

hooks! {
    fn cuLaunchKernel(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        let parameters = (arguments, extra);
        launch_plain(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream, parameters, real)
    }

    fn cuLaunchKernel_ptsz(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        let (stream, parameters) = (per_thread(stream), (arguments, extra));
        launch_plain(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream, parameters, real)
    }

    fn cuLaunchKernelEx(
        config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        // SAFETY: the client's promise to the driver.
        unsafe { launch_plain_ex(config, function, as_is, (arguments, extra), real) }
    }

    fn cuLaunchKernelEx_ptsz(
        config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        // SAFETY: the client's promise to the driver.
        unsafe { launch_plain_ex(config, function, per_thread, (arguments, extra), real) }
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
