// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thin layer over cudarc's driver calls: one device, one module of test kernels, streams.
//!
//! It opens the driver as cudarc does (by name, `libcuda.so` first), holds the primary context for
//! the life of the process, and frees only memory that it is asked to free: a test program ends
//! soon.

use std::ffi::{CString, c_void};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cudarc::driver::{result, sys};

/// The test kernels; the same text runs on a real GPU and on the simulated one. Its head describes
/// each of them.
pub const KERNELS: &str = include_str!("../../simgpu/driver/src/kernels/simgpu.ptx");

/// The device's memory, typed by its content.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMemory {
    /// Its device address.
    pub address: sys::CUdeviceptr,
    /// Bytes.
    pub bytes: usize,
}

/// A stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnStream(pub sys::CUstream);

// SAFETY: a stream's handle may be used from any thread; the driver orders the calls.
unsafe impl Send for OwnStream {}
// SAFETY: as above.
unsafe impl Sync for OwnStream {}

/// An event.
#[derive(Debug, Clone, Copy)]
pub struct StreamEvent(sys::CUevent);

/// A kernel of the test module.
#[derive(Debug, Clone, Copy)]
pub struct LoadedKernel(sys::CUfunction);

// SAFETY: a function's handle may be used from any thread; its module is never unloaded.
unsafe impl Send for LoadedKernel {}
// SAFETY: as above.
unsafe impl Sync for LoadedKernel {}

/// A graph that can be launched.
#[derive(Debug, Clone, Copy)]
pub struct Graph(sys::CUgraphExec);

/// One argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub enum Argument {
    /// A pointer or a 64-bit number.
    Wide(u64),
    /// A 32-bit number.
    Narrow(u32),
    /// A 32-bit float.
    Float(f32),
}

/// The device with the test kernels loaded.
#[derive(Debug)]
pub struct TestGpu {
    module: sys::CUmodule,
    context: sys::CUcontext,
}

// SAFETY: the driver's module and context handles may be used from any thread; `TestGpu` never
// changes or ends them.
unsafe impl Send for TestGpu {}
// SAFETY: as above.
unsafe impl Sync for TestGpu {}

impl TestGpu {
    /// Opens the first device and loads the test kernels.
    pub fn open() -> Result<TestGpu> {
        result::init().context("cuInit")?;
        let device = result::device::get(0).context("cuDeviceGet")?;
        // SAFETY: the device handle comes from the line above.
        let context = unsafe { result::primary_ctx::retain(device) }.context("cuDevicePrimaryCtxRetain")?;
        // SAFETY: the context is retained for the life of the process.
        unsafe { result::ctx::set_current(context) }.context("cuCtxSetCurrent")?;
        let image = CString::new(KERNELS).context("the test kernels")?;
        // SAFETY: the image is a NUL-terminated PTX text that outlives the call.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }.context("cuModuleLoadData")?;
        Ok(TestGpu { module, context })
    }

