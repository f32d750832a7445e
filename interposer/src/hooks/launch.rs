// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that launch, and how weft handles a launch. This is the hot path: no lock, no
//! allocation, no formatting.
//!
//! [`launches`] and [`old_launches`] are the only list of these functions. Each [`LaunchMode`] has
//! its own expansion, so a job pays only for its own mode:
//!
//! | mode | launches | old launches |
//! | --- | --- | --- |
//! | [`Straight`] | here | here |
//! | [`super::deferred_launch`]: a launch may be deferred | yes | yes |
//! | [`super::managed_launch`]: the memory of each launch is noted | yes | as otherwise |
//! | [`super::recorded`]: trace mode | yes | as otherwise |

use std::ffi::c_void;
use std::ptr;

use super::declare::{hooks, per_thread, written};
use super::graph;
use crate::deferred::ClientLaunch;
use crate::driver::abi::{
    CuEvent, CuFunction, CuGraphExec, CuResult, CuStream, DeviceLaunch, LaunchAttribute, LaunchConfig,
};
use crate::driver::capture;
use crate::kernels;
use crate::kernels::launch::Launch;
use crate::throttle;

/// How weft handles the launches of a job.
pub(super) trait LaunchMode {
    /// Makes a launch of a kernel. `real` makes the client's call.
    fn kernel(call: KernelCall, real: impl FnOnce() -> CuResult) -> CuResult;

    /// Makes a launch of a graph.
    fn graph(call: GraphCall, real: impl FnOnce() -> CuResult) -> CuResult;
}

/// Numbers of blocks or threads in x, y and z.
pub(super) type Dimensions = (u32, u32, u32);

/// A call that launches a kernel.
///
/// Tuples, and taken by value: an array or a reference would be laid out in memory before each
/// launch (see [`kernels::identify`]).
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelCall {
    pub function: CuFunction,
    pub grid: Dimensions,
    pub block: Dimensions,
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// Stream, in the form that plain entry points take.
    pub stream: CuStream,
    /// One address per parameter.
    pub arguments: *const c_void,
    /// Parameters in the packed form.
    pub extra: *const c_void,
    attributes: *const c_void,
    attribute_count: u32,
    deferrable: bool,
}

impl KernelCall {
    /// A launch that cannot be deferred.
    #[inline(always)]
    pub fn new(function: CuFunction, grid: Dimensions, block: Dimensions, shared: u32, stream: CuStream) -> KernelCall {
        KernelCall {
            function,
            grid,
            block,
            shared,
            stream,
            arguments: ptr::null(),
            extra: ptr::null(),
            attributes: ptr::null(),
            attribute_count: 0,
            deferrable: false,
        }
    }

    /// The launch with its parameters.
    #[inline(always)]
    pub fn with(self, arguments: *const c_void, extra: *const c_void) -> KernelCall {
        KernelCall {
            arguments,
            extra,
            ..self
        }
    }

    /// The launch as one that may be deferred.
    #[inline(always)]
    pub fn deferrable(self) -> KernelCall {
        KernelCall {
            deferrable: true,
            ..self
        }
    }

    /// A launch with a configuration; `None` without one: the driver refuses it.
    ///
    /// # Safety
    /// `config` is null or a launch configuration.
    #[inline(always)]
    pub unsafe fn configured(
        function: CuFunction,
        config: *const LaunchConfig,
        stream: fn(CuStream) -> CuStream,
    ) -> Option<KernelCall> {
        // SAFETY: the caller's promise.
        let config = unsafe { written(config) }?;
        // A wait for such an event ends before the kernel's end, and weft did not see its record.
        // SAFETY: the caller's promise.
        unsafe { events_of(config.attributes, config.attribute_count) }.for_each(throttle::event_gone);
        Some(KernelCall {
            attributes: config.attributes,
            attribute_count: config.attribute_count,
            ..KernelCall::new(
                function,
                config.grid.into(),
                config.block.into(),
                config.shared,
                stream(config.stream),
            )
        })
    }

