// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's types, limited to the parts that weft reads.
//!
//! Handles are plain words that only the driver dereferences. The result is a transparent integer:
//! an unknown code of a newer driver must not be undefined behaviour. Layouts follow the public
//! `cuda.h`: grids in blocks, blocks in threads, sizes in bytes.
#![forbid(unsafe_code)]

use std::ffi::c_void;

/// Result of a driver function.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct CuResult(pub u32);

impl CuResult {
    pub const SUCCESS: CuResult = CuResult(0);
    pub const INVALID_VALUE: CuResult = CuResult(1);
    pub const OUT_OF_MEMORY: CuResult = CuResult(2);
    pub const NOT_INITIALIZED: CuResult = CuResult(3);
    /// CUDA_ERROR_NO_DEVICE: the answer without a driver.
    pub const NO_DEVICE: CuResult = CuResult(100);
    pub const NOT_READY: CuResult = CuResult(600);
    pub const UNKNOWN: CuResult = CuResult(999);
    /// CUDA_ERROR_NOT_FOUND: the answer of a symbol that the driver lacks.
    pub const NOT_FOUND: CuResult = CuResult(500);

    pub fn ok(self) -> bool {
        self == CuResult::SUCCESS
    }
}

/// A CUstream. 0 and 1 are the legacy default stream, 2 the calling thread's.
pub type CuStream = usize;
pub type CuEvent = usize;
pub type CuContext = usize;
/// A CUdevice (an ordinal).
pub type CuDevice = i32;
pub type CuDevicePtr = u64;
/// A CUfunction, or a CUkernel passed as one.
pub type CuFunction = usize;
pub type CuKernel = usize;
pub type CuModule = usize;
pub type CuLibrary = usize;
pub type CuGraph = usize;
pub type CuGraphNode = usize;
pub type CuGraphExec = usize;

/// CU_STREAM_CAPTURE_STATUS_NONE.
pub const CAPTURE_STATUS_NONE: u32 = 0;
/// CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.
pub const PROC_ADDRESS_PER_THREAD: u64 = 2;
/// CU_GRAPH_NODE_TYPE_KERNEL.
pub const NODE_KERNEL: u32 = 0;
/// CU_GRAPH_NODE_TYPE_GRAPH (a child graph).
pub const NODE_CHILD_GRAPH: u32 = 4;
/// CU_GRAPH_NODE_TYPE_CONDITIONAL.
pub const NODE_CONDITIONAL: u32 = 13;
/// CU_GRAPH_NODE_TYPE_MEM_ALLOC and CU_GRAPH_NODE_TYPE_MEM_FREE.
pub const NODE_ALLOCATION: u32 = 10;
pub const NODE_FREE: u32 = 11;
/// CU_MEM_LOCATION_TYPE_DEVICE.
pub const LOCATION_DEVICE: u32 = 1;
/// CU_MEMORYTYPE_HOST.
pub const MEMORY_HOST: u32 = 1;
/// CU_MEMORYTYPE_DEVICE.
pub const MEMORY_DEVICE: u32 = 2;

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

impl Location {
    /// Host memory (CU_MEM_LOCATION_TYPE_HOST).
    pub const HOST: Location = Location { kind: 2, id: 0 };

    /// A device's memory.
    pub fn device(id: CuDevice) -> Location {
        Location {
            kind: LOCATION_DEVICE,
            id,
        }
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: CuStream,
    /// Launch attributes: forwarded, never read.
    pub attributes: *const c_void,
    pub attribute_count: u32,
}

/// CUDA_LAUNCH_PARAMS of a cooperative launch on several devices.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct DeviceLaunch {
    pub function: CuFunction,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: CuStream,
    pub arguments: *const c_void,
}

