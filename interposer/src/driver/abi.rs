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
    /// CUDA_SUCCESS.
    pub const SUCCESS: CuResult = CuResult(0);
    /// CUDA_ERROR_INVALID_VALUE.
    pub const INVALID_VALUE: CuResult = CuResult(1);
    /// CUDA_ERROR_OUT_OF_MEMORY.
    pub const OUT_OF_MEMORY: CuResult = CuResult(2);
    /// CUDA_ERROR_NOT_INITIALIZED.
    pub const NOT_INITIALIZED: CuResult = CuResult(3);
    /// CUDA_ERROR_NO_DEVICE: the answer without a driver.
    pub const NO_DEVICE: CuResult = CuResult(100);
    /// No current context.
    pub const INVALID_CONTEXT: CuResult = CuResult(201);
    /// CUDA_ERROR_NOT_READY.
    pub const NOT_READY: CuResult = CuResult(600);
    /// CUDA_ERROR_UNKNOWN.
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

/// `CUcheckpointLockArgs` and those of the other steps: 64 bytes each, zero except the lock's first
/// word.
pub type CheckpointArguments = [u32; 16];

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
/// CU_GRAPH_NODE_TYPE_MEM_ALLOC.
pub const NODE_ALLOCATION: u32 = 10;
/// CU_GRAPH_NODE_TYPE_MEM_FREE.
pub const NODE_FREE: u32 = 11;
/// CU_MEM_LOCATION_TYPE_DEVICE.
pub const LOCATION_DEVICE: u32 = 1;
/// CU_MEM_LOCATION_TYPE_HOST.
const LOCATION_HOST: u32 = 2;
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
    /// Host memory.
    pub const HOST: Location = Location {
        kind: LOCATION_HOST,
        id: 0,
    };

    /// A device's memory.
    pub fn device(id: CuDevice) -> Location {
        Location {
            kind: LOCATION_DEVICE,
            id,
        }
    }
}

/// CUlaunchAttribute in 8-byte words: its kind, and a union of 64 bytes.
pub type LaunchAttribute = [u64; 9];

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: CuStream,
    /// Array of [`LaunchAttribute`], perhaps unaligned.
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

/// CUmemPoolProps. Before CUDA 12.2 the last two are reserved, and 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct PoolProperties {
    pub head: AllocationProperties,
    pub security: usize,
    pub limit: usize,
    pub usage: u16,
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

/// CUDA_ARRAY_DESCRIPTOR (second version).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct FlatArray {
    pub width: usize,
    pub height: usize,
    pub format: u32,
    pub channels: u32,
}

