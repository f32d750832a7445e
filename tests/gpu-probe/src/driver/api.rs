// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's C functions, bound by their exported names.
//!
//! A name without suffix is the oldest version of a function, even if today's header maps it to a
//! newer one: `cuMemPrefetchAsync` takes a device number, `cuMemPrefetchAsync_v2` a location (the
//! header of CUDA 13 maps the plain name to it).

use std::ffi::{CStr, c_char};

use libloading::Library;
use thiserror::Error;

/// A stream, an event, a module, a function, a context.
pub(super) type Handle = usize;

/// An error of a driver call.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CudaError {
    /// The driver answered with an error.
    #[error("{call}: {name} ({code})")]
    Failed {
        /// The function.
        call: &'static str,
        /// The driver's error code.
        code: u32,
        /// The driver's name for the code.
        name: String,
    },
    /// The driver has no such function.
    #[error("{0}: this driver has no such function")]
    Missing(&'static str),
    /// There is no driver.
    #[error("libcuda.so.1 cannot be opened: {0}")]
    NoDriver(String),
    /// The kernels cannot be loaded.
    #[error("cuModuleLoadDataEx: {0}")]
    Kernels(String),
}

impl CudaError {
    /// Whether the driver or the device lacks the function, which is no failure of the probe.
    pub fn is_lack(&self) -> bool {
        // CUDA_ERROR_NOT_SUPPORTED
        matches!(self, CudaError::Missing(_) | CudaError::Failed { code: 801, .. })
    }
}

/// `CUmemLocation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryLocation {
    kind: u32,
    id: i32,
}

impl MemoryLocation {
    /// The host.
    pub const HOST: MemoryLocation = MemoryLocation { kind: 2, id: 0 };
    /// The first device.
    pub const DEVICE: MemoryLocation = MemoryLocation { kind: 1, id: 0 };

    /// The place as older functions take it: a device number, or `CU_DEVICE_CPU`.
    pub(super) fn number(self) -> i32 {
        if self == MemoryLocation::HOST { -1 } else { self.id }
    }
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub(super) struct AllocationProp {
    kind: u32,
    exported_as: u32,
    place: MemoryLocation,
    metadata: usize,
    flags: [u8; 8],
}

impl AllocationProp {
    /// Pinned memory of the first device, which no other process gets.
    pub(super) const PLAIN: AllocationProp = AllocationProp {
        kind: 1,
        exported_as: 0,
        place: MemoryLocation::DEVICE,
        metadata: 0,
        flags: [0; 8],
    };
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(super) struct AccessDesc {
    place: MemoryLocation,
    flags: u32,
}

impl AccessDesc {
    /// The first device reads and writes.
    pub(super) const BOTH: AccessDesc = AccessDesc {
        place: MemoryLocation::DEVICE,
        flags: 3,
    };
}

macro_rules! api {
    ($(fn $name:ident($($arg:ident: $ty:ty),*);)*) => {
        /// The bound functions.
        #[allow(non_snake_case, reason = "the API's own names")]
        pub(super) struct Api {
            library: &'static Library,
            error_name: Option<unsafe extern "C" fn(u32, *mut *const c_char) -> u32>,
            $($name: Option<unsafe extern "C" fn($($ty),*) -> u32>,)*
        }

        #[allow(non_snake_case, reason = "the API's own names")]
        #[allow(clippy::too_many_arguments, reason = "the API's own signatures")]
        impl Api {
            /// Opens the driver.
            pub(super) fn open() -> Result<Api, CudaError> {
                // SAFETY: a driver's constructors run in any CUDA program.
                let library = unsafe { Library::new("libcuda.so.1") }.map_err(|error| CudaError::NoDriver(error.to_string()))?;
                // Never closed: its threads and handlers must outlive us.
                let library: &'static Library = Box::leak(Box::new(library));
                // SAFETY: the type is the public header's.
                let error_name = unsafe { library.get(c"cuGetErrorName") }.ok().map(|symbol| *symbol);
                Ok(Api {
                    library,
                    error_name,
                    $(
                        // SAFETY: the type is the public header's.
                        $name: unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }.ok().map(|symbol| *symbol),
                    )*
                })
            }

            $(
                /// # Safety
                /// As in the driver's manual: pointers must be valid for the memory that the
                /// function reads and writes.
                pub(super) unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), CudaError> {
                    let function = self.$name.ok_or(CudaError::Missing(stringify!($name)))?;
                    // SAFETY: by this function's contract.
                    self.check(stringify!($name), unsafe { function($($arg),*) })
                }
            )*
        }
    };
}

