// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first device with the probes' kernels loaded, its streams and events.

use std::ffi::{CStr, CString, c_char};

use super::api::{Api, CudaError, Handle, MemoryLocation};
use super::memory::Memory;

/// The kernels' text.
const KERNELS: &str = include_str!("kernels.ptx");

/// The kernels' head, and its substitutes for drivers that no longer compile for it. The last two
/// name newer devices in the oldest PTX that knows them.
const HEAD: &str = ".version 7.0\n.target sm_70";
const HEADS: [&str; 4] = [
    HEAD,
    ".version 7.0\n.target sm_80",
    ".version 7.8\n.target sm_90",
    ".version 8.7\n.target sm_100",
];

/// Room for the log of the driver's compiler.
const LOG_BYTES: usize = 4096;

/// A stream that does not wait for the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub(super) Handle);

/// An event.
#[derive(Debug, Clone, Copy)]
pub struct Event(Handle);

/// A kernel.
#[derive(Debug, Clone, Copy)]
pub struct Kernel(Handle);

/// The device. Its context lives as long as the process.
pub struct Gpu {
    pub(super) api: Api,
    device: i32,
    context: Handle,
    module: Handle,
}

impl Gpu {
    /// Opens driver, device and context, and loads the kernels.
    pub fn open() -> Result<Gpu, CudaError> {
        let mut gpu = Gpu::without_kernels()?;
        gpu.module = gpu.load()?;
        Ok(gpu)
    }

    /// [`Gpu::open`] without kernels: no launch works.
    pub fn without_kernels() -> Result<Gpu, CudaError> {
        let api = Api::open()?;
        // SAFETY: flags 0, as the manual requires.
        unsafe { api.cuInit(0) }?;
        let (mut device, mut context) = (0, 0);
        // SAFETY: the out pointer is a local.
        unsafe { api.cuDeviceGet(&mut device, 0) }?;
        // SAFETY: the out pointer is a local, the device is valid.
        unsafe { api.cuDevicePrimaryCtxRetain(&mut context, device) }?;
        // SAFETY: the context is retained for the life of the process.
        unsafe { api.cuCtxSetCurrent(context) }?;
        Ok(Gpu {
            api,
            device,
            context,
            module: 0,
        })
    }