/// CUDA_KERNEL_NODE_PARAMS_v2 and the fields shared with _v3. The first version ends after `extra`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct KernelNode {
    pub function: CuFunction,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub arguments: *const c_void,
    pub extra: *const c_void,
    /// The kernel, if given as a kernel (`function` is null then). Not in the first version.
    pub kernel: CuKernel,
    /// Its context. Not in the first version.
    pub context: CuContext,
}

impl KernelNode {
    /// An empty node for the driver to fill.
    pub const EMPTY: KernelNode = KernelNode {
        function: 0,
        grid: [0; 3],
        block: [0; 3],
        shared: 0,
        arguments: std::ptr::null(),
        extra: std::ptr::null(),
        kernel: 0,
        context: 0,
    };
}

/// CUgraphNodeParams up to the kernel's parameters.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct NodeParams {
    pub kind: u32,
    pub reserved: [i32; 3],
    pub kernel: KernelNode,
}

/// CUgraphNodeParams of a conditional node.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct ConditionalParams {
    pub kind: u32,
    pub reserved: [i32; 3],
    pub handle: u64,
    /// If, while or switch.
    pub condition: u32,
    pub size: u32,
    /// Body graphs, written by the driver when the node is made.
    pub bodies: *const CuGraph,
}

/// CUDA_MEMCPY2D (second version).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct Copy2d {
    /// Source offset in bytes and rows.
    pub source_offset: [usize; 2],
    pub source_kind: u32,
    /// Source as host pointer, device pointer, array; pitch.
    pub source: [usize; 4],
    /// Destination offset in bytes and rows.
    pub target_offset: [usize; 2],
    pub target_kind: u32,
    /// Destination as host pointer, device pointer, array; pitch.
    pub target: [usize; 4],
    pub width: usize,
    pub height: usize,
}

/// CUDA_MEMCPY3D (second version) and CUDA_MEMCPY3D_PEER, of one layout.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct Copy3d {
    /// Source offset in bytes, rows, slices; mipmap level.
    pub source_offset: [usize; 4],
    pub source_kind: u32,
    /// Source as host pointer, device pointer, array; context; pitch, height.
    pub source: [usize; 6],
    /// Destination offset in bytes, rows, slices; mipmap level.
    pub target_offset: [usize; 4],
    pub target_kind: u32,
    /// Destination as host pointer, device pointer, array; context; pitch, height.
    pub target: [usize; 6],
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// CUmemAllocationProp up to the location.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct AllocationProperties {
    /// Allocation type and handle types.
    pub types: [u32; 2],
    pub location_kind: u32,
    pub location_id: i32,
}

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct PhysicalProperties {
    pub head: AllocationProperties,
    pub metadata: usize,
    pub flags: [u8; 8],
}

/// CUmemAccessDesc.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct MemoryAccess {
    pub location: Location,
    pub flags: u32,
}

