// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that a test gives: `simgpuKernelFunction(name, function, data)` makes a function of the
//! client's the effect of every kernel of that name that is loaded afterwards.
//!
//! `function(data, params, count)` gets an address for each parameter, as `cuLaunchKernel` does;
//! device addresses among their values are addresses of the process, so it computes in place. It
//! runs when the kernel ends, on any thread that performs effects, and may not call the driver. So
//! a test decides the values that a client reads back: a stop flag, a count of tokens, a loss.
#![deny(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use simgpu_device::lock::lock;

use super::call::{Call, KernelEffect, KernelFault, Memory};
use crate::abi::In;

/// The client's function.
type Function = extern "C" fn(usize, *const usize, usize);

static GIVEN: Mutex<Option<HashMap<String, (Function, usize)>>> = Mutex::new(None);

/// The effect that was given for this name.
pub(super) fn find(name: &str) -> Option<KernelEffect> {
    let (function, data) = *lock(&GIVEN).as_ref()?.get(name)?;
    let compute = move |call: &Call<'_>, _: &dyn Memory| {
        let addresses: Result<Vec<usize>, KernelFault> = (0..call.params.len())
            .map(|n| Ok(call.bytes(n)?.as_ptr().expose_provenance()))
            .collect();
        let addresses = addresses?;
        function(data, addresses.as_ptr(), addresses.len());
        Ok(())
    };
    Some(KernelEffect::Compute(Arc::new(compute)))
}

/// Not of CUDA's: see the module.
#[allow(non_snake_case, unsafe_code, reason = "a C symbol")]
#[unsafe(no_mangle)]
pub extern "C" fn simgpuKernelFunction(name: In<u8>, function: Option<Function>, data: usize) -> u32 {
    crate::export::answer("simgpuKernelFunction", || {
        let name = name.text()?;
        let mut given = lock(&GIVEN);
        let given = given.get_or_insert_default();
        match function {
            Some(function) => given.insert(name, (function, data)),
            None => given.remove(&name),
        };
        Ok(())
    })
}
