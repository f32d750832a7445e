//! Calls that need not wait for what is in the queue.
//!
//! Each reads or makes something that no launch before it can change, and changes nothing that a
//! launch before it could meet. Everything that is not here waits. Private tables of the driver
//! (`cuGetExportTable`) are handed out unchanged; calls through them are not seen:
//! [`super::tables`].
#![forbid(unsafe_code)]

/// In alphabetic order. Names as `cuGetProcAddress` knows them, so all versions of each.
const HARMLESS: [&str; 66] = [
    // A context that is current is a thread's own affair; each launch in the queue knows its
    // context.
    "cuCtxGetApiVersion",
    "cuCtxGetCacheConfig",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetFlags",
    "cuCtxGetId",
    "cuCtxGetLimit",
    "cuCtxGetSharedMemConfig",
    "cuCtxGetStreamPriorityRange",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuCtxSetCurrent",
    // What a device is.
    "cuDeviceCanAccessPeer",
    "cuDeviceComputeCapability",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetByPCIBusId",
    "cuDeviceGetCount",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetLuid",
    "cuDeviceGetMemPool",
    "cuDeviceGetName",
    "cuDeviceGetP2PAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetProperties",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxGetState",
    "cuDeviceTotalMem",
    "cuDriverGetVersion",
    // An event is recorded when nothing is in the queue, so what it waits for has all been issued.
    "cuEventCreate",
    "cuEventElapsedTime",
    "cuEventQuery",
    // What a kernel is, and where to find one.
    "cuFuncGetAttribute",
    "cuFuncGetModule",
    "cuFuncGetName",
    "cuFuncGetParamCount",
    "cuFuncGetParamInfo",
    "cuFuncIsLoaded",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetExportTable",
    "cuGetProcAddress",
    "cuInit",
    "cuKernelGetAttribute",
    "cuKernelGetFunction",
    "cuKernelGetLibrary",
    "cuKernelGetName",
    "cuKernelGetParamCount",
    "cuKernelGetParamInfo",
    "cuLibraryGetKernel",
    "cuLibraryGetKernelCount",
    "cuLibraryGetModule",
    "cuMemGetAddressRange",
    "cuMemGetInfo",
    "cuModuleGetFunction",
    "cuModuleGetGlobal",
    "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    // Nothing is left behind while anything captures, and a capture begins only when the queue is
    // empty: no launch in it changes what these answer.
    "cuStreamGetCaptureInfo",
    "cuStreamGetCtx",
    "cuStreamGetFlags",
    "cuStreamGetId",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
];

/// Whether a call of this name (without version) need not wait.
pub fn harmless(base: &str) -> bool {
    HARMLESS.binary_search(&base).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::symbols::ENTRIES;

    #[test]
    fn the_list_is_sorted_and_names_what_there_is() {
        assert!(HARMLESS.is_sorted());
        for name in HARMLESS {
            assert!(ENTRIES.iter().any(|entry| entry.base == name), "{name}");
        }
    }

    #[test]
    fn nothing_that_has_a_place_on_a_stream_is_harmless() {
        for entry in &ENTRIES {
            assert!(!(harmless(entry.base) && entry.class.is_ordered()), "{}", entry.base);
        }
    }
}
