// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bare CUDA program: the driver opened by name and called through pointers, as the CUDA runtime
//! does, so that only a preloaded library is measured or tested.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use anyhow::{Context, Result, ensure};
use libloading::Library;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type LoadData = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
type GetFunction = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
type StreamCreate = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
type Synchronize = unsafe extern "C" fn(*mut c_void) -> c_int;
type EventCreate = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
type Record = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Launch = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// The driver, with one test kernel, one stream and one event.
#[derive(Debug)]
pub struct Launcher {
    library: &'static Library,
    launch: Launch,
    synchronize: Synchronize,
    record: Record,
    wait_for_event: Synchronize,
    event: *mut c_void,
    kernel: *mut c_void,
    stream: *mut c_void,
}

impl Launcher {
    /// Opens device, context, module, kernel and stream through `libcuda.so.1`.
    pub fn open() -> Result<Launcher> {
        // SAFETY: any CUDA program runs a driver's constructors.
        let library = unsafe { Library::new("libcuda.so.1") }.context("no libcuda.so.1 on the library path")?;
        // Never closed: its threads and handlers must outlive us.
        let library: &'static Library = Box::leak(Box::new(library));

        let (mut context, mut module, mut kernel, mut stream) = (null_mut(), null_mut(), null_mut(), null_mut());
        let mut device = 0;
        let image = CString::new(crate::gpu::KERNELS)?;

        let init: Init = symbol(library, "cuInit")?;
        // SAFETY: flags 0, as in the driver's manual.
        check("cuInit", unsafe { init(0) })?;
        let device_get: DeviceGet = symbol(library, "cuDeviceGet")?;
        // SAFETY: the out pointer is a local.
        check("cuDeviceGet", unsafe { device_get(&mut device, 0) })?;
        let retain: Retain = symbol(library, "cuDevicePrimaryCtxRetain")?;
        // SAFETY: the out pointer is a local, the device is valid.
        check("cuDevicePrimaryCtxRetain", unsafe { retain(&mut context, device) })?;
        let set_current: SetCurrent = symbol(library, "cuCtxSetCurrent")?;
        // SAFETY: the context is retained.
        check("cuCtxSetCurrent", unsafe { set_current(context) })?;
        let load: LoadData = symbol(library, "cuModuleLoadData")?;
        // SAFETY: the image is a NUL-terminated text that outlives the call.
        check("cuModuleLoadData", unsafe { load(&mut module, image.as_ptr().cast()) })?;
        let get_function: GetFunction = symbol(library, "cuModuleGetFunction")?;
        let name = c"simgpu_fill";
        // SAFETY: the module is loaded, the name is NUL-terminated.
        check("cuModuleGetFunction", unsafe {
            get_function(&mut kernel, module, name.as_ptr())
        })?;
        let stream_create: StreamCreate = symbol(library, "cuStreamCreate")?;
        // SAFETY: the out pointer is a local; 1 is CU_STREAM_NON_BLOCKING.
        check("cuStreamCreate", unsafe { stream_create(&mut stream, 1) })?;
        let mut event = null_mut();
        let event_create: EventCreate = symbol(library, "cuEventCreate")?;
        // SAFETY: the out pointer is a local; 2 is CU_EVENT_DISABLE_TIMING, as in PyTorch.
        check("cuEventCreate", unsafe { event_create(&mut event, 2) })?;
        Ok(Launcher {
            library,
            launch: symbol(library, "cuLaunchKernel")?,
            synchronize: symbol(library, "cuStreamSynchronize")?,
            record: symbol(library, "cuEventRecord")?,
            wait_for_event: symbol(library, "cuEventSynchronize")?,
            event,
            kernel,
            stream,
        })
    }

    /// The stream that everything is launched on.
    pub fn stream(&self) -> *mut c_void {
        self.stream
    }

    /// The test kernel, of three arguments.
    pub fn kernel(&self) -> *mut c_void {
        self.kernel
    }

    /// A function of the driver. `F` must be its type.
    pub fn symbol<F: Copy + 'static>(&self, name: &str) -> Result<F> {
        symbol(self.library, name)
    }

    /// Launches `count` times, and waits for nothing.
    pub fn burst(&self, count: u32) -> Result<()> {
        self.launches(count, || 0)
    }

    /// Launches `count` times, and waits for the stream after each.
    pub fn burst_with_waits(&self, count: u32) -> Result<()> {
        // SAFETY: the stream is alive.
        self.launches(count, || unsafe { (self.synchronize)(self.stream) })
    }

    /// Launches `count` times, and records an event after each.
    pub fn burst_with_records(&self, count: u32) -> Result<()> {
        self.launches(count, || self.record_event())
    }

    /// Launches `count` times, and waits for an event that is recorded after each.
    pub fn burst_with_events(&self, count: u32) -> Result<()> {
        self.launches(count, || {
            let recorded = self.record_event();
            // SAFETY: the event is alive.
            recorded | unsafe { (self.wait_for_event)(self.event) }
        })
    }

    /// Waits for the stream.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        check("cuStreamSynchronize", unsafe { (self.synchronize)(self.stream) })
    }

    #[inline(always)]
    fn record_event(&self) -> c_int {
        // SAFETY: event and stream are alive.
        unsafe { (self.record)(self.event, self.stream) }
    }

    #[inline(always)]
    fn launches(&self, count: u32, after_each: impl Fn() -> c_int) -> Result<()> {
        let mut values = [0u64; 3];
        let [a, b, c] = &mut values;
        let mut arguments: [*mut c_void; 3] = [
            std::ptr::from_mut(a).cast(),
            std::ptr::from_mut(b).cast(),
            std::ptr::from_mut(c).cast(),
        ];
        let mut worst = 0;
        for _ in 0..count {
            let arguments = arguments.as_mut_ptr();
            // SAFETY: kernel and stream are live handles of this driver; the arguments fit
            // `simgpu_fill` with a count of 0, which touches no memory.
            worst |= unsafe { (self.launch)(self.kernel, 1, 1, 1, 32, 1, 1, 0, self.stream, arguments, null_mut()) };
            worst |= after_each();
        }
        ensure!(worst == 0, "the driver answered with errors (their bits: {worst})");
        Ok(())
    }
}

fn check(call: &str, result: c_int) -> Result<()> {
    ensure!(result == 0, "{call} answered {result}");
    Ok(())
}

/// A function of the library; the callers state its type from the public header.
fn symbol<F: Copy + 'static>(library: &'static Library, name: &str) -> Result<F> {
    // SAFETY: the library is never closed and the callers name the function's true type.
    let found = unsafe { library.get::<F>(name.as_bytes()) }.with_context(|| format!("the driver has no {name}"))?;
    Ok(*found)
}
