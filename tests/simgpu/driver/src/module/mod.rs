// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modules and libraries: images, the kernels and variables in them.
//!
//! | file | what |
//! |---|---|
//! | `image.rs` | takes an image from the client and reads it when something in it is asked for |
//! | `function.rs` | functions: attributes, occupancy, parameters |
//! | `module_api.rs`, `library_api.rs`, `function_api.rs` | the entry points |
//! | `link_api.rs` | the linker: hands back what it was given |
//! | `occupancy.rs` | occupancy queries |

pub(crate) mod fault;
pub(crate) mod function;
mod function_api;
pub(crate) mod image;
mod library_api;
mod link_api;
pub(crate) mod module_api;
mod occupancy;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use simgpu_device::lock::lock;

use crate::abi::{Error, Handle, R};
use crate::context::{self, Context, current};
use crate::memory;
use crate::module::function::{FUNCTIONS, Function};
use crate::module::image::Image;
use crate::registry::{HandleKind, Registry};
use crate::space::raw;
use crate::space::table::AllocationKind;
use crate::state;

/// Every module of the process.
pub(crate) static MODULES: Registry<Module> = Registry::new(HandleKind::Module);

/// One module: an image in a context.
pub(crate) struct Module {
    pub(crate) handle: Handle,
    context: u64,
    image: Image,
    /// Functions by name, made when first asked for.
    functions: Mutex<HashMap<String, Arc<Function>>>,
    /// Variables by name: address and size, with memory from when they are first asked for.
    globals: Mutex<HashMap<String, (u64, u64)>>,
}

impl Module {
    /// Takes an image in.
    pub(crate) fn new(context: &Context, image: Image) -> Arc<Module> {
        let make = |handle| Module {
            handle,
            context: context.id,
            image,
            functions: Mutex::default(),
            globals: Mutex::default(),
        };
        MODULES.add_with(make).1
    }

    /// Takes a library's image in; it does not end with any context.
    pub(crate) fn of_library(image: Image) -> Arc<Module> {
        let make = |handle| Module {
            handle,
            context: 0,
            image,
            functions: Mutex::default(),
            globals: Mutex::default(),
        };
        MODULES.add_with(make).1
    }

    /// Names of all kernels, in the image's order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.image.module().map_or_else(
            |_| Vec::new(),
            |module| module.kernels.iter().map(|k| k.name.clone()).collect(),
        )
    }

    /// The function of a name.
    pub(crate) fn function(&self, name: &str) -> R<Arc<Function>> {
        let mut functions = lock(&self.functions);
        if let Some(function) = functions.get(name) {
            return Ok(function.clone());
        }
        let kernel = self.image.module()?.kernel(name).cloned().ok_or(Error::NOT_FOUND)?;
        let driver = state::driver()?;
        let (_, function) = FUNCTIONS.add_with(|handle| Function::new(driver, handle, self.handle, kernel));
        functions.insert(name.to_string(), function.clone());
        Ok(function)
    }

    /// Address and size of a variable, which holds its initial value when first asked for.
    pub(crate) fn global(&self, name: &str) -> R<(u64, u64)> {
        let mut globals = lock(&self.globals);
        if let Some(found) = globals.get(name) {
            return Ok(*found);
        }
        let global = self.image.module()?.global(name).ok_or(Error::NOT_FOUND)?;
        let context = current::any().unwrap_or(context::primary_of(0)?.clone());
        let at = memory::take(state::driver()?, &context, global.size.max(1), AllocationKind::Device)?;
        let initial = &global.initial[..global.initial.len().min(global.size as usize)];
        raw::write(at, initial);
        globals.insert(name.to_string(), (at, global.size));
        Ok((at, global.size))
    }

    fn drop_parts(&self) {
        for (_, function) in lock(&self.functions).drain() {
            let _ = FUNCTIONS.take(function.handle);
        }
        let globals: Vec<_> = lock(&self.globals).drain().collect();
        if let Ok(driver) = state::driver() {
            for (_, (at, _)) in globals {
                let _ = memory::free(driver, at);
            }
        }
    }
}

/// Ends a module. Launches on their way keep the parts that they need.
pub(crate) fn unload(handle: Handle) -> R {
    MODULES.take(handle).ok_or(Error::INVALID_HANDLE)?.drop_parts();
    Ok(())
}

pub(crate) fn forget_context(context: &Arc<Context>) {
    for (handle, module) in MODULES.all() {
        if module.context == context.id {
            let _ = unload(handle);
        } else if module.context == 0 && context.is_primary {
            // A library stays, but its variables lay in the context's memory.
            lock(&module.globals).clear();
        }
    }
}
