// SPDX-License-Identifier: MIT OR Apache-2.0
//! One-dimensional copies to and from arrays.
#![deny(unsafe_code)]

use crate::abi::{DevicePtr, Handle, R};
use crate::copy::Copy;
use crate::export::export;
use crate::memory::array;

fn at(array: Handle, offset: usize) -> R<u64> {
    Ok(array::get(array)?.layout().0 + offset as u64)
}

export! {
    fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds [default] (to: Handle, offset: usize, from: DevicePtr, bytes: usize) {
        Copy::linear(at(to, offset)?, from, bytes as u64).run(default)
    }

    fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds [default] (to: DevicePtr, from: Handle, offset: usize, bytes: usize) {
        Copy::linear(to, at(from, offset)?, bytes as u64).run(default)
    }

    fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds [default] (to: Handle, offset: usize, from: usize, bytes: usize) {
        Copy::linear(at(to, offset)?, from as u64, bytes as u64).run(default)
    }

    fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds [default] (to: usize, from: Handle, offset: usize, bytes: usize) {
        Copy::linear(to as u64, at(from, offset)?, bytes as u64).run(default)
    }

    fn cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds [default] (to: Handle, there: usize, from: Handle, here: usize, bytes: usize) {
        Copy::linear(at(to, there)?, at(from, here)?, bytes as u64).run(default)
    }

    fn cuMemcpyHtoAAsync_v2(to: Handle, offset: usize, from: usize, bytes: usize, stream: Handle) {
        Copy::linear(at(to, offset)?, from as u64, bytes as u64).enqueue(stream)
    }

    fn cuMemcpyAtoHAsync_v2(to: usize, from: Handle, offset: usize, bytes: usize, stream: Handle) {
        Copy::linear(to as u64, at(from, offset)?, bytes as u64).enqueue(stream)
    }
}
