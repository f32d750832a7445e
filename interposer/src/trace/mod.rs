//! Trace mode: every launch, copy and wait of the job's marked steps is recorded
//! (`WEFT_MODE=trace`, `WEFT_TRACE=FILE`).
//!
//! It is a mode of its own. The process has no session then: it asks no broker, takes no samples
//! and fills no gaps. [`hooks`] lie around the usual ones, and are bound in this mode alone, so
//! that in any other mode nothing of this is on any call's way.
//!
//! * A step begins where the job calls `cuProfilerStart` (in PyTorch
//!   `torch.cuda.profiler.start()`), which goes on to the driver as ever, and lasts until the next
//!   one or `cuProfilerStop`. What comes before the first is not recorded.
//! * Each piece of work is put between two events ([`recorder`]). That is heavy (some microseconds
//!   a launch), and its host time is kept out of the gaps that are recorded; the job is slower
//!   meanwhile, what it does is unchanged.
//! * Records go to `FILE.PID.raw` as they come ([`writer`]): memory is bounded, and a killed job
//!   leaves what it did. `weft profile --trace` makes the trace.
//! * Whatever goes wrong here, the job's call goes on to the driver. A full disk, or one that does
//!   not keep up, ends the recording with one line; a thread of our own waits for it.
//!
//! A launch into a capture is not recorded, and while anybody captures no event of ours is
//! recorded: work then has no time. Waits by polling (`cuStreamQuery`, `cuEventQuery`) are host
//! time; so are copies of arrays and copies in batches.

pub mod hooks;
mod processor;
pub(super) mod recorder;
pub(super) mod writer;

use std::path::PathBuf;
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use weft_kernel_id::KernelId;
use weft_trace_format::raw::{MOST_NODES, Record};

use self::recorder::Recorder;
use crate::driver::device::Device;
use crate::driver::events::EventCalls;
use crate::process;

/// The recorder of this process, once there is one. Never freed.
static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(ptr::null_mut());

/// Where records go to, if this process is to be recorded. Read once: hooks are bound by it.
static FILE: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let tracing = std::env::var_os("WEFT_MODE").is_some_and(|mode| mode == "trace");
    let file = std::env::var_os("WEFT_TRACE").filter(|file| !file.is_empty());
    tracing.then_some(file).flatten().map(PathBuf::from)
});

/// Whether this process is in trace mode.
pub fn on() -> bool {
    FILE.is_some()
}

fn recorder() -> Option<&'static Recorder> {
    // SAFETY: null, or a leaked box that `begin` stored and nothing ever frees.
    unsafe { RECORDER.load(Ordering::Acquire).as_ref() }
}

/// The driver is initialised: records can come. False if none will.
#[cold]
pub fn begin(driver: EventCalls) -> bool {
    let Some(file) = FILE.as_ref() else { return false };
    if !driver.has_times() {
        log::warn!("nothing is recorded: this driver has no events with times");
        return false;
    }
    let mut own = file.clone().into_os_string();
    own.push(format!(".{}.raw", std::process::id()));
    match writer::Writer::create(PathBuf::from(own)) {
        Ok(writer) => {
            process::watch_end(at_end);
            let recorder = Box::leak(Box::new(Recorder::new(driver, writer)));
            RECORDER.store(recorder, Ordering::Release);
            true
        }
        Err(why) => {
            log::warn!("nothing is recorded: {why}");
            false
        }
    }
}

/// At the process's own end. No driver call: the driver may be gone.
extern "C" fn at_end() {
    if let Some(recorder) = recorder() {
        recorder.farewell();
    }
}

/// In a forked child: the file is its parent's. If it initialises the driver it gets one of its
/// own.
pub fn forget() {
    RECORDER.store(ptr::null_mut(), Ordering::Release);
}

/// The first launch of an identity.
pub fn kernel_seen(hash: u64, id: &KernelId) {
    if let Some(recorder) = recorder() {
        recorder.write(&Record::Kernel { hash, id: id.clone() });
    }
}

/// A graph was instantiated or changed.
pub fn graph_seen(hash: u64, kernels: &[u64]) {
    if let Some(recorder) = recorder() {
        let kernels = kernels.iter().take(MOST_NODES).copied().collect();
        recorder.write(&Record::Graph { hash, kernels });
    }
}

/// The device the process uses became known.
pub fn device_seen(device: &Device) {
    if let Some(recorder) = recorder() {
        recorder.write(&Record::Device(weft_profiles::Gpu {
            name: device.name.clone(),
            uuid: device.uuid.clone(),
            memory: device.memory,
            driver: device.driver,
        }));
    }
}

/// A context may be about to end, and all events in it: what has happened is read.
pub fn context_ending() {
    if let Some(recorder) = recorder() {
        recorder.read_on();
    }
}

/// A context has ended; 0: some context.
pub fn context_ended(context: usize) {
    if let Some(recorder) = recorder() {
        recorder.forget(context);
    }
}
