// SPDX-License-Identifier: MIT OR Apache-2.0
//! The real driver's functions, typed, for weft's own calls.
//!
//! The first call looks the symbol up, and opens the driver if necessary. A missing function
//! answers `NOT_FOUND`. Calls bypass weft's hooks.
//!
//! While any thread captures, only `cuStreamIsCapturing`, `cuCtxGetCurrent` and
//! `cuDevicePrimaryCtxGetState` may be called: they cannot spoil a capture. A hook makes no call of
//! its own kind under a lock that a driver callback could need.
#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, c_void};

use crate::driver::abi::{
    CheckpointArguments, CuContext, CuDevice, CuDevicePtr, CuEvent, CuFunction, CuGraph, CuGraphNode, CuKernel,
    CuLibrary, CuModule, CuResult, CuStream, KernelNode, LaunchConfig, Location, MemoryAccess, PhysicalProperties,
};
use crate::driver::symbols;

/// Declares typed functions; each name must be a symbol of the table.
macro_rules! real {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        $(
            #[doc = concat!("The driver's `", stringify!($name), "`.")]
            ///
            $(#[$doc])*
            ///
            /// # Safety
            /// As the driver's function.
            #[allow(clippy::too_many_arguments)]
            pub unsafe fn $name($($argument: $kind),*) -> CuResult {
                type Real = unsafe extern "C" fn($($kind),*) -> CuResult;
                let Some(found) = symbols::real(symbols::index::$name) else {
                    return CuResult::NOT_FOUND;
                };
                // SAFETY: the driver's function under that symbol has that type.
                let real = unsafe { std::mem::transmute::<*mut (), Real>(found) };
                // SAFETY: the caller's promise.
                unsafe { real($($argument),*) }
            }
        )*
    };
}

