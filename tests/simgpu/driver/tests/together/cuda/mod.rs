// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver under test as a client sees it: loaded by path, called through its C symbols.
//!
//! Tests of one program share the process's driver and take turns ([`cuda`]), since a capture in
//! one thread forbids calls in others.
#![allow(dead_code, reason = "each test program uses its part")]
#![allow(non_snake_case, reason = "the API's own names")]
#![allow(missing_docs, reason = "the API's own names")]
#![allow(clippy::too_many_arguments, reason = "the API's own signatures")]

#[path = "../../../../../bounded.rs"]
mod bounded;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;

use self::bounded::Bounded;

pub type Handle = usize;

pub const SUCCESS: u32 = 0;
pub const INVALID_VALUE: u32 = 1;
pub const INVALID_HANDLE: u32 = 400;
pub const ILLEGAL_STATE: u32 = 401;
pub const NOT_SUPPORTED: u32 = 801;
pub const CAPTURE_UNSUPPORTED: u32 = 900;
pub const CAPTURE_INVALIDATED: u32 = 901;
pub const CAPTURE_MERGE: u32 = 902;
pub const CAPTURE_UNMATCHED: u32 = 903;
pub const CAPTURE_UNJOINED: u32 = 904;
pub const CAPTURE_ISOLATION: u32 = 905;
pub const CAPTURE_IMPLICIT: u32 = 906;
pub const CAPTURED_EVENT: u32 = 907;
pub const CAPTURE_WRONG_THREAD: u32 = 908;
pub const UPDATE_FAILURE: u32 = 910;

/// `CUstreamCaptureMode`.
pub const GLOBAL: u32 = 0;
pub const THREAD_LOCAL: u32 = 1;
pub const RELAXED: u32 = 2;

macro_rules! api {
    ($(fn $name:ident($($arg:ident: $ty:ty),*);)*) => {
        /// The entry points that the tests call.
        pub struct Api { $($name: unsafe extern "C" fn($($ty),*) -> u32,)* _library: Library }

        impl Api {
            fn load(library: Library) -> Api {
                $(
                    let symbol = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the type is that of the public header.
                    let $name = *unsafe { library.get(symbol) }.expect(stringify!($name));
                )*
                Api { $($name,)* _library: library }
            }

            $(
                pub fn $name(&self, $($arg: $ty),*) -> u32 {
                    // SAFETY: the tests hand over pointers to their own locals, or null.
                    unsafe { (self.$name)($($arg),*) }
                }
            )*
        }
    };
}

