// SPDX-License-Identifier: MIT OR Apache-2.0
//! Libraries: modules that belong to no context, and the kernels in them. With one device a library
//! has one module, made when something in it is asked for.
#![deny(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use simgpu_device::lock::lock;

use crate::abi::{DevicePtr, Error, Handle, In, Out, R};
use crate::context::current;
use crate::export::export;
use crate::module::function::{KERNELS, LibraryKernel};
use crate::module::image::Image;
use crate::module::{Module, unload};
use crate::registry::{HandleKind, Registry};
use crate::state;

static LIBRARIES: Registry<Library> = Registry::new(HandleKind::Library);

/// `CU_LIBRARY_BINARY_IS_PRESERVED`: the client keeps the image.
const PRESERVED: u32 = 1;

struct Library {
    handle: Handle,
    module: Arc<Module>,
    kernels: Mutex<HashMap<String, Handle>>,
}

impl Library {
    fn kernel(&self, name: &str) -> R<Handle> {
        let mut kernels = lock(&self.kernels);
        if let Some(kernel) = kernels.get(name) {
            return Ok(*kernel);
        }
        let kernel = KERNELS.add(LibraryKernel {
            library: self.handle,
            function: self.module.function(name)?,
        });
        kernels.insert(name.to_string(), kernel);
        Ok(kernel)
    }
}

/// A library outlives contexts, so its module belongs to none.
fn load(out: Out<Handle>, image: Image) -> R {
    let module = Module::of_library(image.check()?);
    let (handle, _) = LIBRARIES.add_with(|handle| Library {
        handle,
        module,
        kernels: Mutex::default(),
    });
    out.set(handle)
}

fn preserved(options: In<u32>, count: u32, values: In<usize>) -> R<bool> {
    for at in 0..count as usize {
        if options.at(at).get()? == PRESERVED {
            return Ok(values.is_null() || values.at(at).get()? & 1 == 1);
        }
    }
    Ok(false)
}

export! {
    fn cuLibraryLoadData(library: Out<Handle>, code: usize, jit: In<u32>, jit_values: In<usize>, jit_count: u32,
                         options: In<u32>, values: In<usize>, count: u32) {
        let _ = (jit, jit_values, jit_count);
        state::driver()?;
        load(library, Image::at(code, preserved(options, count, values)?)?)
    }

    fn cuLibraryLoadFromFile(library: Out<Handle>, path: In<u8>, jit: In<u32>, jit_values: In<usize>, jit_count: u32,
                             options: In<u32>, values: In<usize>, count: u32) {
        let _ = (jit, jit_values, jit_count, options, values, count);
        state::driver()?;
        load(library, Image::in_file(&path.text()?)?)
    }

    fn cuLibraryUnload(library: Handle) {
        state::driver()?;
        let library = LIBRARIES.remove(library)?;
        for (_, kernel) in lock(&library.kernels).drain() {
            let _ = KERNELS.take(kernel);
        }
        unload(library.module.handle)
    }

    fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: In<u8>) {
        state::driver()?;
        kernel.set(LIBRARIES.get(library)?.kernel(&name.text()?)?)
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, library: Handle) {
        state::driver()?;
        count.set(LIBRARIES.get(library)?.module.names().len() as u32)
    }

    fn cuLibraryEnumerateKernels(kernels: Out<Handle>, room: u32, library: Handle) {
        state::driver()?;
        let library = LIBRARIES.get(library)?;
        for (at, name) in library.module.names().iter().take(room as usize).enumerate() {
            kernels.set_at(at, library.kernel(name)?)?;
        }
        Ok(())
    }

    fn cuLibraryGetModule(module: Out<Handle>, library: Handle) {
        current::get()?;
        module.set(LIBRARIES.get(library)?.module.handle)
    }

    fn cuLibraryGetGlobal(pointer: Out<DevicePtr>, size: Out<usize>, library: Handle, name: In<u8>) {
        state::driver()?;
        let (at, bytes) = LIBRARIES.get(library)?.module.global(&name.text()?)?;
        pointer.set_if(at);
        size.set_if(bytes as usize);
        Ok(())
    }

    fn cuLibraryGetManaged(pointer: Out<DevicePtr>, size: Out<usize>, library: Handle, name: In<u8>) {
        state::driver()?;
        let (at, bytes) = LIBRARIES.get(library)?.module.global(&name.text()?)?;
        pointer.set_if(at);
        size.set_if(bytes as usize);
        Ok(())
    }

    fn cuLibraryGetUnifiedFunction(function: Out<usize>, library: Handle, symbol: In<u8>) {
        let _ = (function, symbol);
        LIBRARIES.get(library)?;
        Err(Error::NOT_FOUND)
    }
}