    /// Identity of the launch; 0 if unknown.
    #[inline(always)]
    pub fn identity(self) -> u64 {
        let ((gx, gy, gz), (bx, by, bz)) = (self.grid, self.block);
        kernels::identify(self.function, gx, gy, gz, bx, by, bz, self.shared)
    }

    #[inline(always)]
    pub fn launch(self) -> Launch {
        Launch::kernel(self.identity(), self.stream, capture::on(self.stream))
    }

    /// Data to copy if the launch is deferred; `None`: the launch must wait at the gate.
    #[inline(always)]
    pub fn to_defer(self) -> Option<ClientLaunch> {
        self.deferrable.then(|| ClientLaunch {
            function: self.function,
            grid: self.grid.into(),
            block: self.block.into(),
            shared: self.shared,
            stream: self.stream,
            arguments: self.arguments,
            extra: self.extra,
            attributes: self.attributes,
            attribute_count: self.attribute_count,
        })
    }
}

/// Kinds of attributes with an event that the launch records:
/// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT.
const WITH_EVENT: [u32; 2] = [7, 12];

/// Events that a launch with these attributes records.
///
/// # Safety
/// The attributes are those that the client gives the driver.
#[inline(always)]
unsafe fn events_of(attributes: *const c_void, count: u32) -> impl Iterator<Item = CuEvent> {
    let list = attributes.cast::<LaunchAttribute>();
    let count = if list.is_null() { 0 } else { count };
    (0..count as usize).filter_map(move |at| {
        // SAFETY: within the client's count; an unaligned read needs no alignment.
        let [kind, event, ..] = unsafe { list.wrapping_add(at).read_unaligned() };
        // The word's other half is padding.
        WITH_EVENT.contains(&(kind as u32)).then_some(event as CuEvent)
    })
}

/// A call that launches a graph.
#[derive(Debug, Clone, Copy)]
pub(super) struct GraphCall {
    pub exec: CuGraphExec,
    /// Stream, in the form that plain entry points take.
    pub stream: CuStream,
}

impl GraphCall {
    #[inline(always)]
    pub fn launch(self) -> Launch {
        Launch::graph(graph::identity(self.exec), self.stream, capture::on(self.stream))
    }
}

/// Every launch goes to the driver before the hook returns.
#[derive(Debug)]
pub(super) struct Straight;

impl LaunchMode for Straight {
    #[inline(always)]
    fn kernel(call: KernelCall, real: impl FnOnce() -> CuResult) -> CuResult {
        straight(call.launch(), real)
    }

    #[inline(always)]
    fn graph(call: GraphCall, real: impl FnOnce() -> CuResult) -> CuResult {
        straight(call.launch(), real)
    }
}

/// Informs the session before and after a launch.
#[inline(always)]
pub(super) fn straight(launch: Launch, real: impl FnOnce() -> CuResult) -> CuResult {
    let ticket = throttle::before_launch(launch);
    if ticket.is_nothing() {
        // Most launches end here, with a jump to the driver with the client's own stack arguments.
        return real();
    }
    let result = real();
    throttle::after_launch(ticket, launch.stream(), result.0);
    result
}

pub(super) fn as_is(stream: CuStream) -> CuStream {
    stream
}

