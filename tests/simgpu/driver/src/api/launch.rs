// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launch entry points, all of them.

use simgpu_device::lock::lock;

use std::sync::Arc;

use crate::abi::{Error, Handle, In, R};
use crate::export::export;
use crate::graph::capture::{capture_record, capture_work};
use crate::launch::{Attribute, COOPERATIVE, GivenParams, Launch, Shape};
use crate::launch::{check_attributes, events, submit};
use crate::module::function;
use crate::work::StreamWork;
use crate::{state, stream};

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: usize,
    count: u32,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawAttribute {
    id: u32,
    pad: u32,
    value: [u64; 8],
}

/// `CUDA_LAUNCH_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Cooperative {
    function: Handle,
    shape: [u32; 7],
    stream: Handle,
    params: usize,
}

/// A client's launch.
fn launch(handle: Handle, shape: Shape, given: GivenParams, attributes: &[Attribute], stream: Handle) -> R {
    let driver = state::driver()?;
    let function = function::of_handle(handle)?;
    let stream = stream::resolve(driver, stream)?;
    shape.check(&function)?;
    check_attributes(&function, &shape, attributes)?;
    let events = events(attributes)?;
    if stream.is_capturing() {
        let launch = Launch::new(function, shape, given, attributes.to_vec())?;
        capture_work(&stream, StreamWork::Kernel(Arc::new(launch)))?;
        return events.iter().try_for_each(|event| capture_record(&stream, event, 0));
    }
    stream.may_use()?;
    let seq = submit(driver, &stream, &function, shape, given, attributes)?;
    for event in events {
        event.stand_for(seq);
    }
    Ok(())
}

/// The attribute that makes a launch cooperative.
fn cooperative() -> Attribute {
    Attribute {
        id: COOPERATIVE,
        value: [1, 0, 0, 0, 0, 0, 0, 0],
    }
}

/// The attributes of an array of `CUlaunchAttribute`.
fn attributes(address: usize, count: u32) -> R<Vec<Attribute>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let list = In::<RawAttribute>::from_address(address).list(count as usize)?;
    Ok(list
        .into_iter()
        .map(|raw| Attribute {
            id: raw.id,
            value: raw.value,
        })
        .collect())
}

fn extended(config: In<LaunchConfig>, function: Handle, params: In<usize>, extra: In<usize>, default: Handle) -> R {
    let config = config.get()?;
    let shape = Shape {
        grid: config.grid,
        block: config.block,
        shared: config.shared,
    };
    let stream = if config.stream == 0 { default } else { config.stream };
    let attributes = attributes(config.attributes, config.count)?;
    launch(function, shape, GivenParams::new(params, extra)?, &attributes, stream)
}

/// The launches of before CUDA 4, whose block and parameters were set on the function.
fn legacy(handle: Handle, grid: [u32; 3], stream: Handle) -> R {
    let function = function::of_handle(handle)?;
    let (block, shared, buffer) = {
        let set = lock(&function.legacy);
        (set.block, set.shared, set.params.clone())
    };
    let shape = Shape { grid, block, shared };
    let size = buffer.len();
    let given = if size == 0 {
        GivenParams::Nothing
    } else {
        GivenParams::Buffer(In::from_address(buffer.as_ptr().addr()), size)
    };
    let result = launch(handle, shape, given, &[], stream);
    drop(buffer);
    result
}

fn set_params(handle: Handle, offset: i32, bytes: &[u8]) -> R {
    let function = function::of_handle(handle)?;
    let offset = usize::try_from(offset).map_err(|_| Error::INVALID_VALUE)?;
    let mut set = lock(&function.legacy);
    // Parameters could take at most 4 KiB in those days.
    if offset + bytes.len() > 4096 {
        return Err(Error::INVALID_VALUE);
    }
    let need = set.params.len().max(offset + bytes.len());
    set.params.resize(need, 0);
    set.params[offset..offset + bytes.len()].copy_from_slice(bytes);
    Ok(())
}

export! {
    fn cuLaunchKernel(function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
                      shared: u32, stream: Handle, params: In<usize>, extra: In<usize>) {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        launch(function, shape, GivenParams::new(params, extra)?, &[], stream)
    }

    fn cuLaunchCooperativeKernel(function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32,
                                 block_z: u32, shared: u32, stream: Handle, params: In<usize>) {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        let given = if params.is_null() { GivenParams::Nothing } else { GivenParams::Each(params) };
        launch(function, shape, given, &[cooperative()], stream)
    }

    fn cuLaunchCooperativeKernelMultiDevice(launches: In<Cooperative>, count: u32, flags: u32) {
        let _ = flags;
        state::driver()?;
        // One device, so one launch at most.
        if count != 1 {
            return Err(Error::INVALID_VALUE);
        }
        let one = launches.get()?;
        let [gx, gy, gz, bx, by, bz, shared] = one.shape;
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
        let given = if one.params == 0 { GivenParams::Nothing } else { GivenParams::Each(In::from_address(one.params)) };
        launch(one.function, shape, given, &[cooperative()], one.stream)
    }

    fn cuLaunchKernelEx | cuLaunchKernelEx_ptsz [default] (config: In<LaunchConfig>, function: Handle, params: In<usize>, extra: In<usize>) {
        extended(config, function, params, extra, default)
    }

    fn cuLaunch(function: Handle) {
        legacy(function, [1, 1, 1], 0)
    }

    fn cuLaunchGrid(function: Handle, width: i32, height: i32) {
        let side = |n: i32| u32::try_from(n).map_err(|_| Error::INVALID_VALUE);
        legacy(function, [side(width)?, side(height)?, 1], 0)
    }

    fn cuLaunchGridAsync(function: Handle, width: i32, height: i32, stream: Handle) {
        let side = |n: i32| u32::try_from(n).map_err(|_| Error::INVALID_VALUE);
        legacy(function, [side(width)?, side(height)?, 1], stream)
    }

    fn cuFuncSetBlockShape(function: Handle, x: i32, y: i32, z: i32) {
        let side = |n: i32| u32::try_from(n).map_err(|_| Error::INVALID_VALUE);
        lock(&function::of_handle(function)?.legacy).block = [side(x)?, side(y)?, side(z)?];
        Ok(())
    }

    fn cuFuncSetSharedSize(function: Handle, bytes: u32) {
        lock(&function::of_handle(function)?.legacy).shared = bytes;
        Ok(())
    }

    fn cuParamSetSize(function: Handle, bytes: u32) {
        if bytes > 4096 {
            return Err(Error::INVALID_VALUE);
        }
        lock(&function::of_handle(function)?.legacy).params.resize(bytes as usize, 0);
        Ok(())
    }

    fn cuParamSeti(function: Handle, offset: i32, value: u32) {
        set_params(function, offset, &value.to_ne_bytes())
    }

    fn cuParamSetf(function: Handle, offset: i32, value: f32) {
        set_params(function, offset, &value.to_ne_bytes())
    }

    fn cuParamSetv(function: Handle, offset: i32, bytes: In<u8>, count: u32) {
        set_params(function, offset, &bytes.bytes(count as usize)?)
    }
}
