// SPDX-License-Identifier: MIT OR Apache-2.0
//! Entry points that copy a number of bytes.
#![deny(unsafe_code)]

use crate::abi::{DevicePtr, Handle};
use crate::context::current::by_handle;
use crate::copy::Copy;
use crate::export::export;

export! {
    fn cuMemcpy | cuMemcpy_ptds [default] (to: DevicePtr, from: DevicePtr, bytes: usize) {
        Copy::linear(to, from, bytes as u64).run(default)
    }

    fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds [default] (to: DevicePtr, from: usize, bytes: usize) {
        Copy::linear(to, from as u64, bytes as u64).run(default)
    }

    fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds [default] (to: usize, from: DevicePtr, bytes: usize) {
        Copy::linear(to as u64, from, bytes as u64).run(default)
    }

    fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds [default] (to: DevicePtr, from: DevicePtr, bytes: usize) {
        Copy::linear(to, from, bytes as u64).run(default)
    }

    fn cuMemcpyPeer | cuMemcpyPeer_ptds [default] (to: DevicePtr, there: Handle, from: DevicePtr, here: Handle, bytes: usize) {
        by_handle(there)?;
        by_handle(here)?;
        Copy::linear(to, from, bytes as u64).run(default)
    }

    fn cuMemcpyAsync(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Handle) {
        Copy::linear(to, from, bytes as u64).enqueue(stream)
    }

    fn cuMemcpyHtoDAsync_v2(to: DevicePtr, from: usize, bytes: usize, stream: Handle) {
        Copy::linear(to, from as u64, bytes as u64).enqueue(stream)
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, from: DevicePtr, bytes: usize, stream: Handle) {
        Copy::linear(to as u64, from, bytes as u64).enqueue(stream)
    }

    fn cuMemcpyDtoDAsync_v2(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Handle) {
        Copy::linear(to, from, bytes as u64).enqueue(stream)
    }

    fn cuMemcpyPeerAsync(to: DevicePtr, there: Handle, from: DevicePtr, here: Handle, bytes: usize, stream: Handle) {
        by_handle(there)?;
        by_handle(here)?;
        Copy::linear(to, from, bytes as u64).enqueue(stream)
    }
}
