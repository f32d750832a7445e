//! Launches of jobs on managed memory: as in [`super::launch`], and what they name of the job's memory is noted.
//!
//! A set of hooks of their own, so that a launch of any other job does not even ask whether it is managed.

use std::ffi::c_void;

use super::launch::{as_is, launch, launch_ex, launch_graph};
use super::{hooks, per_thread};
use crate::abi::{CuFunction, CuGraphExec, CuStream, LaunchConfig};
use crate::memory::touch;

hooks! {
    fn cuLaunchKernel(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        // SAFETY: the call's own arguments.
        unsafe { touch::launch(function, arguments, extra) };
        launch(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream, real)
    }

    fn cuLaunchKernel_ptsz(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        // SAFETY: the call's own arguments.
        unsafe { touch::launch(function, arguments, extra) };
        launch(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, per_thread(stream), real)
    }

    fn cuLaunchKernelEx(
        config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        // SAFETY: the call's own arguments.
        unsafe { touch::launch(function, arguments, extra) };
        // SAFETY: the client's promise to the driver.
        unsafe { launch_ex(config, function, as_is, real) }
    }

    fn cuLaunchKernelEx_ptsz(
        config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
    ) |real| {
        // SAFETY: the call's own arguments.
        unsafe { touch::launch(function, arguments, extra) };
        // SAFETY: the client's promise to the driver.
        unsafe { launch_ex(config, function, per_thread, real) }
    }

    fn cuLaunchCooperativeKernel(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void,
    ) |real| {
        // SAFETY: the call's own arguments.
        unsafe { touch::launch(function, arguments, std::ptr::null()) };
        launch(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream, real)
    }

    fn cuLaunchCooperativeKernel_ptsz(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void,
    ) |real| {
        // SAFETY: the call's own arguments.
        unsafe { touch::launch(function, arguments, std::ptr::null()) };
        launch(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, per_thread(stream), real)
    }

    fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) |real| {
        touch::unseen();
        launch_graph(exec, stream, real)
    }

    fn cuGraphLaunch_ptsz(exec: CuGraphExec, stream: CuStream) |real| {
        touch::unseen();
        launch_graph(exec, per_thread(stream), real)
    }
}