/// Declares the hooks of all functions that launch one kernel or graph, for a [`LaunchMode`].
macro_rules! launches {
    ($mode:ty) => {
        hooks! {
            fn cuLaunchKernel(
                function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
                shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
            ) |real| {
                let call = KernelCall::new(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream);
                <$mode>::kernel(call.with(arguments, extra).deferrable(), real)
            }

            fn cuLaunchKernel_ptsz(
                function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
                shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
            ) |real| {
                let stream = per_thread(stream);
                let call = KernelCall::new(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream);
                <$mode>::kernel(call.with(arguments, extra).deferrable(), real)
            }

            fn cuLaunchKernelEx(
                config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
            ) |real| {
                // SAFETY: the client's promise.
                match unsafe { KernelCall::configured(function, config, as_is) } {
                    Some(call) => <$mode>::kernel(call.with(arguments, extra).deferrable(), real),
                    None => real(),
                }
            }

            fn cuLaunchKernelEx_ptsz(
                config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void,
            ) |real| {
                // SAFETY: the client's promise.
                match unsafe { KernelCall::configured(function, config, per_thread) } {
                    Some(call) => <$mode>::kernel(call.with(arguments, extra).deferrable(), real),
                    None => real(),
                }
            }

            fn cuLaunchCooperativeKernel(
                function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
                shared: u32, stream: CuStream, arguments: *const c_void,
            ) |real| {
                let call = KernelCall::new(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream);
                <$mode>::kernel(call.with(arguments, std::ptr::null()), real)
            }

            fn cuLaunchCooperativeKernel_ptsz(
                function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
                shared: u32, stream: CuStream, arguments: *const c_void,
            ) |real| {
                let stream = per_thread(stream);
                let call = KernelCall::new(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), shared, stream);
                <$mode>::kernel(call.with(arguments, std::ptr::null()), real)
            }

            fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) |real| {
                <$mode>::graph(GraphCall { exec, stream }, real)
            }

            fn cuGraphLaunch_ptsz(exec: CuGraphExec, stream: CuStream) |real| {
                <$mode>::graph(GraphCall { exec, stream: per_thread(stream) }, real)
            }
        }
    };
}
pub(super) use launches;

/// Declares the hooks of deprecated functions, and of the one that launches on several devices, for
/// a [`LaunchMode`].
macro_rules! old_launches {
    ($mode:ty) => {
        hooks! {
            as find_old;

            /// Reported as the first device's launch: the kernel starts on all devices or on none.
            fn cuLaunchCooperativeKernelMultiDevice(list: *const DeviceLaunch, count: u32, flags: u32) |real| {
                // SAFETY: the client's promise to the driver, if there is a first one.
                let first = (count > 0).then(|| unsafe { written(list) }).flatten();
                match first {
                    Some(first) => {
                        let (grid, block) = (first.grid.into(), first.block.into());
                        <$mode>::kernel(KernelCall::new(first.function, grid, block, first.shared, first.stream), real)
                    }
                    None => real(),
                }
            }

            /// The oldest way: grid, block and shared memory were set on the function before.
            fn cuLaunch(function: CuFunction) |real| {
                <$mode>::kernel(KernelCall::new(function, (1, 1, 1), (0, 0, 0), 0, 0), real)
            }

            fn cuLaunchGrid(function: CuFunction, width: i32, height: i32) |real| {
                let grid = (width.unsigned_abs(), height.unsigned_abs(), 1);
                <$mode>::kernel(KernelCall::new(function, grid, (0, 0, 0), 0, 0), real)
            }

            fn cuLaunchGridAsync(function: CuFunction, width: i32, height: i32, stream: CuStream) |real| {
                let grid = (width.unsigned_abs(), height.unsigned_abs(), 1);
                <$mode>::kernel(KernelCall::new(function, grid, (0, 0, 0), 0, stream), real)
            }
        }
    };
}
pub(super) use old_launches;

launches!(Straight);
old_launches!(Straight);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_a_launch_records_are_known() {
        let attribute = |kind, value| [kind, value, 0, 0, 0, 0, 0, 0, 0];
        let padded = u64::from(u32::MAX) << 32 | 12;
        let list: [LaunchAttribute; 4] = [
            attribute(6, 1),
            attribute(7, 70),
            attribute(4, 2),
            attribute(padded, 120),
        ];
        // SAFETY: the list lives, and has four attributes.
        let events: Vec<CuEvent> = unsafe { events_of(list.as_ptr().cast(), 4) }.collect();
        assert_eq!(events, [70, 120]);
        // SAFETY: no attribute is read.
        assert_eq!(unsafe { events_of(ptr::null(), 4) }.count(), 0);
    }
}
