// SPDX-License-Identifier: MIT OR Apache-2.0
//! The entry points about modules.
#![deny(unsafe_code)]

use crate::abi::{DevicePtr, Error, Handle, In, Out, R};
use crate::context::current;
use crate::export::export;
use crate::module::image::Image;
use crate::module::{MODULES, Module, unload};
use crate::state;

/// Loads code into the current context.
pub(crate) fn load(out: Out<Handle>, image: Image) -> R {
    let context = current::get()?;
    let image = image.check()?;
    // Unlike a library's, a module's image must be usable at once.
    image.module()?;
    out.set(Module::new(&context, image).handle)
}

export! {
    fn cuModuleLoad(module: Out<Handle>, path: In<u8>) {
        current::get()?;
        load(module, Image::in_file(&path.text()?)?)
    }

    fn cuModuleLoadData(module: Out<Handle>, image: usize) {
        current::get()?;
        load(module, Image::at(image, false)?)
    }

    fn cuModuleLoadDataEx(module: Out<Handle>, image: usize, count: u32, options: In<u32>, values: In<usize>) {
        let _ = (count, options, values);
        current::get()?;
        load(module, Image::at(image, false)?)
    }

    fn cuModuleLoadFatBinary(module: Out<Handle>, image: usize) {
        current::get()?;
        load(module, Image::at(image, false)?)
    }

    fn cuModuleUnload(module: Handle) {
        state::driver()?;
        MODULES.get(module)?;
        unload(module)?;
        current::any().map_or(Ok(()), |context| context.check())
    }

    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        state::driver()?;
        // CU_MODULE_LAZY_LOADING, CU_MODULE_EAGER_LOADING.
        let eager = std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER");
        mode.set(if eager { 1 } else { 2 })
    }

    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: In<u8>) {
        state::driver()?;
        function.set(MODULES.get(module)?.function(&name.text()?)?.handle)
    }

    fn cuModuleGetFunctionCount(count: Out<u32>, module: Handle) {
        state::driver()?;
        count.set(MODULES.get(module)?.names().len() as u32)
    }

    fn cuModuleEnumerateFunctions(functions: Out<Handle>, room: u32, module: Handle) {
        state::driver()?;
        let module = MODULES.get(module)?;
        for (at, name) in module.names().iter().take(room as usize).enumerate() {
            functions.set_at(at, module.function(name)?.handle)?;
        }
        Ok(())
    }

    fn cuModuleGetGlobal_v2(pointer: Out<DevicePtr>, size: Out<usize>, module: Handle, name: In<u8>) {
        state::driver()?;
        let (at, bytes) = MODULES.get(module)?.global(&name.text()?)?;
        pointer.set_if(at);
        size.set_if(bytes as usize);
        Ok(())
    }

    fn cuModuleGetTexRef(reference: Out<Handle>, module: Handle, name: In<u8>) {
        let _ = (reference, name);
        MODULES.get(module)?;
        Err(Error::NOT_FOUND)
    }

    fn cuModuleGetSurfRef(reference: Out<Handle>, module: Handle, name: In<u8>) {
        let _ = (reference, name);
        MODULES.get(module)?;
        Err(Error::NOT_FOUND)
    }
}
