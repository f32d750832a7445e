//! Calls after which a launch may fail that succeeded before: they matter where launches are left behind ([`crate::queue`]), and are hooked only there.

use super::hooks;
use crate::abi::{CuDevice, CuFunction, CuResult};
use crate::queue;

/// An attribute was set, if the driver says so.
fn set(function: CuFunction, attribute: u32, value: i32, alone: bool, real: impl FnOnce() -> CuResult) -> CuResult {
    let result = real();
    if result.ok() {
        queue::attribute_set(function, attribute, value, alone);
    }
    result
}

hooks! {
    fn cuFuncSetAttribute(function: CuFunction, attribute: u32, value: i32) |real| {
        set(function, attribute, value, true, real)
    }

    /// A kernel's functions have handles of their own.
    fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: CuFunction, device: CuDevice) |real| {
        set(kernel, attribute, value, false, real)
    }

    fn cuCtxSetLimit(limit: u32, value: usize) |real| {
        let result = real();
        queue::forget_known();
        result
    }
}