real! {
    fn cuLaunchKernel(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
    );
    fn cuLaunchKernelEx(config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CuDevice);
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: CuDevice);
    /// UUID of a device, older drivers.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: CuDevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CuDevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CuDevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CuContext, device: CuDevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CuDevice);
    /// Ends a retain, older drivers.
    fn cuDevicePrimaryCtxRelease(device: CuDevice);
    fn cuDevicePrimaryCtxGetState(device: CuDevice, flags: *mut u32, active: *mut c_int);
    fn cuCtxGetDevice(device: *mut CuDevice);
    fn cuCtxGetCurrent(context: *mut CuContext);
    fn cuCtxSetCurrent(context: CuContext);
    fn cuCtxPushCurrent_v2(context: CuContext);
    fn cuCtxPopCurrent_v2(context: *mut CuContext);
    fn cuCtxSynchronize();
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAllocManaged(address: *mut CuDevicePtr, bytes: usize, flags: u32);
    fn cuMemAllocPitch_v2(address: *mut CuDevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32);
    /// Frees memory after waiting for its users.
    fn cuMemFree_v2(address: CuDevicePtr);
    fn cuMemGetAddressRange_v2(start: *mut CuDevicePtr, bytes: *mut usize, address: CuDevicePtr);
    fn cuMemGetAllocationGranularity(bytes: *mut usize, properties: *const PhysicalProperties, option: u32);
    fn cuMemAddressReserve(address: *mut CuDevicePtr, bytes: usize, align: usize, wanted: CuDevicePtr, flags: u64);
    fn cuMemAddressFree(address: CuDevicePtr, bytes: usize);
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const PhysicalProperties, flags: u64);
    fn cuMemRelease(handle: u64);
    fn cuMemMap(address: CuDevicePtr, bytes: usize, offset: usize, handle: u64, flags: u64);
    fn cuMemUnmap(address: CuDevicePtr, bytes: usize);
    fn cuMemSetAccess(address: CuDevicePtr, bytes: usize, access: *const MemoryAccess, count: usize);
    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: u32);
    fn cuMemHostUnregister(address: *mut c_void);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CuDevicePtr, bytes: usize);
    fn cuMemcpyHtoD_v2(to: CuDevicePtr, from: *const c_void, bytes: usize);
    fn cuMemAdvise(address: CuDevicePtr, bytes: usize, advice: u32, device: CuDevice);
    /// Moves managed memory, in stream order (CUDA 12.2).
    fn cuMemPrefetchAsync_v2(address: CuDevicePtr, bytes: usize, to: Location, flags: u32, stream: CuStream);
    /// Moves managed memory, in stream order; device -1 is the host.
    fn cuMemPrefetchAsync(address: CuDevicePtr, bytes: usize, device: CuDevice, stream: CuStream);
    /// Discards contents of managed memory (CUDA 13).
    fn cuMemDiscardBatchAsync(addresses: *const CuDevicePtr, bytes: *const usize, count: usize, flags: u64, stream: CuStream);
    fn cuMemsetD8Async(address: CuDevicePtr, value: u8, bytes: usize, stream: CuStream);
    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32);
    fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, address: CuDevicePtr);
    fn cuDeviceGetMemPool(pool: *mut usize, device: CuDevice);
    fn cuDeviceGetDefaultMemPool(pool: *mut usize, device: CuDevice);
    fn cuMemPoolGetAttribute(pool: usize, attribute: u32, value: *mut u64);
    fn cuMemPoolTrimTo(pool: usize, keep: usize);
    fn cuDeviceGetGraphMemAttribute(device: CuDevice, attribute: u32, value: *mut u64);
    fn cuDeviceGraphMemTrim(device: CuDevice);
    fn cuStreamCreate(stream: *mut CuStream, flags: u32);
    fn cuStreamCreateWithPriority(stream: *mut CuStream, flags: u32, priority: c_int);
    /// The context that a green context has for its threads (CUDA 12.4).
    fn cuCtxFromGreenCtx(context: *mut CuContext, green: CuContext);
    /// Makes a stream of a green context (CUDA 12.5).
    fn cuGreenCtxStreamCreate(stream: *mut CuStream, green: CuContext, flags: u32, priority: c_int);
    fn cuStreamGetPriority(stream: CuStream, priority: *mut c_int);
    fn cuStreamSetAttribute(stream: CuStream, attribute: u32, value: *const c_int);
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    fn cuStreamGetCtx(stream: CuStream, context: *mut CuContext);
    fn cuStreamQuery(stream: CuStream);
    fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: u32);
    fn cuStreamIsCapturing(stream: CuStream, status: *mut u32);
    fn cuEventCreate(event: *mut CuEvent, flags: u32);
    fn cuEventRecord(event: CuEvent, stream: CuStream);
    fn cuEventQuery(event: CuEvent);
    fn cuEventElapsedTime(milliseconds: *mut f32, from: CuEvent, to: CuEvent);
    fn cuEventDestroy_v2(event: CuEvent);
    /// Offset and size of a function's parameter (CUDA 12.4).
    fn cuFuncGetParamInfo(function: CuFunction, at: usize, offset: *mut usize, size: *mut usize);
    /// Offset and size of a kernel's parameter (CUDA 12.4).
    fn cuKernelGetParamInfo(kernel: CuKernel, at: usize, offset: *mut usize, size: *mut usize);
    /// A function's symbol (CUDA 12.3).
    fn cuFuncGetName(name: *mut *const c_char, function: CuFunction);
    fn cuFuncGetModule(module: *mut CuModule, function: CuFunction);
    /// Number of functions in a module (CUDA 12.4).
    fn cuModuleGetFunctionCount(count: *mut u32, module: CuModule);
    /// Number of kernels in a library (CUDA 12.4).
    fn cuLibraryGetKernelCount(count: *mut u32, library: CuLibrary);
    fn cuStreamGetFlags(stream: CuStream, flags: *mut u32);
    /// A kernel's symbol (CUDA 12.3).
    fn cuKernelGetName(name: *mut *const c_char, kernel: CuKernel);
    /// The library of a kernel (CUDA 12.5).
    fn cuKernelGetLibrary(library: *mut CuLibrary, kernel: CuKernel);
    fn cuKernelGetFunction(function: *mut CuFunction, kernel: CuKernel);
    fn cuGraphGetNodes(graph: CuGraph, nodes: *mut CuGraphNode, count: *mut usize);
    fn cuGraphNodeGetType(node: CuGraphNode, kind: *mut u32);
    /// Launch of a kernel node, with room for a kernel handle (CUDA 12).
    fn cuGraphKernelNodeGetParams_v2(node: CuGraphNode, launch: *mut KernelNode);
    /// Launch of a kernel node, older drivers.
    fn cuGraphKernelNodeGetParams(node: CuGraphNode, launch: *mut KernelNode);
    fn cuGraphChildGraphNodeGetGraph(node: CuGraphNode, graph: *mut CuGraph);
    /// State of a process (CUDA 12.8), as the next ones.
    fn cuCheckpointProcessGetState(pid: c_int, state: *mut c_int);
    /// Keeps a process from the device once its work has ended. The first word: the longest wait,
    /// ms.
    fn cuCheckpointProcessLock(pid: c_int, arguments: *const CheckpointArguments);
    fn cuCheckpointProcessCheckpoint(pid: c_int, arguments: *const CheckpointArguments);
    fn cuCheckpointProcessRestore(pid: c_int, arguments: *const CheckpointArguments);
    fn cuCheckpointProcessUnlock(pid: c_int, arguments: *const CheckpointArguments);
}