api! {
    fn cuInit(flags: u32);
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32);
    fn cuCtxSetCurrent(context: Handle);
    fn cuCtxSynchronize();
    fn cuMemAlloc_v2(at: *mut u64, bytes: usize);
    fn cuMemFree_v2(at: u64);
    fn cuMemHostAlloc(at: *mut *mut u32, bytes: usize, flags: u32);
    fn cuMemFreeHost(at: *mut u32);
    fn cuMemAllocAsync(at: *mut u64, bytes: usize, stream: Handle);
    fn cuMemFreeAsync(at: u64, stream: Handle);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemcpyHtoD_v2(to: u64, from: *const u32, bytes: usize);
    fn cuMemcpyDtoH_v2(to: *mut u32, from: u64, bytes: usize);
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle);
    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle);
    fn cuModuleLoadData(module: *mut Handle, image: *const u8);
    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const u8);
    fn cuLaunchKernel(function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: Handle, params: *const *const u8, extra: *const usize);
    fn cuLaunchHostFunc(stream: Handle, function: extern "C" fn(*mut Mutex<Vec<u32>>), data: *mut Mutex<Vec<u32>>);
    fn cuStreamCreate(stream: *mut Handle, flags: u32);
    fn cuStreamDestroy_v2(stream: Handle);
    fn cuStreamSynchronize(stream: Handle);
    fn cuStreamQuery(stream: Handle);
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32);
    fn cuEventCreate(event: *mut Handle, flags: u32);
    fn cuEventDestroy_v2(event: Handle);
    fn cuEventRecord(event: Handle, stream: Handle);
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: u32);
    fn cuEventQuery(event: Handle);
    fn cuEventSynchronize(event: Handle);
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: Handle, to: Handle);
    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32);
    fn cuStreamBeginCaptureToGraph(stream: Handle, graph: Handle, nodes: *const Handle, data: *const u64, count: usize, mode: u32);
    fn cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    fn cuStreamIsCapturing(stream: Handle, status: *mut u32);
    fn cuStreamGetCaptureInfo_v2(stream: Handle, status: *mut u32, id: *mut u64, graph: *mut Handle, nodes: *mut *const Handle, count: *mut usize);
    fn cuStreamUpdateCaptureDependencies(stream: Handle, nodes: *const Handle, count: usize, flags: u32);
    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32);
    fn cuGraphCreate(graph: *mut Handle, flags: u32);
    fn cuGraphDestroy(graph: Handle);
    fn cuGraphClone(clone: *mut Handle, graph: Handle);
    fn cuGraphNodeFindInClone(node: *mut Handle, original: Handle, clone: Handle);
    fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize);
    fn cuGraphGetRootNodes(graph: Handle, nodes: *mut Handle, count: *mut usize);
    fn cuGraphGetEdges(graph: Handle, from: *mut Handle, to: *mut Handle, count: *mut usize);
    fn cuGraphNodeGetDependencies(node: Handle, nodes: *mut Handle, count: *mut usize);
    fn cuGraphNodeGetDependentNodes(node: Handle, nodes: *mut Handle, count: *mut usize);
    fn cuGraphNodeGetType(node: Handle, kind: *mut u32);
    fn cuGraphDestroyNode(node: Handle);
    fn cuGraphAddDependencies(graph: Handle, from: *const Handle, to: *const Handle, count: usize);
    fn cuGraphRemoveDependencies(graph: Handle, from: *const Handle, to: *const Handle, count: usize);
    fn cuGraphAddEmptyNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize);
    fn cuGraphAddKernelNode_v2(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *const KernelParams);
    fn cuGraphKernelNodeGetParams_v2(node: Handle, params: *mut KernelParams);
    fn cuGraphKernelNodeSetAttribute(node: Handle, attribute: u32, value: *const [u64; 8]);
    fn cuGraphKernelNodeGetAttribute(node: Handle, attribute: u32, value: *mut [u64; 8]);
    fn cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, params: *const KernelParams);
    fn cuGraphAddMemsetNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *const SetParams, context: Handle);
    fn cuGraphMemsetNodeGetParams(node: Handle, params: *mut SetParams);
    fn cuGraphExecMemsetNodeSetParams(exec: Handle, node: Handle, params: *const SetParams, context: Handle);
    fn cuGraphAddMemcpyNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *const [u64; 25], context: Handle);
    fn cuGraphMemcpyNodeGetParams(node: Handle, params: *mut [u64; 25]);
    fn cuGraphExecMemcpyNodeSetParams(exec: Handle, node: Handle, params: *const [u64; 25], context: Handle);
    fn cuGraphAddHostNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *const HostParams);
    fn cuGraphAddEventRecordNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, event: Handle);
    fn cuGraphAddEventWaitNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, event: Handle);
    fn cuGraphAddChildGraphNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, child: Handle);
    fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: *mut Handle);
    fn cuGraphAddMemAllocNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *mut AllocParams);
    fn cuGraphAddMemFreeNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, at: u64);
    fn cuGraphAddNode(node: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *mut [u64; 32]);
    fn cuGraphAddNode_v2(node: *mut Handle, graph: Handle, after: *const Handle, data: *const u64, count: usize, params: *mut [u64; 32]);
    fn cuGraphNodeGetParams(node: Handle, params: *mut [u64; 32]);
    fn cuGraphExecNodeSetParams(exec: Handle, node: Handle, params: *mut [u64; 32]);
    fn cuGraphConditionalHandleCreate(value: *mut u64, graph: Handle, context: Handle, default: u32, flags: u32);
    fn cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64);
    fn cuGraphInstantiateWithParams(exec: *mut Handle, graph: Handle, params: *mut [u64; 4]);
    fn cuGraphInstantiate_v2(exec: *mut Handle, graph: Handle, node: *mut Handle, log: *mut u8, room: usize);
    fn cuGraphLaunch(exec: Handle, stream: Handle);
    fn cuGraphUpload(exec: Handle, stream: Handle);
    fn cuGraphExecDestroy(exec: Handle);
    fn cuGraphExecUpdate_v2(exec: Handle, graph: Handle, info: *mut [u64; 3]);
    fn cuGraphNodeSetEnabled(exec: Handle, node: Handle, enabled: u32);
    fn cuGraphNodeGetEnabled(exec: Handle, node: Handle, enabled: *mut u32);
    fn cuGraphDebugDotPrint(graph: Handle, path: *const u8, flags: u32);
    fn simgpuKernelFunction(name: *const u8, function: Option<extern "C" fn(usize, *const usize, usize)>, data: usize);
    fn cuUserObjectCreate(object: *mut Handle, data: *mut Mutex<Vec<u32>>, destructor: extern "C" fn(*mut Mutex<Vec<u32>>), references: u32, flags: u32);
    fn cuUserObjectRelease(object: Handle, count: u32);
    fn cuGraphRetainUserObject(graph: Handle, object: Handle, count: u32, flags: u32);
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KernelParams {
    pub function: Handle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub each: *const *const u8,
    pub extra: *const usize,
    pub kernel: Handle,
    pub context: Handle,
}

