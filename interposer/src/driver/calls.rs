//! The real driver's functions, typed, for weft's own use.
//!
//! Each looks its symbol up at the first call (opening the driver if need be) and answers
//! `NOT_FOUND` where this driver lacks it, so a caller checks the result and needs nothing else.
//! None of them passes our own entry points: what is called here is neither counted nor held.
//!
//! Two rules for callers. While any thread captures a stream nothing may be called here but
//! `cuStreamIsCapturing`. And nothing here is called from within a hook of the same kind with a
//! lock held that a driver callback could want.
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
                // SAFETY: what the driver has under that symbol is a function of that type.
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
    /// How many devices the process sees.
    fn cuDeviceGetCount(count: *mut c_int);
    /// The device of an ordinal.
    fn cuDeviceGet(device: *mut CuDevice, ordinal: c_int);
    /// A device's name.
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CuDevice);
    /// A device's (or its MIG instance's) UUID.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: CuDevice);
    /// A device's UUID, older drivers.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: CuDevice);
    /// A device's memory, bytes.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CuDevice);
    /// One of a device's numbers.
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
    /// The range of stream priorities.
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    /// Free and total memory.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    /// Takes managed memory.
    fn cuMemAllocManaged(address: *mut CuDevicePtr, bytes: usize, flags: u32);
    /// Takes pitched memory.
    fn cuMemAllocPitch_v2(address: *mut CuDevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32);
    /// Gives memory back; waits for what uses it.
    fn cuMemFree_v2(address: CuDevicePtr);
    /// The allocation that an address lies in.
    fn cuMemGetAddressRange_v2(start: *mut CuDevicePtr, bytes: *mut usize, address: CuDevicePtr);
    /// Advises about managed memory.
    fn cuMemAdvise(address: CuDevicePtr, bytes: usize, advice: u32, device: CuDevice);
    /// Moves managed memory, in stream order (CUDA 12.2).
    fn cuMemPrefetchAsync_v2(address: CuDevicePtr, bytes: usize, to: Location, flags: u32, stream: CuStream);
    /// Moves managed memory, in stream order; device -1 is the host.
    fn cuMemPrefetchAsync(address: CuDevicePtr, bytes: usize, device: CuDevice, stream: CuStream);
    /// Gives up what managed memory holds (CUDA 13).
    fn cuMemDiscardBatchAsync(addresses: *const CuDevicePtr, bytes: *const usize, count: usize, flags: u64, stream: CuStream);
    /// Fills memory.
    fn cuMemsetD8Async(address: CuDevicePtr, value: u8, bytes: usize, stream: CuStream);
    /// How this thread's calls meet other threads' captures.
    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32);
    /// One thing about a pointer.
    fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, address: CuDevicePtr);
    /// The pool of a device's stream-ordered allocations.
    fn cuDeviceGetMemPool(pool: *mut usize, device: CuDevice);
    /// Makes a stream.
    fn cuStreamCreate(stream: *mut CuStream, flags: u32);
    /// Makes a stream with a priority.
    fn cuStreamCreateWithPriority(stream: *mut CuStream, flags: u32, priority: c_int);
    /// Ends a stream.
    fn cuStreamDestroy_v2(stream: CuStream);
    /// The context of a stream.
    fn cuStreamGetCtx(stream: CuStream, context: *mut CuContext);
    /// Is a stream idle?
    fn cuStreamQuery(stream: CuStream);
    /// Waits for a stream.
    fn cuStreamSynchronize(stream: CuStream);
    /// Is a stream being captured? Legal at any time.
    fn cuStreamIsCapturing(stream: CuStream, status: *mut u32);
    /// Makes a stream wait for an event.
    fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: u32);
    /// Makes an event.
    fn cuEventCreate(event: *mut CuEvent, flags: u32);
    /// Records an event.
    fn cuEventRecord(event: CuEvent, stream: CuStream);
    /// Has an event happened?
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
    /// The device's address of registered host memory.
    fn cuMemHostGetDevicePointer_v2(device: *mut CuDevicePtr, address: *mut c_void, flags: u32);
    /// Where a function's parameter stands (CUDA 12.4).
    fn cuFuncGetParamInfo(function: CuFunction, at: usize, offset: *mut usize, size: *mut usize);
    /// Where a kernel's parameter stands (CUDA 12.4).
    fn cuKernelGetParamInfo(kernel: CuKernel, at: usize, offset: *mut usize, size: *mut usize);
    /// A function's symbol (CUDA 12.3).
    fn cuFuncGetName(name: *mut *const c_char, function: CuFunction);
    /// The module a function is of.
    fn cuFuncGetModule(module: *mut CuModule, function: CuFunction);
    /// How many functions a module has (CUDA 12.4).
    fn cuModuleGetFunctionCount(count: *mut u32, module: CuModule);
    /// How many kernels a library has (CUDA 12.4).
    fn cuLibraryGetKernelCount(count: *mut u32, library: CuLibrary);
    /// A stream's flags, as it was made with.
    fn cuStreamGetFlags(stream: CuStream, flags: *mut u32);
    /// A kernel's symbol (CUDA 12.3).
    fn cuKernelGetName(name: *mut *const c_char, kernel: CuKernel);
    /// The library a kernel is of (CUDA 12.5).
    fn cuKernelGetLibrary(library: *mut CuLibrary, kernel: CuKernel);
    /// The function that a kernel is in the current context.
    fn cuKernelGetFunction(function: *mut CuFunction, kernel: CuKernel);
    /// A graph's nodes.
    fn cuGraphGetNodes(graph: CuGraph, nodes: *mut CuGraphNode, count: *mut usize);
    /// A node's type.
    fn cuGraphNodeGetType(node: CuGraphNode, kind: *mut u32);
    /// A kernel node's launch, with room for a kernel handle (CUDA 12).
    fn cuGraphKernelNodeGetParams_v2(node: CuGraphNode, launch: *mut KernelNode);
    /// A kernel node's launch, older drivers.
    fn cuGraphKernelNodeGetParams(node: CuGraphNode, launch: *mut KernelNode);
    /// The graph inside a child graph node.
    fn cuGraphChildGraphNodeGetGraph(node: CuGraphNode, graph: *mut CuGraph);
}
