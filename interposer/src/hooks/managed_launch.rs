//! Launches of jobs on managed memory: as in [`super::launch`], with the memory that each launch
//! names noted.
//!
//! They have their own set of hooks, so a launch of another job pays no check.

use std::ffi::c_void;

use super::declare::{hooks, per_thread, written};
use super::launch::{Straight, Way, as_is, launch, launch_ex, launch_graph};
use crate::driver::abi::{CuFunction, CuGraphExec, CuResult, CuStream, LaunchConfig};
use crate::kernels::launch::{LaunchInfo, LaunchKind};
use crate::paging::access_tracker::{self, Kernel, Noted};
use crate::throttle;

fn kernel(
    function: CuFunction,
    grid: (u32, u32, u32),
    block: (u32, u32, u32),
    shared: u32,
    stream: CuStream,
) -> Kernel {
    Kernel {
        function,
        grid,
        block,
        shared,
        stream,
    }
}

/// Makes an observed launch: it passes the gate and yields no sample of its kernel's time.
#[cold]
fn observed(stream: CuStream, noted: Noted, real: impl FnOnce() -> CuResult) -> CuResult {
    throttle::interrupt_samples(stream);
    let info = LaunchInfo {
        kernel_hash: 0,
        stream,
        kind: LaunchKind::Kernel,
        cost_hint: 0,
        capturing: false,
    };
    Straight::told(&info, || None, || noted.around(real))
}

/// Notes what a launch touches, and tells the session about it.
///
/// # Safety
/// The call's own arguments.
#[inline(always)]
unsafe fn told(
    kernel: Kernel,
    arguments: *const c_void,
    extra: *const c_void,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    // SAFETY: the caller's promise.
    let noted = unsafe { access_tracker::launch(kernel, arguments, extra) };
    if noted.is_observed() {
        return observed(kernel.stream, noted, real);
    }
    launch::<Straight>(
        kernel.function,
        kernel.grid,
        kernel.block,
        kernel.shared,
        kernel.stream,
        || noted.around(real),
    )
}

/// # Safety
/// The call's own arguments.
#[inline(always)]
unsafe fn told_ex(
    config: *const LaunchConfig,
    function: CuFunction,
    stream: fn(CuStream) -> CuStream,
    arguments: *const c_void,
    extra: *const c_void,
    real: impl FnOnce() -> CuResult,
) -> CuResult {
    // SAFETY: the caller's promise. Without a configuration the driver refuses the launch.
    let mut noted = unsafe { written(config) }.map(|config| {
        let kernel = kernel(
            function,
            config.grid.into(),
            config.block.into(),
            config.shared,
            stream(config.stream),
        );
        // SAFETY: the caller's promise.
        (
            unsafe { access_tracker::launch(kernel, arguments, extra) },
            kernel.stream,
        )
    });
    if let Some((noted, stream)) = noted.take_if(|(noted, _)| noted.is_observed()) {
        return observed(stream, noted, real);
    }
    let noted = noted.map(|(noted, _)| noted);
    // SAFETY: the caller's promise.
    unsafe {
        launch_ex::<Straight>(config, function, stream, (arguments, extra), || {
            noted.unwrap_or_default().around(real)
        })
    }
}

hooks! {
    fn cuLaunchKernel(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        let kernel = kernel(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream);
        // SAFETY: the call's own arguments.
        unsafe { told(kernel, arguments, extra, real) }
    }

    fn cuLaunchKernel_ptsz(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        let kernel = kernel(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, per_thread(stream));
        // SAFETY: the call's own arguments.
        unsafe { told(kernel, arguments, extra, real) }
    }

    fn cuLaunchKernelEx(
        config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        // SAFETY: the call's own arguments.
        unsafe { told_ex(config, function, as_is, arguments, extra, real) }
    }

    fn cuLaunchKernelEx_ptsz(
        config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        // SAFETY: the call's own arguments.
        unsafe { told_ex(config, function, per_thread, arguments, extra, real) }
    }

    fn cuLaunchCooperativeKernel(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void,
    ) |real| {
        let kernel = kernel(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream);
        // SAFETY: the call's own arguments.
        unsafe { told(kernel, arguments, std::ptr::null(), real) }
    }

    fn cuLaunchCooperativeKernel_ptsz(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void,
    ) |real| {
        let kernel = kernel(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, per_thread(stream));
        // SAFETY: the call's own arguments.
        unsafe { told(kernel, arguments, std::ptr::null(), real) }
    }

    fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) |real| {
        access_tracker::unseen();
        launch_graph::<Straight>(exec, stream, real)
    }

    fn cuGraphLaunch_ptsz(exec: CuGraphExec, stream: CuStream) |real| {
        access_tracker::unseen();
        launch_graph::<Straight>(exec, per_thread(stream), real)
    }
}