/// `CUDA_MEMSET_NODE_PARAMS_v1`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetParams {
    pub address: u64,
    pub pitch: usize,
    pub value: u32,
    pub element: u32,
    pub width: usize,
    pub height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
pub struct HostParams {
    pub function: extern "C" fn(*mut Mutex<Vec<u32>>),
    pub data: *mut Mutex<Vec<u32>>,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
pub struct AllocParams {
    pub pool: [u64; 11],
    pub access: usize,
    pub access_count: usize,
    pub bytes: usize,
    pub address: u64,
}

/// The driver, initialised, with a context current in the calling thread; no other test uses it
/// meanwhile.
pub struct Cuda {
    pub api: &'static Api,
    pub context: Handle,
    pub fill: Handle,
    pub axpy: Handle,
    pub copy: Handle,
    pub spin: Handle,
    _turn: MutexGuard<'static, ()>,
    _bounded: Bounded,
}

impl std::ops::Deref for Cuda {
    type Target = Api;

    fn deref(&self) -> &Api {
        self.api
    }
}

/// The library under test. Cargo builds no `cdylib` for a test program, so it is asked to, and to
/// build the device's program too. If both are up to date, cargo only checks some files.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().and_then(|deps| deps.parent()).expect("cargo's layout");
    // scripts/test has built all of it, with the features of the whole workspace.
    if std::env::var_os("WEFT_TEST_BUILT").is_none() {
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "-q",
            "-p",
            "simgpu-driver",
            "-p",
            "simgpu-device",
            "--features",
            "simgpu-driver/cuda-runtime",
        ]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the driver builds");
    }
    profile.join("libsimcuda.so")
}

/// Waits for the other tests of this program, and returns the driver.
pub fn cuda() -> Cuda {
    static TURN: Mutex<()> = Mutex::new(());
    static API: OnceLock<(Api, Handle, [Handle; 4])> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (api, context, functions) = API.get_or_init(|| {
        let directory = tempfile::Builder::new().prefix("simgpu").tempdir().unwrap().keep();
        // SAFETY: the first test to get here, before any thread of the driver's; the others wait
        // for their turn.
        unsafe { std::env::set_var("SIMGPU_SOCKET", directory.join("device.sock")) };
        let path = library();
        // SAFETY: the library under test, whose constructors do nothing.
        let library = unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let api = Api::load(library);
        assert_eq!(api.cuInit(0), SUCCESS);
        let mut context = 0;
        assert_eq!(api.cuDevicePrimaryCtxRetain(&mut context, 0), SUCCESS);
        assert_eq!(api.cuCtxSetCurrent(context), SUCCESS);
        let mut module = 0;
        let ptx = concat!(include_str!("../../../src/kernels/simgpu.ptx"), "\0");
        assert_eq!(api.cuModuleLoadData(&mut module, ptx.as_ptr()), SUCCESS);
        let functions = ["simgpu_fill\0", "simgpu_axpy\0", "simgpu_copy\0", "simgpu_spin\0"].map(|name| {
            let mut function = 0;
            assert_eq!(api.cuModuleGetFunction(&mut function, module, name.as_ptr()), SUCCESS);
            function
        });
        (api, context, functions)
    });
    assert_eq!(api.cuCtxSetCurrent(*context), SUCCESS);
    let [fill, axpy, copy, spin] = *functions;
    Cuda {
        api,
        context: *context,
        fill,
        axpy,
        copy,
        spin,
        _turn: turn,
        _bounded: Bounded::new(),
    }
}

/// Parameters of a launch: their bytes, and the addresses of those.
pub struct Given {
    _values: Vec<[u8; 8]>,
    addresses: Vec<*const u8>,
}

impl Given {
    pub fn new(values: &[u64]) -> Given {
        let values: Vec<[u8; 8]> = values.iter().map(|value| value.to_le_bytes()).collect();
        let addresses = values.iter().map(|value| value.as_ptr()).collect();
        Given {
            _values: values,
            addresses,
        }
    }

    pub fn each(&self) -> *const *const u8 {
        self.addresses.as_ptr()
    }
}

impl Cuda {
    /// Device memory for `count` words, all zero.
    pub fn words(&self, count: usize) -> u64 {
        let mut at = 0;
        assert_eq!(self.cuMemAlloc_v2(&mut at, 4 * count), SUCCESS);
        let zeros = vec![0u32; count];
        assert_eq!(self.cuMemcpyHtoD_v2(at, zeros.as_ptr(), 4 * count), SUCCESS);
        at
    }