/// CUDA_MEM_ALLOC_NODE_PARAMS.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct AllocationNode {
    pub pool: AllocationProperties,
    pub pool_rest: [usize; 9],
    pub access: [usize; 2],
    pub bytes: usize,
    pub address: CuDevicePtr,
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use cudarc::driver::sys;

    use super::*;

    /// Public bindings are an independent reading of the header.
    #[test]
    fn layouts_are_those_of_the_header() {
        assert_eq!(size_of::<LaunchConfig>(), size_of::<sys::CUlaunchConfig>());
        assert_eq!(
            offset_of!(LaunchConfig, stream),
            offset_of!(sys::CUlaunchConfig, hStream)
        );
        assert_eq!(
            offset_of!(LaunchConfig, shared),
            offset_of!(sys::CUlaunchConfig, sharedMemBytes)
        );
        assert_eq!(size_of::<Location>(), size_of::<sys::CUmemLocation>());
        assert_eq!(size_of::<DeviceLaunch>(), size_of::<sys::CUDA_LAUNCH_PARAMS>());
        assert_eq!(
            offset_of!(DeviceLaunch, stream),
            offset_of!(sys::CUDA_LAUNCH_PARAMS, hStream)
        );
        assert_eq!(size_of::<KernelNode>(), size_of::<sys::CUDA_KERNEL_NODE_PARAMS_v2>());
        assert_eq!(
            offset_of!(KernelNode, kernel),
            offset_of!(sys::CUDA_KERNEL_NODE_PARAMS_v2, kern)
        );
        assert_eq!(
            offset_of!(KernelNode, kernel),
            offset_of!(sys::CUDA_KERNEL_NODE_PARAMS_v3, kern)
        );
        assert_eq!(
            offset_of!(KernelNode, shared),
            offset_of!(sys::CUDA_KERNEL_NODE_PARAMS_v3, sharedMemBytes)
        );
        assert_eq!(
            [offset_of!(AllocationNode, bytes), offset_of!(AllocationNode, address)],
            [
                offset_of!(sys::CUDA_MEM_ALLOC_NODE_PARAMS, bytesize),
                offset_of!(sys::CUDA_MEM_ALLOC_NODE_PARAMS, dptr)
            ]
        );
        assert_eq!(
            offset_of!(NodeParams, kernel),
            offset_of!(sys::CUgraphNodeParams, __bindgen_anon_1)
        );
        assert_eq!(
            offset_of!(ConditionalParams, handle),
            offset_of!(sys::CUgraphNodeParams, __bindgen_anon_1)
        );
        let bodies = offset_of!(ConditionalParams, bodies) - offset_of!(ConditionalParams, handle);
        assert_eq!(bodies, offset_of!(sys::CUDA_CONDITIONAL_NODE_PARAMS, phGraph_out));
        assert_eq!(size_of::<Copy2d>(), size_of::<sys::CUDA_MEMCPY2D_v2>());
        assert_eq!(
            offset_of!(Copy2d, target_kind),
            offset_of!(sys::CUDA_MEMCPY2D_v2, dstMemoryType)
        );
        assert_eq!(
            offset_of!(Copy2d, width),
            offset_of!(sys::CUDA_MEMCPY2D_v2, WidthInBytes)
        );
        assert_eq!(size_of::<Copy3d>(), size_of::<sys::CUDA_MEMCPY3D_v2>());
        assert_eq!(size_of::<Copy3d>(), size_of::<sys::CUDA_MEMCPY3D_PEER>());
        assert_eq!(
            offset_of!(Copy3d, target_kind),
            offset_of!(sys::CUDA_MEMCPY3D_v2, dstMemoryType)
        );
        assert_eq!(
            offset_of!(Copy3d, target_kind),
            offset_of!(sys::CUDA_MEMCPY3D_PEER, dstMemoryType)
        );
        assert_eq!(offset_of!(Copy3d, depth), offset_of!(sys::CUDA_MEMCPY3D_v2, Depth));
        assert_eq!(
            offset_of!(AllocationProperties, location_kind),
            offset_of!(sys::CUmemAllocationProp, location)
        );
        assert_eq!(
            [size_of::<PhysicalProperties>(), size_of::<MemoryAccess>()],
            [size_of::<sys::CUmemAllocationProp>(), size_of::<sys::CUmemAccessDesc>()]
        );
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!(CuResult::NO_DEVICE.0, sys::CUresult::CUDA_ERROR_NO_DEVICE as u32);
        assert_eq!(CuResult::NOT_FOUND.0, sys::CUresult::CUDA_ERROR_NOT_FOUND as u32);
        assert_eq!(
            CuResult::NOT_INITIALIZED.0,
            sys::CUresult::CUDA_ERROR_NOT_INITIALIZED as u32
        );
        assert_eq!(NODE_CHILD_GRAPH, sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH as u32);
        assert_eq!(
            LOCATION_DEVICE,
            sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32
        );
        let per_thread = sys::CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
        assert_eq!(PROC_ADDRESS_PER_THREAD, per_thread as u64);
    }
}