/// CUDA_ARRAY3D_DESCRIPTOR (second version).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct ArrayShape {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: u32,
    pub channels: u32,
    pub flags: u32,
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// Lines of layouts.tsv about a structure: its name in the header, and for each field the
    /// header's names of its equal parts. `whole`: weft has the structure to its end.
    macro_rules! layout {
        ($rust:ty = $cuda:literal $($whole:ident)?, $($field:ident: $parts:literal),* $(,)?) => {{
            let mut lines = Vec::new();
            $(
                let whole = size_of::<$rust>();
                lines.push(format!(concat!($cuda, "\t", stringify!($whole), "\t0\t{}"), whole));
            )?
            $(
                let parts: Vec<&str> = $parts.split(' ').collect();
                let bytes = size_of_field(|it: &$rust| &raw const it.$field) / parts.len();
                for (at, part) in parts.iter().enumerate() {
                    let offset = offset_of!($rust, $field) + at * bytes;
                    lines.push(format!("{}\t{part}\t{offset}\t{bytes}", $cuda));
                }
            )*
            lines
        }};
    }

    fn size_of_field<T, F>(_: impl Fn(&T) -> *const F) -> usize {
        size_of::<F>()
    }

    /// `scripts/symbols check` compares the file with the headers.
    #[test]
    fn structures_are_those_of_layouts_tsv() {
        let lines = [
            layout!(Location = "CUmemLocation" whole, kind: "type", id: "id"),
            layout!(LaunchConfig = "CUlaunchConfig" whole,
                grid: "gridDimX gridDimY gridDimZ", block: "blockDimX blockDimY blockDimZ",
                shared: "sharedMemBytes", stream: "hStream", attributes: "attrs", attribute_count: "numAttrs"),
            layout!(DeviceLaunch = "CUDA_LAUNCH_PARAMS" whole,
                function: "function", grid: "gridDimX gridDimY gridDimZ", block: "blockDimX blockDimY blockDimZ",
                shared: "sharedMemBytes", stream: "hStream", arguments: "kernelParams"),
            layout!(KernelNode = "CUDA_KERNEL_NODE_PARAMS_v1",
                function: "func", grid: "gridDimX gridDimY gridDimZ", block: "blockDimX blockDimY blockDimZ",
                shared: "sharedMemBytes", arguments: "kernelParams", extra: "extra"),
            layout!(KernelNode = "CUDA_KERNEL_NODE_PARAMS_v2" whole,
                function: "func", grid: "gridDimX gridDimY gridDimZ", block: "blockDimX blockDimY blockDimZ",
                shared: "sharedMemBytes", arguments: "kernelParams", extra: "extra", kernel: "kern", context: "ctx"),
            layout!(KernelNode = "CUDA_KERNEL_NODE_PARAMS_v3",
                function: "func", grid: "gridDimX gridDimY gridDimZ", block: "blockDimX blockDimY blockDimZ",
                shared: "sharedMemBytes", arguments: "kernelParams", extra: "extra", kernel: "kern", context: "ctx"),
            layout!(NodeParams = "CUgraphNodeParams", kind: "type", kernel: "kernel"),
            layout!(ConditionalParams = "CUgraphNodeParams",
                handle: "conditional.handle", condition: "conditional.type", size: "conditional.size",
                bodies: "conditional.phGraph_out"),
            layout!(Copy2d = "CUDA_MEMCPY2D_v2" whole,
                source_offset: "srcXInBytes srcY", source_kind: "srcMemoryType",
                source: "srcHost srcDevice srcArray srcPitch",
                target_offset: "dstXInBytes dstY", target_kind: "dstMemoryType",
                target: "dstHost dstDevice dstArray dstPitch", width: "WidthInBytes", height: "Height"),
            layout!(Copy3d = "CUDA_MEMCPY3D_v2" whole,
                source_offset: "srcXInBytes srcY srcZ srcLOD", source_kind: "srcMemoryType",
                source: "srcHost srcDevice srcArray reserved0 srcPitch srcHeight",
                target_offset: "dstXInBytes dstY dstZ dstLOD", target_kind: "dstMemoryType",
                target: "dstHost dstDevice dstArray reserved1 dstPitch dstHeight",
                width: "WidthInBytes", height: "Height", depth: "Depth"),
            layout!(Copy3d = "CUDA_MEMCPY3D_PEER" whole,
                source_offset: "srcXInBytes srcY srcZ srcLOD", source_kind: "srcMemoryType",
                source: "srcHost srcDevice srcArray srcContext srcPitch srcHeight",
                target_offset: "dstXInBytes dstY dstZ dstLOD", target_kind: "dstMemoryType",
                target: "dstHost dstDevice dstArray dstContext dstPitch dstHeight",
                width: "WidthInBytes", height: "Height", depth: "Depth"),
            layout!(AllocationProperties = "CUmemAllocationProp",
                types: "type requestedHandleTypes", location_kind: "location.type", location_id: "location.id"),
            layout!(AllocationProperties = "CUmemPoolProps",
                types: "allocType handleTypes", location_kind: "location.type", location_id: "location.id"),
            layout!(PhysicalProperties = "CUmemAllocationProp" whole,
                metadata: "win32HandleMetaData", flags: "allocFlags"),
            layout!(MemoryAccess = "CUmemAccessDesc" whole, location: "location", flags: "flags"),
            layout!(AllocationNode = "CUDA_MEM_ALLOC_NODE_PARAMS" whole,
                access: "accessDescs accessDescCount", bytes: "bytesize", address: "dptr"),
            layout!(FlatArray = "CUDA_ARRAY_DESCRIPTOR" whole,
                width: "Width", height: "Height", format: "Format", channels: "NumChannels"),
            layout!(ArrayShape = "CUDA_ARRAY3D_DESCRIPTOR" whole,
                width: "Width", height: "Height", depth: "Depth", format: "Format", channels: "NumChannels",
                flags: "Flags"),
        ];
        let listed = include_str!("../../symbols/layouts.tsv").lines();
        let listed: Vec<&str> = listed.filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines.concat(), listed, "interposer/symbols/layouts.tsv");
    }
}
