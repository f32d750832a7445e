// SPDX-License-Identifier: MIT OR Apache-2.0
//! CUDA arrays: device memory without an address. The array's handle is used as its address.
//!
//! The driver pads arrays as it likes, so the counted bytes are a lower bound. An array whose
//! memory the job maps by itself (sparse, deferred mapping) takes none.

use super::allocation::{AllocationKind, allocate, free};
use super::declare::{hooks, written};
use crate::driver::abi::{ArrayShape, CuDevicePtr, CuResult, FlatArray};
use crate::throttle;

/// `CUDA_ARRAY3D_SPARSE` or `CUDA_ARRAY3D_DEFERRED_MAPPING`.
const MAPPED_LATER: u32 = 0x40 | 0x80;

/// Half bytes of a texel of this `CUarray_format`. For formats with planes or shared channels, the
/// least.
fn texel_halves(format: u32, channels: u32) -> u64 {
    let channel = match format {
        0x01 | 0x08 | 0xc0..=0xc2 | 0xc6..=0xc8 => 2,
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => 4,
        0x03 | 0x0a | 0x20 => 8,
        // BC1 and BC4: compressed blocks of 8 bytes for 16 texels.
        0x91 | 0x92 | 0x97 | 0x98 => return 1,
        _ => return 2,
    };
    u64::from(channels).saturating_mul(channel)
}

impl FlatArray {
    fn shape(self) -> ArrayShape {
        ArrayShape {
            width: self.width,
            height: self.height,
            depth: 0,
            format: self.format,
            channels: self.channels,
            flags: 0,
        }
    }
}

impl ArrayShape {
    /// Bytes of an array with this many levels, each of half the size.
    fn bytes(&self, levels: u32) -> u64 {
        if self.flags & MAPPED_LATER != 0 {
            return 0;
        }
        let texel = texel_halves(self.format, self.channels);
        let level = |number: u32| {
            let half = |size: usize| (size as u64).checked_shr(number).unwrap_or(0).max(1);
            texel
                .saturating_mul(half(self.width))
                .saturating_mul(half(self.height))
                .saturating_mul(half(self.depth))
        };
        // A size halves 63 times at most.
        (0..levels.clamp(1, 64)).fold(0, |sum: u64, number| sum.saturating_add(level(number) / 2))
    }
}

/// # Safety
/// `handle` is the out-parameter of `real`.
unsafe fn create(
    handle: *const usize,
    shape: Option<ArrayShape>,
    levels: u32,
    real: impl Fn() -> CuResult,
) -> CuResult {
    match shape.map_or(0, |shape| shape.bytes(levels)) {
        0 => real(),
        // SAFETY: the caller's promise; a handle is as wide as an address.
        bytes => unsafe {
            allocate(
                throttle::here(),
                AllocationKind::Array,
                handle.cast::<CuDevicePtr>(),
                bytes,
                real,
            )
        },
    }
}

hooks! {
    fn cuArrayCreate_v2(array: *mut usize, shape: *const FlatArray) |real| {
        // SAFETY: the client's own argument.
        let shape = unsafe { written(shape) };
        // SAFETY: the call's own out-parameter.
        unsafe { create(array, shape.map(FlatArray::shape), 1, real) }
    }
    fn cuArray3DCreate_v2(array: *mut usize, shape: *const ArrayShape) |real| {
        // SAFETY: the client's own argument.
        let shape = unsafe { written(shape) };
        // SAFETY: the call's own out-parameter.
        unsafe { create(array, shape, 1, real) }
    }
    fn cuMipmappedArrayCreate(array: *mut usize, shape: *const ArrayShape, levels: u32) |real| {
        // SAFETY: the client's own argument.
        let shape = unsafe { written(shape) };
        // SAFETY: the call's own out-parameter.
        unsafe { create(array, shape, levels, real) }
    }
    fn cuArrayDestroy(array: usize) |real| { free(array as CuDevicePtr, real) }
    fn cuMipmappedArrayDestroy(array: usize) |real| { free(array as CuDevicePtr, real) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_take_what_their_shape_says() {
        let flat = FlatArray {
            width: 65_536,
            height: 32_768,
            format: 0x20,
            channels: 4,
        };
        assert_eq!(flat.shape().bytes(1), 32 << 30);
        let mut cube = ArrayShape {
            width: 8,
            height: 8,
            depth: 8,
            format: 0x10,
            channels: 1,
            flags: 0,
        };
        assert_eq!(cube.bytes(1), 1024);
        // 8, 4, 2 and 1 per side.
        assert_eq!(cube.bytes(4), 2 * (512 + 64 + 8 + 1));
        // CU_AD_FORMAT_UNORM_INT16X4, BC1_UNORM and BC7_UNORM: 8, 1/2 and 1 bytes a texel.
        for (format, bytes) in [(0xc5, 4096), (0x91, 256), (0x9d, 512)] {
            (cube.format, cube.channels) = (format, 4);
            assert_eq!(cube.bytes(1), bytes, "{format:#x}");
        }
        cube.flags = 0x40;
        assert_eq!(cube.bytes(1), 0, "sparse");
    }
}
