//! The real driver's functions, typed, for weft's own calls.
//!
//! The first call looks the symbol up, opening the driver if need be. A missing function answers
//! `NOT_FOUND`. Calls bypass weft's hooks: they are neither counted nor held.
//!
//! Callers obey two rules. While any thread captures, only `cuStreamIsCapturing` may be called. A
//! hook makes no call of its own kind under a lock that a driver callback could want.
#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, c_void};

use crate::driver::abi::{
    CuContext, CuDevice, CuDevicePtr, CuEvent, CuFunction, CuGraph, CuGraphNode, CuKernel, CuLibrary, CuModule,
    CuResult, CuStream, KernelNode, LaunchConfig, Location,
};
use crate::driver::symbols;

/// Declares typed functions; each name must be a symbol of the table.
macro_rules! real {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the driver's function of that name.
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
    /// Launches a kernel.
    fn cuLaunchKernel(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, arguments: *const c_void, extra: *const c_void,
    );
    /// Launches a kernel with attributes.
    fn cuLaunchKernelEx(config: *const LaunchConfig, function: CuFunction, arguments: *const c_void, extra: *const c_void);
    /// The version of the driver.
    fn cuDriverGetVersion(version: *mut c_int);
    /// Number of devices that the process sees.
    fn cuDeviceGetCount(count: *mut c_int);
    /// The device of an ordinal.
    fn cuDeviceGet(device: *mut CuDevice, ordinal: c_int);
    /// A device's name.
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CuDevice);
    /// UUID of a device or MIG instance.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: CuDevice);
    /// UUID of a device, older drivers.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: CuDevice);
    /// Memory of a device, bytes.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CuDevice);
    /// An attribute of a device.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CuDevice);
    /// Keeps a device's primary context.
    fn cuDevicePrimaryCtxRetain(context: *mut CuContext, device: CuDevice);
    /// Ends a retain.
    fn cuDevicePrimaryCtxRelease_v2(device: CuDevice);
    /// Ends a retain, older drivers.
    fn cuDevicePrimaryCtxRelease(device: CuDevice);
    /// Whether a device's primary context lives.
    fn cuDevicePrimaryCtxGetState(device: CuDevice, flags: *mut u32, active: *mut c_int);
    /// The device of the current context.
    fn cuCtxGetDevice(device: *mut CuDevice);
    /// The current context of this thread.
    fn cuCtxGetCurrent(context: *mut CuContext);
    /// Makes a context current.
    fn cuCtxSetCurrent(context: CuContext);
    /// Makes a context current until it is popped.
    fn cuCtxPushCurrent_v2(context: CuContext);
    /// Ends a push.
    fn cuCtxPopCurrent_v2(context: *mut CuContext);
    /// Range of stream priorities.
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    /// Free and total memory, bytes.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    /// Allocates managed memory.
    fn cuMemAllocManaged(address: *mut CuDevicePtr, bytes: usize, flags: u32);
    /// Allocates pitched memory.
    fn cuMemAllocPitch_v2(address: *mut CuDevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32);
    /// Frees memory after waiting for its users.
    fn cuMemFree_v2(address: CuDevicePtr);
    /// The allocation that contains an address.
    fn cuMemGetAddressRange_v2(start: *mut CuDevicePtr, bytes: *mut usize, address: CuDevicePtr);
    /// Advises about managed memory.
    fn cuMemAdvise(address: CuDevicePtr, bytes: usize, advice: u32, device: CuDevice);
    /// Moves managed memory, in stream order (CUDA 12.2).
    fn cuMemPrefetchAsync_v2(address: CuDevicePtr, bytes: usize, to: Location, flags: u32, stream: CuStream);
    /// Moves managed memory, in stream order; device -1 is the host.
    fn cuMemPrefetchAsync(address: CuDevicePtr, bytes: usize, device: CuDevice, stream: CuStream);
    /// Discards contents of managed memory (CUDA 13).
    fn cuMemDiscardBatchAsync(addresses: *const CuDevicePtr, bytes: *const usize, count: usize, flags: u64, stream: CuStream);
    /// Fills memory.
    fn cuMemsetD8Async(address: CuDevicePtr, value: u8, bytes: usize, stream: CuStream);
    /// Exchanges this thread's capture mode.
    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32);
    /// An attribute of a pointer.
    fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, address: CuDevicePtr);
    /// Pool of a device's stream-ordered allocations.
    fn cuDeviceGetMemPool(pool: *mut usize, device: CuDevice);
    /// Makes a stream.
    fn cuStreamCreate(stream: *mut CuStream, flags: u32);
    /// Makes a stream with a priority.
    fn cuStreamCreateWithPriority(stream: *mut CuStream, flags: u32, priority: c_int);
    /// Ends a stream.
    fn cuStreamDestroy_v2(stream: CuStream);
    /// The context of a stream.
    fn cuStreamGetCtx(stream: CuStream, context: *mut CuContext);
    /// Whether a stream is idle.
    fn cuStreamQuery(stream: CuStream);
    /// Waits for a stream.
    fn cuStreamSynchronize(stream: CuStream);
    /// Whether a stream is being captured. Legal at any time.
    fn cuStreamIsCapturing(stream: CuStream, status: *mut u32);
    /// Makes a stream wait for an event.
    fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: u32);
    /// Makes an event.
    fn cuEventCreate(event: *mut CuEvent, flags: u32);
    /// Records an event.
    fn cuEventRecord(event: CuEvent, stream: CuStream);
    /// Whether an event has happened.
    fn cuEventQuery(event: CuEvent);
    /// Waits for an event.
    fn cuEventSynchronize(event: CuEvent);
    /// Milliseconds between two events.
    fn cuEventElapsedTime(milliseconds: *mut f32, from: CuEvent, to: CuEvent);
    /// Ends an event.
    fn cuEventDestroy_v2(event: CuEvent);
    /// Writes a word in stream order.
    fn cuStreamWriteValue32_v2(stream: CuStream, address: CuDevicePtr, value: u32, flags: u32);
    /// Writes a word in stream order, older drivers.
    fn cuStreamWriteValue32(stream: CuStream, address: CuDevicePtr, value: u32, flags: u32);
    /// Registers host memory with the device.
    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: u32);
    /// Ends a registration.
    fn cuMemHostUnregister(address: *mut c_void);
    /// Device address of registered host memory.
    fn cuMemHostGetDevicePointer_v2(device: *mut CuDevicePtr, address: *mut c_void, flags: u32);
    /// Offset and size of a function's parameter (CUDA 12.4).
    fn cuFuncGetParamInfo(function: CuFunction, at: usize, offset: *mut usize, size: *mut usize);
    /// Offset and size of a kernel's parameter (CUDA 12.4).
    fn cuKernelGetParamInfo(kernel: CuKernel, at: usize, offset: *mut usize, size: *mut usize);
    /// A function's symbol (CUDA 12.3).
    fn cuFuncGetName(name: *mut *const c_char, function: CuFunction);
    /// The module of a function.
    fn cuFuncGetModule(module: *mut CuModule, function: CuFunction);
    /// Number of functions in a module (CUDA 12.4).
    fn cuModuleGetFunctionCount(count: *mut u32, module: CuModule);
    /// Number of kernels in a library (CUDA 12.4).
    fn cuLibraryGetKernelCount(count: *mut u32, library: CuLibrary);
    /// Flags of a stream.
    fn cuStreamGetFlags(stream: CuStream, flags: *mut u32);
    /// A kernel's symbol (CUDA 12.3).
    fn cuKernelGetName(name: *mut *const c_char, kernel: CuKernel);
    /// The library of a kernel (CUDA 12.5).
    fn cuKernelGetLibrary(library: *mut CuLibrary, kernel: CuKernel);
    /// A kernel's function in the current context.
    fn cuKernelGetFunction(function: *mut CuFunction, kernel: CuKernel);
    /// A graph's nodes.
    fn cuGraphGetNodes(graph: CuGraph, nodes: *mut CuGraphNode, count: *mut usize);
    /// A node's type.
    fn cuGraphNodeGetType(node: CuGraphNode, kind: *mut u32);
    /// Launch of a kernel node, with room for a kernel handle (CUDA 12).
    fn cuGraphKernelNodeGetParams_v2(node: CuGraphNode, launch: *mut KernelNode);
    /// Launch of a kernel node, older drivers.
    fn cuGraphKernelNodeGetParams(node: CuGraphNode, launch: *mut KernelNode);
    /// Graph of a child graph node.
    fn cuGraphChildGraphNodeGetGraph(node: CuGraphNode, graph: *mut CuGraph);
}