    /// Makes the device's context current in another thread.
    pub fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained for the life of the process.
        unsafe { result::ctx::set_current(self.context) }.context("cuCtxSetCurrent")
    }

    /// A kernel of the module by name.
    pub fn kernel(&self, name: &str) -> Result<LoadedKernel> {
        let text = CString::new(name).context("a kernel's name")?;
        // SAFETY: the module is loaded for the life of the process.
        let function = unsafe { result::module::get_function(self.module, text) };
        Ok(LoadedKernel(
            function.with_context(|| format!("cuModuleGetFunction {name}"))?,
        ))
    }

    /// A stream; one that does not wait for the legacy default stream.
    pub fn stream(&self) -> Result<OwnStream> {
        Ok(OwnStream(
            result::stream::create(result::stream::StreamKind::NonBlocking).context("cuStreamCreate")?,
        ))
    }

    /// Device memory.
    pub fn allocate(&self, bytes: usize) -> Result<DeviceMemory> {
        // SAFETY: plain allocation.
        let address = unsafe { result::malloc_sync(bytes) }.context("cuMemAlloc")?;
        Ok(DeviceMemory { address, bytes })
    }

    /// Gives memory back.
    pub fn free(&self, memory: DeviceMemory) -> Result<()> {
        // SAFETY: only `allocate` makes a `DeviceMemory`, and the callers free it once.
        unsafe { result::free_sync(memory.address) }.context("cuMemFree")
    }

    /// Copies numbers to the device, in stream order. The data must live until the stream was
    /// synchronised.
    pub fn upload(&self, memory: DeviceMemory, data: &[u32], stream: OwnStream) -> Result<()> {
        ensure!(size_of_val(data) <= memory.bytes, "more data than memory");
        // SAFETY: the destination is large enough (checked above); callers synchronise before
        // `data` goes.
        unsafe { result::memcpy_htod_async(memory.address, data, stream.0) }.context("cuMemcpyHtoDAsync")
    }

    /// Copies numbers from the device after everything before it in the stream, and waits for them.
    pub fn download(&self, memory: DeviceMemory, count: usize, stream: OwnStream) -> Result<Vec<u32>> {
        ensure!(count * 4 <= memory.bytes, "more data than memory");
        let mut data = vec![0u32; count];
        // SAFETY: the source is large enough (checked above); the stream is synchronised before
        // `data` is read or dropped.
        unsafe { result::memcpy_dtoh_async(&mut data, memory.address, stream.0) }.context("cuMemcpyDtoHAsync")?;
        self.synchronize(stream)?;
        Ok(data)
    }

    /// Sets every byte of the memory, in stream order.
    pub fn set_bytes(&self, memory: DeviceMemory, value: u8, stream: OwnStream) -> Result<()> {
        // SAFETY: the length is the memory's own.
        unsafe { result::memset_d8_async(memory.address, value, memory.bytes, stream.0) }.context("cuMemsetD8Async")
    }

    /// Launches a kernel.
    pub fn launch(
        &self,
        kernel: LoadedKernel,
        grid: u32,
        block: u32,
        arguments: &mut [Argument],
        stream: OwnStream,
    ) -> Result<()> {
        let mut pointers: Vec<*mut c_void> = arguments
            .iter_mut()
            .map(|argument| match argument {
                Argument::Wide(value) => std::ptr::from_mut(value).cast(),
                Argument::Narrow(value) => std::ptr::from_mut(value).cast(),
                Argument::Float(value) => std::ptr::from_mut(value).cast(),
            })
            .collect();
        // SAFETY: the pointers live across the call, which copies the values behind them; callers
        // pass the kernel's own arguments.
        let launched =
            unsafe { result::launch_kernel(kernel.0, (grid, 1, 1), (block, 1, 1), 0, stream.0, &mut pointers) };
        launched.context("cuLaunchKernel")
    }

    /// Waits for everything in the stream.
    pub fn synchronize(&self, stream: OwnStream) -> Result<()> {
        // SAFETY: streams are never destroyed here.
        unsafe { result::stream::synchronize(stream.0) }.context("cuStreamSynchronize")
    }

    /// An event that takes times.
    pub fn event(&self) -> Result<StreamEvent> {
        Ok(StreamEvent(
            result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).context("cuEventCreate")?,
        ))
    }

    /// Records the event behind everything in the stream.
    pub fn record(&self, event: StreamEvent, stream: OwnStream) -> Result<()> {
        // SAFETY: events and streams are never destroyed here.
        unsafe { result::event::record(event.0, stream.0) }.context("cuEventRecord")
    }

    /// Has the stream wait for the event.
    pub fn wait_for(&self, stream: OwnStream, event: StreamEvent) -> Result<()> {
        // SAFETY: events and streams are never destroyed here.
        unsafe { result::stream::wait_event(stream.0, event.0, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .context("cuStreamWaitEvent")
    }

    /// Waits for the event.
    pub fn reach(&self, event: StreamEvent) -> Result<()> {
        // SAFETY: events are never destroyed here.
        unsafe { result::event::synchronize(event.0) }.context("cuEventSynchronize")
    }

    /// Device time between two events that were reached.
    pub fn between(&self, begin: StreamEvent, end: StreamEvent) -> Result<Duration> {
        // SAFETY: events are never destroyed here.
        let ms = unsafe { result::event::elapsed(begin.0, end.0) }.context("cuEventElapsedTime")?;
        Ok(Duration::from_secs_f32(ms.max(0.0) / 1e3))
    }

    /// Records the work that `body` puts on the stream as a graph. Other threads may do what they
    /// like.
    pub fn capture(&self, stream: OwnStream, body: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.capture_in(
            sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            stream,
            body,
        )
    }

    /// The same in global mode: an unsafe call of any thread spoils it.
    pub fn capture_global(&self, stream: OwnStream, body: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.capture_in(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, stream, body)
    }

    fn capture_in(
        &self,
        mode: sys::CUstreamCaptureMode,
        stream: OwnStream,
        body: impl FnOnce() -> Result<()>,
    ) -> Result<Graph> {
        // SAFETY: the stream is alive.
        unsafe { result::stream::begin_capture(stream.0, mode) }.context("cuStreamBeginCapture")?;
        body()?;
        // SAFETY: the stream captures since the line above.
        let graph = unsafe { result::stream::end_capture(stream.0) }.context("cuStreamEndCapture")?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph came from the capture; the out pointer is a local.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) }
            .result()
            .context("cuGraphInstantiateWithFlags")?;
        Ok(Graph(executable))
    }

    /// Launches a graph.
    pub fn replay(&self, graph: Graph, stream: OwnStream) -> Result<()> {
        // SAFETY: graphs and streams are never destroyed here.
        unsafe { result::graph::launch(graph.0, stream.0) }.context("cuGraphLaunch")
    }
}