api! {
    fn cuInit(flags: u32);
    fn cuDriverGetVersion(version: *mut i32);
    fn cuDeviceGet(device: *mut i32, number: i32);
    fn cuDeviceGetName(name: *mut c_char, size: i32, device: i32);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32);
    fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32);
    fn cuCtxSetCurrent(context: Handle);
    fn cuGetProcAddress_v2(name: *const c_char, address: *mut usize, version: i32, flags: u64, status: *mut u32);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemGetAllocationGranularity(bytes: *mut usize, wanted: *const AllocationProp, option: u32);
    fn cuMemAddressReserve(at: *mut u64, bytes: usize, align: usize, wanted: u64, flags: u64);
    fn cuMemAddressFree(at: u64, bytes: usize);
    fn cuMemCreate(handle: *mut u64, bytes: usize, wanted: *const AllocationProp, flags: u64);
    fn cuMemRelease(handle: u64);
    fn cuMemMap(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    fn cuMemUnmap(at: u64, bytes: usize);
    fn cuMemSetAccess(at: u64, bytes: usize, access: *const AccessDesc, count: usize);
    fn cuMemAlloc_v2(at: *mut u64, bytes: usize);
    fn cuMemAllocManaged(at: *mut u64, bytes: usize, flags: u32);
    fn cuMemFree_v2(at: u64);
    fn cuMemHostAlloc(at: *mut u64, bytes: usize, flags: u32);
    fn cuMemFreeHost(at: u64);
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle);
    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle);
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle);
    fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: Handle);
    fn cuMemAdvise(at: u64, bytes: usize, advice: u32, device: i32);
    fn cuMemAdvise_v2(at: u64, bytes: usize, advice: u32, place: MemoryLocation);
    fn cuMemPrefetchAsync(at: u64, bytes: usize, device: i32, stream: Handle);
    fn cuMemPrefetchAsync_v2(at: u64, bytes: usize, place: MemoryLocation, flags: u32, stream: Handle);
    fn cuMemPrefetchBatchAsync(at: *const u64, sizes: *const usize, count: usize, places: *const MemoryLocation, starts: *const usize, place_count: usize, flags: u64, stream: Handle);
    fn cuMemDiscardBatchAsync(at: *const u64, sizes: *const usize, count: usize, flags: u64, stream: Handle);
    fn cuMemDiscardAndPrefetchBatchAsync(at: *const u64, sizes: *const usize, count: usize, places: *const MemoryLocation, starts: *const usize, place_count: usize, flags: u64, stream: Handle);
    fn cuModuleLoadDataEx(module: *mut Handle, image: *const c_char, count: u32, options: *const u32, values: *const usize);
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    fn cuLaunchKernel(function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle, params: *const usize, extra: *const usize);
    fn cuStreamCreate(stream: *mut Handle, flags: u32);
    fn cuStreamDestroy_v2(stream: Handle);
    fn cuStreamSynchronize(stream: Handle);
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32);
    fn cuStreamWriteValue32_v2(stream: Handle, at: u64, value: u32, flags: u32);
    fn cuStreamWriteValue32(stream: Handle, at: u64, value: u32, flags: u32);
    fn cuEventCreate(event: *mut Handle, flags: u32);
    fn cuEventDestroy_v2(event: Handle);
    fn cuEventRecord(event: Handle, stream: Handle);
    fn cuEventQuery(event: Handle);
    fn cuEventSynchronize(event: Handle);
    fn cuEventElapsedTime(milliseconds: *mut f32, from: Handle, to: Handle);
}

impl Api {
    /// Whether the driver exports a symbol.
    pub(super) fn exports(&self, name: &CStr) -> bool {
        // SAFETY: the address is only looked at, never called.
        unsafe { self.library.get::<*const ()>(name) }.is_ok()
    }

    fn check(&self, call: &'static str, code: u32) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        Err(CudaError::Failed {
            call,
            code,
            name: self.name_of(code).unwrap_or_else(|| "an unknown error".to_owned()),
        })
    }

    fn name_of(&self, code: u32) -> Option<String> {
        let mut text = std::ptr::null();
        let function = self.error_name?;
        // SAFETY: the out pointer is a local.
        if unsafe { function(code, &mut text) } != 0 || text.is_null() {
            return None;
        }
        // SAFETY: the driver answered with one of its own texts, which live as long as it does.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}
