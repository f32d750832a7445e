// SPDX-License-Identifier: MIT OR Apache-2.0
//! A deferred launch: a copy of all data that the driver would have read.

use std::ffi::c_void;

use super::validated;
use crate::client::backing_mode;
use crate::driver::abi::{CuContext, CuFunction, CuResult, CuStream, LaunchAttribute, LaunchConfig};
use crate::driver::calls;
use crate::driver::capture;
use crate::driver::stream::PER_THREAD_STREAM;
use crate::kernels::launch::Launch;
use crate::kernels::layouts;
use crate::throttle;

/// Largest parameter block, bytes: 32,764 since CUDA 12.1, 4,096 before.
const LARGEST_BYTES: usize = 32_764;

/// Most attributes per launch. There are some twenty kinds.
const ATTRIBUTES: usize = 16;

/// Kinds with plain numbers as value. Excluded: cooperative (success depends on the grid), events,
/// nodes updated on the device, and kinds after 14, which were not looked at.
/// CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
/// CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
/// CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
/// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
/// CU_LAUNCH_ATTRIBUTE_PRIORITY,
/// CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
/// CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
/// CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION,
/// CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT.
const PLAIN: [u32; 9] = [1, 4, 5, 6, 8, 9, 10, 11, 14];

/// Largest grid in x, y and z.
const GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// A launch as the client makes it.
#[derive(Debug, Clone, Copy)]
pub struct ClientLaunch {
    /// Kernel.
    pub function: CuFunction,
    /// Grid, blocks.
    pub grid: [u32; 3],
    /// Block, threads.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// Stream, in the form that plain entry points take.
    pub stream: CuStream,
    /// One address per parameter.
    pub arguments: *const c_void,
    /// Parameters in the packed form.
    pub extra: *const c_void,
    /// Launch attributes.
    pub attributes: *const c_void,
    /// Number of attributes.
    pub attribute_count: u32,
}

/// The copy of a launch.
#[derive(Debug)]
pub struct DeferredLaunch {
    pub launch: Launch,
    /// The context current at the call.
    pub context: CuContext,
    function: CuFunction,
    stream: CuStream,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    /// Parameter block, aligned for the widest type.
    block_of_parameters: Vec<u128>,
    /// Offset of each parameter. None: the kernel has none.
    offsets: Option<Vec<u32>>,
    attributes: Vec<LaunchAttribute>,
}

impl DeferredLaunch {
    /// Memory of this copy, bytes.
    pub fn bytes(&self) -> usize {
        let offsets = self.offsets.as_ref().map_or(0, Vec::len);
        size_of::<DeferredLaunch>()
            + 16 * self.block_of_parameters.len()
            + 4 * offsets
            + size_of::<LaunchAttribute>() * self.attributes.len()
    }

    /// Launches the kernel. Its context is current.
    pub fn issue(&self) -> CuResult {
        let start = self.block_of_parameters.as_ptr().cast::<u8>();
        let arguments: Option<Vec<*const u8>> = self.offsets.as_ref().map(|offsets| {
            offsets
                .iter()
                .map(|offset| start.wrapping_add(*offset as usize))
                .collect()
        });
        let arguments = arguments.as_ref().map_or(std::ptr::null(), |list| list.as_ptr().cast());
        let [gx, gy, gz] = self.grid;
        let [bx, by, bz] = self.block;
        if self.attributes.is_empty() {
            // SAFETY: a copy of the client's arguments for the driver; function, stream and context
            // live, because any call that ends one of them waits for the queue.
            return unsafe {
                calls::cuLaunchKernel(
                    self.function,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    self.shared,
                    self.stream,
                    arguments,
                    std::ptr::null(),
                )
            };
        }
        let config = LaunchConfig {
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            stream: self.stream,
            attributes: self.attributes.as_ptr().cast(),
            attribute_count: self.attributes.len() as u32,
        };
        // SAFETY: as above.
        unsafe { calls::cuLaunchKernelEx(&config, self.function, arguments, std::ptr::null()) }
    }
}

/// Attributes of a launch, if all are plain.
///
/// # Safety
/// The launch has the arguments that the client gives the driver.
unsafe fn attributes(launch: &ClientLaunch) -> Option<Vec<LaunchAttribute>> {
    let count = launch.attribute_count as usize;
    if count > ATTRIBUTES || (count > 0 && launch.attributes.is_null()) {
        return None;
    }
    let list = launch.attributes.cast::<LaunchAttribute>();
    let mut copied = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: within the client's count; an unaligned read needs no alignment.
        let attribute = unsafe { list.wrapping_add(at).read_unaligned() };
        let [kind, ..] = attribute;
        // The word's other half is padding.
        if !PLAIN.contains(&(kind as u32)) {
            return None;
        }
        copied.push(attribute);
    }
    Some(copied)
}

