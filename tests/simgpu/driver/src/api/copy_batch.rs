// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches of copies. A batch promises no order among its copies; here they run one after another.
#![deny(unsafe_code)]

use crate::abi::{DevicePtr, Error, Handle, In, Location, Out, R};
use crate::copy::{Copy, Place};
use crate::export::export;
use crate::memory::array;
use crate::state;
use crate::stream;

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[repr(C)]
#[derive(Clone, std::marker::Copy)]
struct Operation {
    from: Operand,
    to: Operand,
    width: usize,
    height: usize,
    depth: usize,
    order: u32,
    flags: u32,
}

/// `CUmemcpy3DOperand`: a pointer with row length and layer height, or an array with an offset.
#[repr(C)]
#[derive(Clone, std::marker::Copy)]
struct Operand {
    kind: u32,
    pointer_or_array: u64,
    row_or_x: usize,
    height_or_y: usize,
    hint_or_z: usize,
}

impl Operand {
    fn place(&self, width: usize, height: usize) -> R<Place> {
        match self.kind {
            1 => {
                let pitch = if self.row_or_x == 0 { width } else { self.row_or_x };
                let rows = if self.height_or_y == 0 {
                    height
                } else {
                    self.height_or_y
                };
                Ok(Place {
                    address: self.pointer_or_array,
                    pitch: pitch as u64,
                    height: rows as u64,
                })
            }
            2 => {
                let (start, pitch, rows) = array::get(self.pointer_or_array as Handle)?.layout();
                let skip = self.row_or_x as u64 + pitch * (self.height_or_y as u64 + rows * self.hint_or_z as u64);
                Ok(Place {
                    address: start + skip,
                    pitch,
                    height: rows,
                })
            }
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, std::marker::Copy)]
struct CopyAttributes {
    order: u32,
    from: Location,
    to: Location,
    flags: u32,
}

fn created(stream: Handle) -> R {
    // Batches are refused on the default streams, and in captures.
    let stream = stream::resolve(state::driver()?, stream)?;
    if stream.handle <= stream::PER_THREAD {
        return Err(Error::INVALID_VALUE);
    }
    if stream.is_capturing() {
        Err(Error::STREAM_CAPTURE_UNSUPPORTED)
    } else {
        Ok(())
    }
}

fn linear(to: In<DevicePtr>, from: In<DevicePtr>, sizes: In<usize>, count: usize, stream: Handle) -> R {
    created(stream)?;
    for at in 0..count {
        Copy::linear(to.at(at).get()?, from.at(at).get()?, sizes.at(at).get()? as u64).enqueue(stream)?;
    }
    Ok(())
}

fn shaped(operations: In<Operation>, count: usize, stream: Handle) -> R {
    created(stream)?;
    for operation in operations.list(count)? {
        one(&operation, stream)?;
    }
    Ok(())
}

fn one(operation: &Operation, stream: Handle) -> R {
    let Operation {
        width, height, depth, ..
    } = *operation;
    let (to, from) = (operation.to.place(width, height)?, operation.from.place(width, height)?);
    Copy {
        to,
        from,
        width: width as u64,
        rows: height as u64,
        layers: depth as u64,
    }
    .enqueue(stream)
}

export! {
    fn cuMemcpyBatchAsync(to: In<DevicePtr>, from: In<DevicePtr>, sizes: In<usize>, count: usize, attributes: In<CopyAttributes>,
                          starts: In<usize>, kinds: usize, failed: Out<usize>, stream: Handle) {
        let _ = (attributes, starts, kinds);
        linear(to, from, sizes, count, stream).inspect_err(|_| failed.set_if(usize::MAX))
    }

    fn cuMemcpyBatchAsync_v2(to: In<DevicePtr>, from: In<DevicePtr>, sizes: In<usize>, count: usize,
                             attributes: In<CopyAttributes>, starts: In<usize>, kinds: usize, stream: Handle) {
        let _ = (attributes, starts, kinds);
        linear(to, from, sizes, count, stream)
    }

    fn cuMemcpy3DBatchAsync(count: usize, operations: In<Operation>, failed: Out<usize>, flags: u64, stream: Handle) {
        let _ = flags;
        shaped(operations, count, stream).inspect_err(|_| failed.set_if(usize::MAX))
    }

    fn cuMemcpy3DBatchAsync_v2(count: usize, operations: In<Operation>, flags: u64, stream: Handle) {
        let _ = flags;
        shaped(operations, count, stream)
    }

    fn cuMemcpyWithAttributesAsync(to: DevicePtr, from: DevicePtr, bytes: usize, attributes: In<CopyAttributes>, stream: Handle) {
        let _ = attributes;
        Copy::linear(to, from, bytes as u64).enqueue(stream)
    }

    fn cuMemcpy3DWithAttributesAsync(operation: In<Operation>, flags: u64, stream: Handle) {
        let _ = flags;
        one(&operation.get()?, stream)
    }
}