    /// The words at a device address, after everything on the legacy and blocking streams.
    pub fn read(&self, at: u64, count: usize) -> Vec<u32> {
        let mut words = vec![0xdead_beefu32; count];
        assert_eq!(self.cuMemcpyDtoH_v2(words.as_mut_ptr(), at, 4 * count), SUCCESS);
        words
    }

    pub fn stream(&self) -> Handle {
        let mut stream = 0;
        assert_eq!(self.cuStreamCreate(&mut stream, 1), SUCCESS);
        stream
    }

    pub fn event(&self) -> Handle {
        let mut event = 0;
        assert_eq!(self.cuEventCreate(&mut event, 0), SUCCESS);
        event
    }

    /// Launches a kernel of one block.
    pub fn launch(&self, function: Handle, values: &[u64], stream: Handle) -> u32 {
        let given = Given::new(values);
        self.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, given.each(), std::ptr::null())
    }

    /// `simgpu_fill` of `count` words.
    pub fn fill(&self, at: u64, value: u32, count: u64, stream: Handle) -> u32 {
        self.launch(self.fill, &[at, value.into(), count], stream)
    }

    /// A kernel node's parameters.
    pub fn node(&self, function: Handle, given: &Given) -> KernelParams {
        KernelParams {
            function,
            grid: [1, 1, 1],
            block: [32, 1, 1],
            shared: 0,
            each: given.each(),
            extra: std::ptr::null(),
            kernel: 0,
            context: 0,
        }
    }

    pub fn graph(&self) -> Handle {
        let mut graph = 0;
        assert_eq!(self.cuGraphCreate(&mut graph, 0), SUCCESS);
        graph
    }

    /// Adds a node that fills words.
    pub fn add_fill(&self, graph: Handle, after: &[Handle], at: u64, value: u32, count: u64) -> Handle {
        let given = Given::new(&[at, value.into(), count]);
        let mut node = 0;
        let params = self.node(self.fill, &given);
        assert_eq!(
            self.cuGraphAddKernelNode_v2(&mut node, graph, after.as_ptr(), after.len(), &params),
            SUCCESS
        );
        node
    }

    /// Adds a node that copies bytes with a kernel.
    pub fn add_copy(&self, graph: Handle, after: &[Handle], to: u64, from: u64, bytes: u64) -> Handle {
        let given = Given::new(&[to, from, bytes]);
        let mut node = 0;
        let params = self.node(self.copy, &given);
        assert_eq!(
            self.cuGraphAddKernelNode_v2(&mut node, graph, after.as_ptr(), after.len(), &params),
            SUCCESS
        );
        node
    }

    pub fn instantiate(&self, graph: Handle) -> Handle {
        let mut exec = 0;
        assert_eq!(self.cuGraphInstantiateWithFlags(&mut exec, graph, 0), SUCCESS);
        exec
    }

    /// Launches and waits.
    pub fn run(&self, exec: Handle, stream: Handle) {
        assert_eq!(self.cuGraphLaunch(exec, stream), SUCCESS);
        assert_eq!(self.cuStreamSynchronize(stream), SUCCESS);
    }

    pub fn nodes(&self, graph: Handle) -> Vec<Handle> {
        let mut count = 0;
        assert_eq!(self.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count), SUCCESS);
        let mut nodes = vec![0; count];
        assert_eq!(self.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count), SUCCESS);
        nodes
    }

    pub fn kinds(&self, graph: Handle) -> Vec<u32> {
        let kind = |node: &Handle| {
            let mut kind = u32::MAX;
            assert_eq!(self.cuGraphNodeGetType(*node, &mut kind), SUCCESS);
            kind
        };
        self.nodes(graph).iter().map(kind).collect()
    }

    /// The nodes that a node comes after.
    pub fn after(&self, node: Handle) -> Vec<Handle> {
        let mut count = 16;
        let mut nodes = vec![0; count];
        assert_eq!(
            self.cuGraphNodeGetDependencies(node, nodes.as_mut_ptr(), &mut count),
            SUCCESS
        );
        nodes.truncate(count);
        nodes
    }

    pub fn begin(&self, stream: Handle, mode: u32) {
        assert_eq!(self.cuStreamBeginCapture_v2(stream, mode), SUCCESS);
    }

    pub fn end(&self, stream: Handle) -> Handle {
        let mut graph = 0;
        assert_eq!(self.cuStreamEndCapture(stream, &mut graph), SUCCESS);
        graph
    }

    /// Ends a capture that was spoilt; the streams are ordinary again.
    pub fn end_invalid(&self, stream: Handle) {
        let mut graph = 1;
        assert_eq!(self.cuStreamEndCapture(stream, &mut graph), CAPTURE_INVALIDATED);
        assert_eq!(graph, 0);
        let mut status = 9;
        assert_eq!(self.cuStreamIsCapturing(stream, &mut status), SUCCESS);
        assert_eq!(status, 0);
    }
}
