// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace mode: records every launch, copy and wait of the job's marked steps (`WEFT_MODE=trace`,
//! `WEFT_TRACE=FILE`).
//!
//! The process then has no session: no broker, no samples, no filled gaps. Its hooks
//! (`hooks/recorded.rs`) are bound only in this mode and record by [`around`].
//!
//! * A step lasts from `cuProfilerStart` (PyTorch: `torch.cuda.profiler.start()`), which still goes
//!   to the driver, to the next one or `cuProfilerStop`. Earlier calls are not recorded.
//! * Each piece of work is between two events ([`mod@recorder`]), which cost some microseconds per
//!   launch. The job is slower; that host time is kept out of the recorded gaps.
//! * Records go to `FILE.PID.raw` as they come ([`writer`]): memory is bounded, and a killed job
//!   leaves its records. `weft profile --trace` makes the trace.
//! * After any trouble the job's call still reaches the driver. A full or slow disk ends the
//!   recording with one line; only a thread of weft's waits for it.
//!
//! Launches into a capture are not recorded, and during any capture work has no time. Polling waits
//! (`cuStreamQuery`, `cuEventQuery`) count as host time. Copies of arrays and batched copies count
//! as host time too.

mod processor;
pub(super) mod recorder;
pub(super) mod writer;

use std::cell::Cell;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use weft_kernel_id::KernelId;
use weft_trace_format::raw::{MOST_NODES, Record};

pub use self::recorder::RecordedCall;
use self::recorder::Recorder;
use crate::client::clock;
use crate::client::settings::Purpose;
use crate::driver::abi::CuResult;
use crate::driver::device::Device;
use crate::driver::events::EventCalls;
use crate::internal_error::guarded;

/// The recorder of this process, once made. Never freed.
static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(ptr::null_mut());

/// Whether this process is in trace mode.
pub fn on() -> bool {
    Purpose::of_process() == Purpose::Trace
}

thread_local! {
    /// Whether a recorded call is under way on this thread: a driver's calls to itself do not
    /// count.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn recorder() -> Option<&'static Recorder> {
    // SAFETY: null, or a leaked box that `begin` stored and no code frees.
    unsafe { RECORDER.load(Ordering::Acquire).as_ref() }
}

/// Starts the recorder after the driver's initialisation. False if nothing will be recorded.
#[cold]
pub fn begin(driver: EventCalls) -> bool {
    if !driver.has_times() {
        log::warn!("nothing is recorded: this driver has no events with times");
        return false;
    }
    let mut own = std::env::var_os("WEFT_TRACE").unwrap_or_default();
    own.push(format!(".{}.raw", std::process::id()));
    match writer::Writer::create(PathBuf::from(own)) {
        Ok(writer) => {
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

/// Finishes the recording at process exit. No driver call: the driver may be gone.
pub fn farewell() {
    if let Some(recorder) = recorder() {
        recorder.farewell();
    }
}

/// Drops the recorder in a forked child, because the file is the parent's. If the child initialises
/// the driver, it gets a new recorder.
pub fn forget() {
    RECORDER.store(ptr::null_mut(), Ordering::Release);
}

/// Whether a step was marked: calls before the first mark are not recorded.
pub fn is_marked() -> bool {
    recorder().is_some_and(Recorder::is_marked)
}

/// Makes a call and records it if `describe` returns a record.
pub fn around(describe: impl FnOnce() -> Option<RecordedCall>, call: impl FnOnce() -> CuResult) -> CuResult {
    let entered = clock::now();
    let Some(recorder) = recorder().filter(|_| !INSIDE.get()) else {
        return call();
    };
    let ticket = guarded(|| {
        let call = describe().filter(|call| recorder.wants(call))?;
        recorder.before(call, entered, processor::preempted(entered))
    });
    INSIDE.set(true);
    let called = clock::now();
    let result = call();
    let returned = clock::now();
    INSIDE.set(false);
    if let Some(Some(ticket)) = ticket {
        guarded(|| recorder.after(ticket, called, returned, result.ok()));
        processor::went_on(clock::now());
    }
    result
}

/// Records the first launch of an identity.
pub fn kernel_seen(hash: u64, id: &KernelId) {
    if let Some(recorder) = recorder() {
        recorder.write(&Record::Kernel { hash, id: id.clone() });
    }
}

/// Records a graph that was instantiated or changed.
pub fn graph_seen(hash: u64, kernels: &[u64]) {
    if let Some(recorder) = recorder() {
        let kernels = kernels.iter().take(MOST_NODES).copied().collect();
        recorder.write(&Record::Graph { hash, kernels });
    }
}

/// Records the device that the process uses.
pub fn device_seen(device: &Device) {
    if let Some(recorder) = recorder() {
        recorder.write(&Record::Device(weft_profiles::GpuIdentity {
            name: device.name.clone(),
            uuid: device.uuid.clone(),
            memory: device.memory,
            driver: device.driver,
        }));
    }
}

/// Reads the finished events before a context may end and take them with it.
pub fn context_ending() {
    if let Some(recorder) = recorder() {
        recorder.read_on();
    }
}

/// Handles a context that has ended; 0: an unknown context.
pub fn context_ended(context: usize) {
    if let Some(recorder) = recorder() {
        recorder.forget(context);
    }
}
