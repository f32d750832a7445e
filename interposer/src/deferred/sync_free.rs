//! Sync-free calls: they need not wait for the launch queue.
//!
//! They read or make only what no earlier launch can change, and change nothing that such a launch
//! meets. All other calls wait. Private driver tables (`cuGetExportTable`) are handed out
//! unchanged: [`super::tables`].
#![forbid(unsafe_code)]

/// In alphabetic order. Names for `cuGetProcAddress`, so all versions of each.
const HARMLESS: [&str; 66] = [
    // The current context is per thread; each queued launch knows its own.
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
    // Device facts.
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
    // An event is recorded only with an empty queue, so all that it waits for was issued.
    "cuEventCreate",
    "cuEventElapsedTime",
    "cuEventQuery",
    // Kernel facts and lookups.
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
    // Nothing is deferred during a capture, and a capture begins only with an empty queue.
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
