// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arrays, kept as pitched linear device memory: data that is copied in comes out again. There are
//! no textures.
#![deny(unsafe_code)]

use crate::abi::{Error, Handle, In, Out, R};
use crate::context::current;
use crate::export::export;
use crate::memory::{self, take};
use crate::registry::{HandleKind, Registry};
use crate::space::table::AllocationKind;
use crate::state;

/// Every array of the process.
static ARRAYS: Registry<Array> = Registry::new(HandleKind::Array);

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape2 {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape3 {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

/// One array.
pub(crate) struct Array {
    shape: Shape3,
    start: u64,
    row: u64,
}

impl Array {
    /// Address, bytes of a row, rows of a layer.
    pub(crate) fn layout(&self) -> (u64, u64, u64) {
        (self.start, self.row, self.shape.height.max(1) as u64)
    }
}

/// The array of a handle.
pub(crate) fn get(handle: Handle) -> R<std::sync::Arc<Array>> {
    ARRAYS.get(handle)
}

fn element(format: u32) -> R<u64> {
    Ok(match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return Err(Error::NOT_SUPPORTED),
    })
}

fn create(out: Out<Handle>, shape: Shape3) -> R {
    let context = current::get()?;
    if shape.width == 0 || ![1, 2, 4].contains(&shape.channels) || out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let row = element(shape.format)? * u64::from(shape.channels) * shape.width as u64;
    let rows = (shape.height.max(1) as u64)
        .checked_mul(shape.depth.max(1) as u64)
        .ok_or(Error::OUT_OF_MEMORY)?;
    let size = row.checked_mul(rows).ok_or(Error::OUT_OF_MEMORY)?;
    let start = take(state::driver()?, &context, size, AllocationKind::Device)?;
    out.set(ARRAYS.add(Array { shape, start, row }))
}

fn flat(shape: Shape2) -> Shape3 {
    let Shape2 {
        width,
        height,
        format,
        channels,
    } = shape;
    Shape3 {
        width,
        height,
        depth: 0,
        format,
        channels,
        flags: 0,
    }
}

export! {
    fn cuArrayCreate_v2(array: Out<Handle>, shape: In<Shape2>) {
        create(array, flat(shape.get()?))
    }

    fn cuArray3DCreate_v2(array: Out<Handle>, shape: In<Shape3>) {
        create(array, shape.get()?)
    }

    fn cuArrayGetDescriptor_v2(shape: Out<Shape2>, array: Handle) {
        let Shape3 { width, height, format, channels, .. } = get(array)?.shape;
        shape.set(Shape2 { width, height, format, channels })
    }

    fn cuArray3DGetDescriptor_v2(shape: Out<Shape3>, array: Handle) {
        shape.set(get(array)?.shape)
    }

    fn cuArrayDestroy(array: Handle) {
        let driver = state::driver()?;
        let array = ARRAYS.remove(array)?;
        memory::free(driver, array.start)
    }
}
