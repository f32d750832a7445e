// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls after which a launch may fail that would otherwise succeed. They matter for deferred
//! launches ([`crate::deferred`]), and are hooked only in jobs with a launch queue.

use super::declare::hooks;
use crate::deferred::{self, AttributeOwner};
use crate::driver::abi::{CuDevice, CuFunction, CuKernel};
use crate::driver::calls;

hooks! {
    fn cuFuncSetAttribute(function: CuFunction, attribute: u32, value: i32) |real| {
        let named = AttributeOwner::Function(function);
        if let Some(error) = deferred::before_attribute(named, attribute, value) {
            return error;
        }
        let result = real();
        if result.ok() {
            deferred::attribute_set(named, attribute, value, None);
        }
        result
    }

    fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: CuKernel, device: CuDevice) |real| {
        let named = AttributeOwner::Kernel(kernel, device);
        if let Some(error) = deferred::before_attribute(named, attribute, value) {
            return error;
        }
        let result = real();
        if result.ok() {
            let mut here = 0;
            // SAFETY: the driver has just accepted this kernel; the out-parameter is valid.
            let found = unsafe { calls::cuKernelGetFunction(&mut here, kernel) };
            deferred::attribute_set(named, attribute, value, found.ok().then_some(here));
        }
        result
    }

    fn cuCtxSetLimit(limit: u32, value: usize) |real| {
        let result = real();
        deferred::forget_known();
        result
    }
}