    /// Makes the context current in another thread.
    pub fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained for the life of the process.
        unsafe { self.api.cuCtxSetCurrent(self.context) }
    }

    fn load(&self) -> Result<Handle, CudaError> {
        let mut said = String::new();
        for head in HEADS {
            match self.load_as(&KERNELS.replacen(HEAD, head, 1)) {
                Ok(module) => return Ok(module),
                Err(error) => said = format!("{said}{}{error}", if said.is_empty() { "" } else { "; " }),
            }
        }
        Err(CudaError::Kernels(said))
    }

    fn load_as(&self, text: &str) -> Result<Handle, String> {
        /// `CU_JIT_ERROR_LOG_BUFFER` and its size.
        const OPTIONS: [u32; 2] = [5, 6];
        let image = CString::new(text).map_err(|error| error.to_string())?;
        let mut log = vec![0u8; LOG_BYTES];
        let values = [log.as_mut_ptr().expose_provenance(), LOG_BYTES];
        let mut module = 0;
        // SAFETY: the image ends with a zero and outlives the call; the options' values are a
        // buffer and its size, which outlive it too.
        let loaded = unsafe {
            self.api
                .cuModuleLoadDataEx(&mut module, image.as_ptr(), 2, OPTIONS.as_ptr(), values.as_ptr())
        };
        loaded.map(|()| module).map_err(|error| {
            let said = CStr::from_bytes_until_nul(&log)
                .map(CStr::to_string_lossy)
                .unwrap_or_default();
            format!("{error}: {}", said.trim().replace('\n', " / "))
        })
    }

    /// A kernel by name.
    pub fn kernel(&self, name: &str) -> Result<Kernel, CudaError> {
        let text = CString::new(name).map_err(|error| CudaError::Kernels(error.to_string()))?;
        let mut function = 0;
        // SAFETY: the module stays loaded, the name ends with a zero, the out pointer is a local.
        unsafe { self.api.cuModuleGetFunction(&mut function, self.module, text.as_ptr()) }?;
        Ok(Kernel(function))
    }

    /// The device's name.
    pub fn name(&self) -> Result<String, CudaError> {
        let mut name = [0u8; 256];
        // SAFETY: the buffer has the size that is passed.
        unsafe {
            self.api
                .cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), 256, self.device)
        }?;
        Ok(CStr::from_bytes_until_nul(&name)
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default())
    }

    /// The driver's version, as CUDA counts: 13000 is 13.0.
    pub fn driver_version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: the out pointer is a local.
        unsafe { self.api.cuDriverGetVersion(&mut version) }?;
        Ok(version)
    }

    /// Device memory, bytes.
    pub fn total_memory(&self) -> Result<usize, CudaError> {
        let mut bytes = 0;
        // SAFETY: the out pointer is a local, the device is valid.
        unsafe { self.api.cuDeviceTotalMem_v2(&mut bytes, self.device) }?;
        Ok(bytes)
    }

    /// Free device memory, bytes.
    pub fn free_memory(&self) -> Result<usize, CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the out pointers are locals.
        unsafe { self.api.cuMemGetInfo_v2(&mut free, &mut total) }?;
        Ok(free)
    }

    /// A device attribute by its number in the public header.
    pub fn attribute(&self, number: i32) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: the out pointer is a local, the device is valid.
        unsafe { self.api.cuDeviceGetAttribute(&mut value, number, self.device) }?;
        Ok(value)
    }

    /// Whether this is the simulated driver, which exports a symbol of its own.
    pub fn is_simulated(&self) -> bool {
        self.exports(c"simgpuKernelFunction")
    }

    /// Whether the driver exports a symbol.
    pub fn exports(&self, name: &CStr) -> bool {
        self.api.exports(name)
    }

    /// Whether the driver's lookup knows a name for programs built with this version of CUDA.
    pub fn finds(&self, name: &CStr, version: i32) -> Result<bool, CudaError> {
        let (mut address, mut status) = (0, 0);
        // SAFETY: the name ends with a zero, the out pointers are locals.
        let found = unsafe {
            self.api
                .cuGetProcAddress_v2(name.as_ptr(), &mut address, version, 0, &mut status)
        };
        match found {
            Ok(()) => Ok(address != 0),
            Err(error @ CudaError::Missing(_)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// A new stream.
    pub fn stream(&self) -> Result<Stream, CudaError> {
        /// `CU_STREAM_NON_BLOCKING`.
        const NON_BLOCKING: u32 = 1;
        let mut stream = 0;
        // SAFETY: the out pointer is a local.
        unsafe { self.api.cuStreamCreate(&mut stream, NON_BLOCKING) }?;
        Ok(Stream(stream))
    }

    /// A new event that takes times.
    pub fn event(&self) -> Result<Event, CudaError> {
        self.event_with(0)
    }

    /// A new event that takes no time.
    pub fn untimed_event(&self) -> Result<Event, CudaError> {
        /// `CU_EVENT_DISABLE_TIMING`.
        const UNTIMED: u32 = 2;
        self.event_with(UNTIMED)
    }

    fn event_with(&self, flags: u32) -> Result<Event, CudaError> {
        let mut event = 0;
        // SAFETY: the out pointer is a local.
        unsafe { self.api.cuEventCreate(&mut event, flags) }?;
        Ok(Event(event))
    }

    /// Ends an event.
    pub fn end_event(&self, event: Event) -> Result<(), CudaError> {
        // SAFETY: made by `event`; using it afterwards would be an error of the driver, no fault.
        unsafe { self.api.cuEventDestroy_v2(event.0) }
    }

    /// Ends a stream.
    pub fn end_stream(&self, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: made by `stream`; using it afterwards would be an error of the driver, no fault.
        unsafe { self.api.cuStreamDestroy_v2(stream.0) }
    }

    /// Records an event behind everything in the stream.
    pub fn record(&self, event: Event, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: both are handles of this driver.
        unsafe { self.api.cuEventRecord(event.0, stream.0) }
    }

    /// Whether the event has been reached.
    pub fn is_reached(&self, event: Event) -> Result<bool, CudaError> {
        // SAFETY: a handle of this driver.
        match unsafe { self.api.cuEventQuery(event.0) } {
            Ok(()) => Ok(true),
            // CUDA_ERROR_NOT_READY
            Err(CudaError::Failed { code: 600, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits for an event.
    pub fn wait_for_event(&self, event: Event) -> Result<(), CudaError> {
        // SAFETY: a handle of this driver.
        unsafe { self.api.cuEventSynchronize(event.0) }
    }

    /// Makes a stream wait for an event.
    pub fn order(&self, stream: Stream, after: Event) -> Result<(), CudaError> {
        // SAFETY: both are handles of this driver.
        unsafe { self.api.cuStreamWaitEvent(stream.0, after.0, 0) }
    }

    /// Device time between two reached events, ns. The driver's resolution is about 500 ns.
    pub fn between(&self, from: Event, to: Event) -> Result<f64, CudaError> {
        let mut milliseconds = 0.0f32;
        // SAFETY: the out pointer is a local, the others are handles of this driver.
        unsafe { self.api.cuEventElapsedTime(&mut milliseconds, from.0, to.0) }?;
        Ok(f64::from(milliseconds) * 1e6)
    }

    /// Waits for a stream.
    pub fn wait(&self, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: a handle of this driver.
        unsafe { self.api.cuStreamSynchronize(stream.0) }
    }

    /// Launches a kernel of the probes. `values` are its parameters; one of four bytes takes the
    /// low half (little-endian).
    pub fn launch(
        &self,
        kernel: Kernel,
        grid: u32,
        block: u32,
        values: &[u64],
        stream: Stream,
    ) -> Result<(), CudaError> {
        // The longest list of any kernel.
        let mut params = [0usize; 3];
        for (param, value) in params.iter_mut().zip(values) {
            *param = std::ptr::from_ref(value).expose_provenance();
        }
        // SAFETY: the kernel reads as many parameters as its text declares, which the callers give;
        // they live across the call.
        unsafe {
            self.api.cuLaunchKernel(
                kernel.0,
                grid,
                1,
                1,
                block,
                1,
                1,
                0,
                stream.0,
                params.as_ptr(),
                std::ptr::null(),
            )
        }
    }

    /// Copies between two allocations of the probes, in stream order.
    pub fn copy(&self, to: &Memory<'_>, from: &Memory<'_>, bytes: usize, stream: Stream) -> Result<(), CudaError> {
        let bytes = bytes.min(to.bytes()).min(from.bytes());
        let (target, source) = (to.address(), from.address());
        // Both allocations are that large, and outlive the stream's work because the probes wait
        // before they drop them.
        match (from.is_host(), to.is_host()) {
            // SAFETY: as above.
            (true, _) => unsafe { self.api.cuMemcpyHtoDAsync_v2(target, source, bytes, stream.0) },
            // SAFETY: as above.
            (false, true) => unsafe { self.api.cuMemcpyDtoHAsync_v2(target, source, bytes, stream.0) },
            // SAFETY: as above.
            (false, false) => unsafe { self.api.cuMemcpyDtoDAsync_v2(target, source, bytes, stream.0) },
        }
    }

    /// Sets the memory's first bytes, in stream order.
    pub fn fill(&self, memory: &Memory<'_>, value: u8, bytes: usize, stream: Stream) -> Result<(), CudaError> {
        let bytes = bytes.min(memory.bytes());
        // SAFETY: the allocation is that large.
        unsafe { self.api.cuMemsetD8Async(memory.address(), value, bytes, stream.0) }
    }

    /// Makes the stream write a word into pinned memory.
    pub fn write_word(&self, memory: &Memory<'_>, value: u32, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: an aligned word of an allocation that the device reaches.
        match unsafe { self.api.cuStreamWriteValue32_v2(stream.0, memory.address(), value, 0) } {
            // SAFETY: as above.
            Err(CudaError::Missing(_)) => unsafe {
                self.api.cuStreamWriteValue32(stream.0, memory.address(), value, 0)
            },
            other => other,
        }
    }

    /// Moves a part of managed memory, in stream order: by the newer function if there is one.
    pub fn prefetch(&self, part: Part, place: MemoryLocation, stream: Stream) -> Result<(), CudaError> {
        match self.prefetch_to_place(part, place, stream) {
            Err(CudaError::Missing(_)) => self.prefetch_to_number(part, place, stream),
            other => other,
        }
    }

    /// `cuMemPrefetchAsync_v2`.
    pub fn prefetch_to_place(&self, part: Part, place: MemoryLocation, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: a part of a managed allocation.
        unsafe { self.api.cuMemPrefetchAsync_v2(part.at, part.bytes, place, 0, stream.0) }
    }

    /// `cuMemPrefetchAsync`, the one that takes a device number.
    pub fn prefetch_to_number(&self, part: Part, place: MemoryLocation, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: a part of a managed allocation.
        unsafe {
            self.api
                .cuMemPrefetchAsync(part.at, part.bytes, place.number(), stream.0)
        }
    }

    /// `cuMemPrefetchBatchAsync`, all parts to one place.
    pub fn prefetch_batch(&self, parts: &[Part], place: MemoryLocation, stream: Stream) -> Result<(), CudaError> {
        let (at, sizes) = columns(parts);
        // SAFETY: arrays with the number of entries that is passed, one place, which begins with
        // entry 0.
        unsafe {
            self.api
                .cuMemPrefetchBatchAsync(at.as_ptr(), sizes.as_ptr(), parts.len(), &place, &0, 1, 0, stream.0)
        }
    }

    /// `cuMemDiscardBatchAsync`: the parts' contents may be lost.
    pub fn discard(&self, parts: &[Part], stream: Stream) -> Result<(), CudaError> {
        let (at, sizes) = columns(parts);
        // SAFETY: arrays with the number of entries that is passed.
        unsafe {
            self.api
                .cuMemDiscardBatchAsync(at.as_ptr(), sizes.as_ptr(), parts.len(), 0, stream.0)
        }
    }

    /// `cuMemDiscardAndPrefetchBatchAsync`, all parts to one place.
    pub fn discard_and_prefetch(&self, parts: &[Part], place: MemoryLocation, stream: Stream) -> Result<(), CudaError> {
        let (at, sizes) = columns(parts);
        // SAFETY: arrays with the number of entries that is passed, one place, which begins with
        // entry 0.
        unsafe {
            self.api.cuMemDiscardAndPrefetchBatchAsync(
                at.as_ptr(),
                sizes.as_ptr(),
                parts.len(),
                &place,
                &0,
                1,
                0,
                stream.0,
            )
        }
    }

    /// Sets a part's preferred location.
    pub fn prefer(&self, part: Part, place: MemoryLocation) -> Result<(), CudaError> {
        /// `CU_MEM_ADVISE_SET_PREFERRED_LOCATION`.
        const PREFER: u32 = 3;
        // SAFETY: a part of a managed allocation.
        match unsafe { self.api.cuMemAdvise_v2(part.at, part.bytes, PREFER, place) } {
            // SAFETY: as above.
            Err(CudaError::Missing(_)) => unsafe { self.api.cuMemAdvise(part.at, part.bytes, PREFER, place.number()) },
            other => other,
        }
    }

    /// Advises that a part is read-mostly, or no longer.
    pub fn read_mostly(&self, part: Part, yes: bool) -> Result<(), CudaError> {
        /// `CU_MEM_ADVISE_SET_READ_MOSTLY` and `CU_MEM_ADVISE_UNSET_READ_MOSTLY`.
        const ADVICE: [u32; 2] = [2, 1];
        let advice = ADVICE[usize::from(yes)];
        // SAFETY: a part of a managed allocation; the place is moot for this advice.
        match unsafe {
            self.api
                .cuMemAdvise_v2(part.at, part.bytes, advice, MemoryLocation::DEVICE)
        } {
            // SAFETY: as above.
            Err(CudaError::Missing(_)) => unsafe { self.api.cuMemAdvise(part.at, part.bytes, advice, 0) },
            other => other,
        }
    }
}

/// A part of a managed allocation, see [`Memory::part`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub(super) at: u64,
    pub(super) bytes: usize,
}

impl Part {
    /// Its address.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Its size, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn columns(parts: &[Part]) -> (Vec<u64>, Vec<usize>) {
    parts.iter().map(|part| (part.at, part.bytes)).unzip()
}
