// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points about functions and kernels.
#![deny(unsafe_code)]

use std::sync::atomic::Ordering;

use crate::abi::{Error, Handle, Out, R};
use crate::device;
use crate::export::export;
use crate::module::function::KERNELS;
use crate::module::function::{self, FUNCTIONS, Function};
use crate::state;

fn name(out: Out<usize>, function: &Function) -> R {
    state::driver()?;
    // The text lives as long as the process: names are interned once.
    out.set(crate::names::text(&function.name))
}

fn param_info(function: &Function, at: usize, offset: Out<usize>, size: Out<usize>) -> R {
    let param = function.param(at)?;
    offset.set(param.offset as usize)?;
    size.set_if(param.size as usize);
    Ok(())
}

export! {
    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: Handle) {
        value.set(function::of_handle(function)?.attribute(attribute)?)
    }

    fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32) {
        function::of_handle(function)?.set_attribute(attribute, value)
    }

    fn cuFuncSetCacheConfig(function: Handle, config: u32) {
        function::of_handle(function)?.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    }

    fn cuFuncSetSharedMemConfig(function: Handle, config: u32) {
        let _ = config;
        function::of_handle(function).map(drop)
    }

    fn cuFuncGetModule(module: Out<Handle>, function: Handle) {
        module.set(function::of_handle(function)?.module)
    }

    fn cuFuncGetName(text: Out<usize>, function: Handle) {
        name(text, &*FUNCTIONS.get(function)?)
    }

    fn cuKernelGetName(text: Out<usize>, kernel: Handle) {
        name(text, &KERNELS.get(kernel)?.function)
    }

    fn cuFuncGetParamInfo(function: Handle, at: usize, offset: Out<usize>, size: Out<usize>) {
        param_info(&*FUNCTIONS.get(function)?, at, offset, size)
    }

    fn cuKernelGetParamInfo(kernel: Handle, at: usize, offset: Out<usize>, size: Out<usize>) {
        param_info(&KERNELS.get(kernel)?.function, at, offset, size)
    }

    fn cuFuncGetParamCount(function: Handle, count: Out<usize>) {
        count.set(function::of_handle(function)?.params().len())
    }

    fn cuKernelGetParamCount(kernel: Handle, count: Out<usize>) {
        count.set(function::of_handle(kernel)?.params().len())
    }

    fn cuFuncIsLoaded(loaded: Out<u32>, function: Handle) {
        function::of_handle(function)?;
        loaded.set(1)
    }

    fn cuFuncLoad(function: Handle) {
        function::of_handle(function).map(drop)
    }

    fn cuKernelGetFunction(function: Out<Handle>, kernel: Handle) {
        function.set(KERNELS.get(kernel)?.function.handle)
    }

    fn cuKernelGetLibrary(library: Out<Handle>, kernel: Handle) {
        library.set(KERNELS.get(kernel)?.library)
    }

    fn cuKernelGetAttribute(value: Out<i32>, attribute: u32, kernel: Handle, device: i32) {
        device::check(device)?;
        value.set(function::of_handle(kernel)?.attribute(attribute)?)
    }

    fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: Handle, device: i32) {
        device::check(device)?;
        function::of_handle(kernel)?.set_attribute(attribute, value)
    }

    fn cuKernelSetCacheConfig(kernel: Handle, config: u32, device: i32) {
        device::check(device)?;
        if config > 3 {
            return Err(Error::INVALID_VALUE);
        }
        function::of_handle(kernel)?.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    }
}
