// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions: a kernel's description in its image, the client's settings, and the results of both.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use simgpu_device::NameId;
use simgpu_device::model::model;
use weft_image::{EntryFunction, Param};

use crate::abi::{Error, Handle, R};
use crate::device::attributes as limits;
use crate::kernels;
use crate::module::fault;
use crate::registry::{HandleKind, Registry};
use crate::state::Driver;

/// Every function of the process.
pub(crate) static FUNCTIONS: Registry<Function> = Registry::new(HandleKind::Function);

/// Every kernel of the process.
pub(crate) static KERNELS: Registry<LibraryKernel> = Registry::new(HandleKind::Kernel);

/// Assumed registers of a kernel if its image does not give them.
const REGISTERS: u32 = 32;

/// One function.
pub(crate) struct Function {
    pub(crate) handle: Handle,
    pub(crate) module: Handle,
    pub(crate) name: String,
    /// The name on the device.
    pub(crate) name_id: NameId,
    kernel: EntryFunction,
    /// Set for the kernels that are really executed.
    pub(crate) executed: Option<kernels::KernelEffect>,
    /// The error that launches of it may fail with, if one is known.
    pub(crate) fault: Option<fault::LaunchFailure>,
    /// The bytes that it touches.
    pub(crate) pattern: kernels::touching::Pattern,
    /// Executing it was seen to take this host long.
    pub(crate) is_slow: Arc<AtomicBool>,
    /// Dynamic shared memory that a launch may ask for.
    max_dynamic: AtomicU32,
    carveout: AtomicI32,
    /// Cluster attributes 10 to 15; kept, and without meaning on this device.
    cluster: [AtomicI32; 6],
    pub(crate) cache_config: AtomicU32,
    pub(crate) legacy: Mutex<Legacy>,
}

/// A kernel of a library.
pub(crate) struct LibraryKernel {
    pub(crate) library: Handle,
    pub(crate) function: Arc<Function>,
}

/// Settings that the launch functions of before CUDA 4 put on a function.
pub(crate) struct Legacy {
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) params: Vec<u8>,
}

impl Function {
    pub(crate) fn new(driver: &Driver, handle: Handle, module: Handle, kernel: EntryFunction) -> Function {
        Function {
            handle,
            module,
            name_id: driver.timeline.name(&kernel.name),
            executed: kernels::find(&kernel.name),
            fault: fault::of(&kernel.name),
            pattern: kernels::touching::pattern(&kernel.name),
            is_slow: Arc::default(),
            max_dynamic: AtomicU32::new(limits::SHARED_PER_BLOCK.saturating_sub(kernel.shared)),
            carveout: AtomicI32::new(-1),
            cluster: Default::default(),
            cache_config: AtomicU32::new(0),
            legacy: Mutex::new(Legacy {
                block: [1; 3],
                shared: 0,
                params: Vec::new(),
            }),
            name: kernel.name.clone(),
            kernel,
        }
    }

    pub(crate) fn max_dynamic_shared(&self) -> u32 {
        self.max_dynamic.load(Ordering::Relaxed)
    }

    /// Parameters; none if the image does not describe them.
    pub(crate) fn params(&self) -> &[Param] {
        self.kernel.params.as_deref().unwrap_or(&[])
    }

    /// Size of the parameter buffer.
    pub(crate) fn param_bytes(&self) -> usize {
        self.kernel.param_bytes() as usize
    }

    fn registers(&self) -> u32 {
        if self.kernel.registers == 0 {
            REGISTERS
        } else {
            self.kernel.registers
        }
    }

    fn max_threads(&self) -> u32 {
        // Registers are handed out in units of 256 a warp.
        let warp = (self.registers() * limits::WARP).next_multiple_of(256);
        let by_registers = limits::REGISTERS / warp * limits::WARP;
        let compiled = if self.kernel.max_threads == 0 {
            limits::MAX_THREADS
        } else {
            self.kernel.max_threads
        };
        compiled.min(by_registers).min(limits::MAX_THREADS)
    }

    /// Blocks of this shape that fit on one multiprocessor at once.
    pub(crate) fn resident_blocks(&self, threads: u32, dynamic: u32) -> u32 {
        if threads == 0 || threads > self.max_threads() {
            return 0;
        }
        let warps = threads.div_ceil(limits::WARP);
        let by_threads = limits::THREADS_PER_PROCESSOR / (warps * limits::WARP);
        let by_registers = limits::REGISTERS / ((self.registers() * limits::WARP).next_multiple_of(256) * warps);
        let shared = self.kernel.shared + dynamic;
        if shared > model().shared_optin {
            return 0;
        }
        let by_shared = model().shared_per_processor / (shared + limits::SHARED_RESERVED).next_multiple_of(128);
        by_threads
            .min(by_registers)
            .min(by_shared)
            .min(limits::BLOCKS_PER_PROCESSOR)
    }

    /// Bytes of dynamic shared memory a block may have if `blocks` blocks are to fit.
    pub(crate) fn dynamic_for(&self, blocks: u32) -> u32 {
        let each = (model().shared_per_processor / blocks.max(1)) & !127;
        each.saturating_sub(limits::SHARED_RESERVED + self.kernel.shared)
            .min(self.max_dynamic_shared())
    }

    /// `cuFuncGetAttribute`.
    pub(crate) fn attribute(&self, attribute: u32) -> R<i32> {
        let int = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        Ok(match attribute {
            0 => int(self.max_threads()),
            1 => int(self.kernel.shared),
            2 => 0, // constant memory of its own
            3 => int(self.kernel.local),
            4 => int(self.registers()),
            5 | 6 => 10 * model().capability.0 + model().capability.1,
            7 => 0,
            8 => int(self.max_dynamic_shared()),
            9 => self.carveout.load(Ordering::Relaxed),
            10..=15 => self.cluster[attribute as usize - 10].load(Ordering::Relaxed),
            _ => return Err(Error::INVALID_VALUE),
        })
    }

    /// `cuFuncSetAttribute`.
    pub(crate) fn set_attribute(&self, attribute: u32, value: i32) -> R {
        match attribute {
            8 => {
                let value = u32::try_from(value).map_err(|_| Error::INVALID_VALUE)?;
                if value + self.kernel.shared > model().shared_optin {
                    return Err(Error::INVALID_VALUE);
                }
                self.max_dynamic.store(value, Ordering::Relaxed);
            }
            9 if (-1..=100).contains(&value) => self.carveout.store(value, Ordering::Relaxed),
            11..=15 => self.cluster[attribute as usize - 10].store(value, Ordering::Relaxed),
            _ => return Err(Error::INVALID_VALUE),
        }
        Ok(())
    }

    /// Offset and size of a parameter.
    pub(crate) fn param(&self, at: usize) -> R<Param> {
        self.params().get(at).copied().ok_or(Error::INVALID_VALUE)
    }
}

/// The function that a launch handle means: a `CUfunction`, or a `CUkernel` cast to one, as the
/// runtime of CUDA 13 passes.
#[inline]
pub(crate) fn of_handle(handle: Handle) -> R<Arc<Function>> {
    if FUNCTIONS.is_kind(handle) {
        return FUNCTIONS.get(handle);
    }
    Ok(KERNELS.get(handle)?.function.clone())
}
