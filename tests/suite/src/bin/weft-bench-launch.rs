//! Measures what one launch costs the thread that makes it. `scripts/bench launch` runs one of these for each configuration and has them
//! measure in turn: each line on stdin, `burst N` or `sync N`, is one round of N launches, answered with a line `NANOSECONDS` (a launch, on average).
//!
//! The driver is opened by name and called through pointers, as the CUDA runtime does, so that whatever is preloaded is measured and nothing else is.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io::{BufRead, Write};
use std::ptr::null_mut;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use libloading::Library;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type LoadData = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
type GetFunction = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
type StreamCreate = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
type Synchronize = unsafe extern "C" fn(*mut c_void) -> c_int;
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

/// The calls that a round makes.
struct Driver {
    launch: Launch,
    synchronize: Synchronize,
    kernel: *mut c_void,
    stream: *mut c_void,
}

fn main() -> Result<()> {
    let driver = open()?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (what, count) = line.split_once(' ').context("expected `burst N` or `sync N`")?;
        let count: u32 = count.parse().context("expected a number of launches")?;
        ensure!(count > 0, "expected at least one launch");
        let nanoseconds = match what {
            "burst" => round::<false>(&driver, count)?,
            "sync" => round::<true>(&driver, count)?,
            other => bail!("unknown round: {other}"),
        };
        writeln!(out, "{nanoseconds:.2}")?;
        out.flush()?;
    }
    Ok(())
}

/// One round; nanoseconds a launch, its synchronisation included where there is one.
fn round<const SYNC: bool>(driver: &Driver, count: u32) -> Result<f64> {
    let mut values = [0u64; 3];
    let [a, b, c] = &mut values;
    let mut arguments: [*mut c_void; 3] = [
        std::ptr::from_mut(a).cast(),
        std::ptr::from_mut(b).cast(),
        std::ptr::from_mut(c).cast(),
    ];
    let mut worst = 0;
    let begin = Instant::now();
    for _ in 0..count {
        // SAFETY: kernel and stream are live handles of this driver; the arguments fit `simgpu_fill` with a count of 0, which touches no memory.
        worst |= unsafe {
            (driver.launch)(
                driver.kernel,
                1,
                1,
                1,
                32,
                1,
                1,
                0,
                driver.stream,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        };
        if SYNC {
            // SAFETY: the stream is alive.
            worst |= unsafe { (driver.synchronize)(driver.stream) };
        }
    }
    let elapsed = begin.elapsed();
    // SAFETY: the stream is alive. Outside the time: a burst's cost is that of its launches.
    worst |= unsafe { (driver.synchronize)(driver.stream) };
    ensure!(worst == 0, "the driver answered with errors (their bits: {worst})");
    Ok(elapsed.as_nanos() as f64 / f64::from(count))
}

/// Opens device, context, module, kernel and stream through `libcuda.so.1`.
fn open() -> Result<Driver> {
    // SAFETY: a driver's constructors are what any CUDA program runs.
    let library = unsafe { Library::new("libcuda.so.1") }.context("no libcuda.so.1 on the library path")?;
    // Never closed: its threads and handlers must outlive us.
    let library: &'static Library = Box::leak(Box::new(library));

    let mut context = null_mut();
    let mut device = 0;
    let mut module = null_mut();
    let mut kernel = null_mut();
    let mut stream = null_mut();
    let image = std::ffi::CString::new(weft_tests::gpu::KERNELS)?;

    let init: Init = symbol(library, "cuInit")?;
    // SAFETY: as the driver's manual says: flags 0.
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
    // SAFETY: the module is loaded, the name is NUL-terminated.
    check("cuModuleGetFunction", unsafe {
        get_function(&mut kernel, module, c"simgpu_fill".as_ptr())
    })?;
    let stream_create: StreamCreate = symbol(library, "cuStreamCreate")?;
    // SAFETY: the out pointer is a local; 1 is CU_STREAM_NON_BLOCKING.
    check("cuStreamCreate", unsafe { stream_create(&mut stream, 1) })?;
    Ok(Driver {
        launch: symbol(library, "cuLaunchKernel")?,
        synchronize: symbol(library, "cuStreamSynchronize")?,
        kernel,
        stream,
    })
}

fn check(call: &str, result: c_int) -> Result<()> {
    ensure!(result == 0, "{call} answered {result}");
    Ok(())
}

/// A function of the driver. `F` must be the function's type; each use above states it from the public header.
fn symbol<F: Copy + 'static>(library: &'static Library, name: &str) -> Result<F> {
    // SAFETY: the library is never closed and the callers name the function's true type.
    let found = unsafe { library.get::<F>(name.as_bytes()) }.with_context(|| format!("the driver has no {name}"))?;
    Ok(*found)
}
