// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tensor maps (`CUtensorMap`, 128 opaque bytes): descriptions of tensors for kernels of compute
//! capability 9.0. No kernel here reads one, so it holds an address and the arguments that it was
//! made from.
#![deny(unsafe_code)]

use simgpu_device::model::model;

use crate::abi::{DevicePtr, Error, In, Out, R};
use crate::export::export;
use crate::state;

/// `CUtensorMap`.
type Map = [u64; 16];

/// Most dimensions that one has.
const MOST: u32 = 5;

fn encode(map: Out<Map>, kind: u64, rank: u32, at: DevicePtr, sizes: In<u64>) -> R {
    state::driver()?;
    if model().clusters == 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    // The interface requires an address aligned to sixteen bytes.
    if rank == 0 || rank > MOST || at == 0 || !at.is_multiple_of(16) {
        return Err(Error::INVALID_VALUE);
    }
    let mut words: Map = [0; 16];
    (words[0], words[1], words[2]) = (at, kind, rank.into());
    for (word, size) in words[3..].iter_mut().zip(sizes.list(rank as usize)?) {
        *word = size;
    }
    map.set(words)
}

export! {
    fn cuTensorMapEncodeTiled(map: Out<Map>, kind: u32, rank: u32, at: DevicePtr, sizes: In<u64>, strides: In<u64>, boxes: In<u32>,
                              steps: In<u32>, interleave: u32, swizzle: u32, promotion: u32, fill: u32) {
        let _ = (kind, strides, boxes, steps, interleave, swizzle, promotion, fill);
        encode(map, 1, rank, at, sizes)
    }

    fn cuTensorMapEncodeIm2col(map: Out<Map>, kind: u32, rank: u32, at: DevicePtr, sizes: In<u64>, strides: In<u64>, lower: In<i32>,
                               upper: In<i32>, channels: u32, pixels: u32, steps: In<u32>, interleave: u32, swizzle: u32, promotion: u32, fill: u32) {
        let _ = (kind, strides, lower, upper, channels, pixels, steps, interleave, swizzle, promotion, fill);
        encode(map, 2, rank, at, sizes)
    }

    fn cuTensorMapReplaceAddress(map: Out<Map>, at: DevicePtr) {
        let mut words = map.get()?;
        if words[1] == 0 || at == 0 {
            return Err(Error::INVALID_VALUE);
        }
        words[0] = at;
        map.set(words)
    }
}