/// Learns a launch that succeeded: the next one like it may be deferred.
///
/// # Safety
/// As [`attributes`].
pub unsafe fn learn(launch: &ClientLaunch) -> Option<()> {
    // SAFETY: the caller's promise.
    let attributes = unsafe { attributes(launch) }?;
    let context = current()?;
    let key = key_of(launch, context, &attributes);
    let blocking = match validated::leads(launch.stream, context) {
        true => validated::blocks(launch.stream),
        false => is_blocking(launch.stream)?,
    };
    validated::add(launch.function, key, launch.stream, context, blocking);
    Some(())
}

/// Whether the legacy default stream waits for this one (true if unknown); `None` during a capture,
/// which forbids the query.
fn is_blocking(stream: CuStream) -> Option<bool> {
    /// CU_STREAM_NON_BLOCKING.
    const NON_BLOCKING: u32 = 1;
    if stream <= PER_THREAD_STREAM {
        return Some(true);
    }
    if capture::any() {
        return None;
    }
    let mut flags = 0;
    // SAFETY: the out-parameter is valid; the client has just launched to the stream.
    let asked = unsafe { calls::cuStreamGetFlags(stream, &mut flags) };
    Some(!asked.ok() || flags & NON_BLOCKING == 0)
}

fn key_of(launch: &ClientLaunch, context: CuContext, attributes: &[LaunchAttribute]) -> u64 {
    let mut key = Mix(0x9e37_79b9_7f4a_7c15);
    key.add(launch.function as u64);
    key.add(context as u64);
    for word in launch.block {
        key.add(u64::from(word));
    }
    key.add(u64::from(launch.shared));
    if !attributes.is_empty() {
        // A cluster must fit the grid.
        for word in launch.grid {
            key.add(u64::from(word));
        }
        for [kind, rest @ ..] in attributes {
            key.add(u64::from(*kind as u32));
            // Unused bytes of a union may differ between launches. Then the key differs and is
            // learnt anew.
            for word in rest {
                key.add(*word);
            }
        }
    }
    key.0
}

/// A 64-bit hash.
struct Mix(u64);

impl Mix {
    fn add(&mut self, word: u64) {
        // FxHash's multiplier, then a fold of the high half, which multiplication mixes best.
        let mixed = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// The current context, if any.
pub fn current() -> Option<CuContext> {
    let mut context = 0;
    // SAFETY: the out-parameter is valid.
    let asked = unsafe { calls::cuCtxGetCurrent(&mut context) };
    (asked.ok() && context != 0).then_some(context)
}

/// Copies a launch if it may be deferred.
///
/// # Safety
/// As [`attributes`].
pub unsafe fn copy(launch: Launch, call: &ClientLaunch) -> Option<DeferredLaunch> {
    if call.stream == PER_THREAD_STREAM || !call.extra.is_null() || backing_mode::managed() {
        return None;
    }
    if !call
        .grid
        .iter()
        .zip(GRID)
        .all(|(blocks, most)| (1..=most).contains(blocks))
    {
        return None;
    }
    // SAFETY: the caller's promise.
    let attributes = unsafe { attributes(call) }?;
    let context = current()?;
    let succeeds = validated::has(call.function, key_of(call, context, &attributes), context);
    if !succeeds || !validated::leads(call.stream, context) {
        return None;
    }
    let mut block_of_parameters = Vec::new();
    let mut offsets = None;
    if !call.arguments.is_null() {
        let parameters = &layouts::of(call.function)?.parameters;
        let ends = parameters
            .iter()
            .map(|parameter| parameter.offset as usize + parameter.size as usize);
        let bytes = ends.max().unwrap_or(0);
        if bytes > LARGEST_BYTES {
            return None;
        }
        block_of_parameters = vec![0u128; bytes.div_ceil(16)];
        let start = block_of_parameters.as_mut_ptr().cast::<u8>();
        for (at, parameter) in parameters.iter().enumerate() {
            // SAFETY: the client gives one address per parameter.
            let value = unsafe { call.arguments.cast::<*const u8>().wrapping_add(at).read() };
            if value.is_null() || parameter.size == 0 {
                return None;
            }
            let place = start.wrapping_add(parameter.offset as usize);
            // SAFETY: the parameter has `size` bytes, and the block covers the largest end.
            unsafe { std::ptr::copy_nonoverlapping(value, place, parameter.size as usize) };
        }
        offsets = Some(parameters.iter().map(|parameter| parameter.offset).collect());
    }
    Some(DeferredLaunch {
        launch,
        context,
        function: call.function,
        stream: call.stream,
        grid: call.grid,
        block: call.block,
        shared: call.shared,
        block_of_parameters,
        offsets,
        attributes,
    })
}

/// Passes the gate, launches, and informs the session.
pub fn go(deferred: &DeferredLaunch) -> CuResult {
    let ticket = throttle::before_deferred(deferred.launch);
    let result = deferred.issue();
    throttle::after_launch(ticket, deferred.launch.stream(), result.0);
    result
}
