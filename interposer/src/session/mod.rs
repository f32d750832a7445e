//! The guest's side of weft: what the hooks tell and ask.
//!
//! * The hooks call the functions of this file and nothing else of the session.
//! * None of them fails, panics, prints to stdout or keeps an error of weft's: whatever goes wrong inside, the job's call goes on to the driver.
//! * Only [`before_launch`] and [`before_stream_op`] may wait (the gate), each within a bound; only for a filler, never for a capturing stream.
//! * Nothing happens before [`initialised`]: the preload lands in every shell and helper a job starts.
//!
//! A stream is the handle that the plain (not per-thread) entry points take: 0 and 1 are the legacy default stream, 2 is the calling
//! thread's default stream. A hook of a `_ptsz` or `_ptds` entry point turns a null stream into [`PER_THREAD_STREAM`] before it tells it here.

use weft_kernel_id::KernelId;

/// A stream handle as the plain entry points take it.
pub type Stream = usize;

/// What a null stream means in a `_ptsz` or `_ptds` entry point (CU_STREAM_PER_THREAD in cuda.h).
pub const PER_THREAD_STREAM: Stream = 2;

/// What is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchKind {
    /// One kernel.
    Kernel,
    /// A graph; its identity stands where a kernel's hash does.
    Graph,
}

/// A launch that is about to go to the driver.
#[derive(Debug, Clone, Copy)]
pub struct LaunchInfo {
    /// Hash of the kernel's identity, or of the graph's. 0 where nothing is known (counted as unnamed).
    pub kernel_hash: u64,
    /// Where to.
    pub stream: Stream,
    /// What.
    pub kind: LaunchKind,
    /// Predicted GPU nanoseconds if the hook knows better than the session's table (a graph: the sum of its kernels); 0 = unknown.
    pub cost_hint: u64,
    /// The stream is being captured: nothing runs now, the launch is neither held nor timed.
    pub capturing: bool,
}

/// Goes from [`before_launch`] to [`after_launch`] of the same launch on the same thread.
#[must_use]
#[derive(Debug)]
pub struct Ticket {}

/// A stream-ordered call that is no launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamOp {
    /// Copy from host to device.
    CopyToDevice,
    /// Copy from device to host.
    CopyToHost,
    /// Copy within or between devices, or of unknown direction.
    CopyOnDevice,
    /// Memset.
    Memset,
    /// Everything else that has a place in a stream: event record and wait, host function, memory operation, asynchronous allocation.
    Other,
}

/// What a synchronising call that returned without error had waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synced {
    /// All work of the context.
    Context,
    /// All work of one stream. A blocking copy counts as this for its stream.
    Stream(Stream),
    /// An event: work up to it.
    Event,
}

/// The device a process uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// As `cuDeviceGetName` says.
    pub name: String,
    /// As `cuDeviceGetUuid` says, in hexadecimal.
    pub uuid: String,
    /// Bytes.
    pub memory: u64,
    /// As `cuDriverGetVersion` says.
    pub driver: u32,
}

/// `cuInit` succeeded in this process (called each time it does; cheap after the first).
pub fn initialised() {}

/// A launch is about to go to the driver. A filler may wait here, within a bound.
#[inline]
pub fn before_launch(_launch: &LaunchInfo) -> Ticket {
    Ticket {}
}

/// The launch came back from the driver with `result` (0 = success).
#[inline]
pub fn after_launch(_ticket: Ticket, _result: u32) {}

/// A stream-ordered call that is no launch is about to go to the driver. `bytes` is what it moves, 0 where it moves nothing.
#[inline]
pub fn before_stream_op(_op: StreamOp, _bytes: u64, _stream: Stream) {}

/// A synchronising call is about to go to the driver.
#[inline]
pub fn before_sync() {}

/// A synchronising call returned without error.
#[inline]
pub fn synced(_what: Synced) {}

/// A synchronising call returned and nothing of the process is left on the device.
#[inline]
pub fn idle_seen() {
    synced(Synced::Context);
}

/// The first launch of an identity. Slow path: may allocate, never waits.
pub fn kernel_seen(_hash: u64, _id: &KernelId) {}

/// A graph was instantiated or changed: the hashes of its kernels in launch order. Slow path.
pub fn graph_seen(_hash: u64, _kernels: &[u64]) {}

/// The device the process uses became known. Slow path.
pub fn device_seen(_device: &Device) {}

/// Device memory was taken (`delta` > 0) or given back, bytes.
pub fn memory_changed(_delta: i64) {}

/// A module or library was loaded: auto-tuners time kernels right after it.
pub fn module_loaded() {}

/// A capture began on `stream` (any mode). While any capture is on, the session makes no driver call of its own.
pub fn capture_began(_stream: Stream) {}

/// A capture on `stream` ended or was invalidated.
pub fn capture_ended(_stream: Stream) {}

/// A context is about to end (`cuCtxDestroy`, `cuDevicePrimaryCtxReset`, `cuDevicePrimaryCtxRelease`, in all versions): the session forgets what it made there.
pub fn context_ending() {}

/// A stream is about to be destroyed (`cuStreamDestroy` in all versions).
pub fn stream_ending(_stream: Stream) {}

/// Counts an internal trouble that a hook answered by passing the call through.
pub fn trouble() {}
