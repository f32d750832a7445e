// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's process checkpoint (CUDA 12.8, driver 570 and newer) as the second way to move a
//! job's memory: all of the process's plain memory, context included, to host memory that the
//! driver takes in the job.
//!
//! * Only if the job's broker allows it. That is asked once, before the first call that could use
//!   the device: from then on calls are counted ([`super::gate`]).
//! * The mover calls for its own process, so neither another process nor its stop is in the way.
//! * All threads are outside the driver then. A thread that waits for a stream while the memory is
//!   away would end the process inside the driver.
//! * A step of the driver cannot be called off. One that takes too long is shown as `stuck`, and
//!   one that fails half-way is never repeated: the driver loses such a job.

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use weft_protocol::Ns;
use weft_protocol::eviction::{CheckpointBar, Obstacle};
use weft_protocol::kernel_module::KernelModule;

use crate::client::link::{self, BrokerLink};
use crate::client::{backing_mode, clock};
use crate::driver::abi::{CheckpointArguments, CuResult};
use crate::driver::calls;
use crate::report;
use crate::throttle::{self, DeviceNumber};

/// `CU_PROCESS_STATE_RUNNING`.
const RUNNING: c_int = 0;

/// Longest wait of the driver for the job's work, ms. There is none left.
const LOCK_TIMEOUT_MS: u32 = 5_000;

/// Time of a step besides the copy, ns, and a quarter of the slowest rate that was seen, bytes a
/// microsecond.
const STEP_NS: Ns = 20_000_000_000;
const SLOWEST: u64 = 275;

/// Calls that share something with other processes, which the driver does not move.
const SHARES: [&str; 10] = [
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle",
    "cuIpcGetEventHandle",
    "cuIpcOpenEventHandle",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemPoolExportToShareableHandle",
    "cuMemPoolImportFromShareableHandle",
    "cuImportExternalMemory",
    "cuImportExternalSemaphore",
];

static SHARED: AtomicBool = AtomicBool::new(false);

/// Whether a step failed half-way.
static STUCK: AtomicBool = AtomicBool::new(false);

static COUNTS: AtomicU8 = AtomicU8::new(UNDECIDED);
const UNDECIDED: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// Whether this job's memory may move by checkpoint, so that its calls are counted.
pub fn counts() -> bool {
    match COUNTS.load(Ordering::Acquire) {
        UNDECIDED => decide(),
        decided => decided == YES,
    }
}

#[cold]
fn decide() -> bool {
    let allows = |link: &BrokerLink| link.is_attached() && link.lane.eviction.allows_checkpoint();
    let may = !backing_mode::movable() && link::only().is_some_and(allows);
    let decided = COUNTS.compare_exchange(
        UNDECIDED,
        if may { YES } else { NO },
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    decided.map_or_else(|other| other == YES, |_| may)
}

/// Leaves a forked child as it is: the memory is its parent's.
pub fn forget() {
    COUNTS.store(NO, Ordering::Release);
}

/// Notes that the job has got a function.
pub fn bound(base: &str) {
    if SHARES.contains(&base) {
        SHARED.store(true, Ordering::Release);
    }
}

/// Why the driver's checkpoint is not used. `shared`: the job handed its memory out.
pub fn bar(link: &BrokerLink, at: DeviceNumber, shared: bool) -> Option<CheckpointBar> {
    let module = || KernelModule::of_system().is_some_and(|module| module.hangs_after_checkpoint());
    let group = || KernelModule::of_system().is_none_or(|module| module.loses_groups());
    let bars: [(CheckpointBar, &dyn Fn() -> bool); 10] = [
        (CheckpointBar::Stuck, &|| STUCK.load(Ordering::Acquire)),
        (CheckpointBar::NotAllowed, &|| !link.lane.eviction.allows_checkpoint()),
        (CheckpointBar::Devices, &|| !throttle::is_on_one_device()),
        (CheckpointBar::Managed, &|| {
            backing_mode::managed() || throttle::own_managed(at) > 0
        }),
        (CheckpointBar::Shared, &|| shared || SHARED.load(Ordering::Acquire)),
        (CheckpointBar::Mps, &|| link.settings.device_share.mps_server.is_some()),
        (CheckpointBar::Mig, &|| is_mig(at)),
        (CheckpointBar::Module, &module),
        (CheckpointBar::Group, &|| throttle::has_collectives() && group()),
        (CheckpointBar::DriverLacks, &|| !is_running()),
    ];
    bars.into_iter().find(|(_, bars)| bars()).map(|(bar, _)| bar)
}

/// Whether a device is a MIG instance, by its name (`... MIG 1g.10gb`).
fn is_mig(at: DeviceNumber) -> bool {
    let mut name = [0u8; 128];
    let Some(device) = throttle::ordinal(at) else {
        return false;
    };
    // SAFETY: the buffer has the stated length.
    let _ = unsafe { calls::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), 128, device) };
    name.windows(5).any(|part| part == b" MIG ")
}

fn own() -> c_int {
    c_int::try_from(std::process::id()).unwrap_or(0)
}

/// Whether the driver has such calls, and answers that this process runs.
fn is_running() -> bool {
    let mut state = -1;
    // SAFETY: valid out-parameter.
    let asked = unsafe { calls::cuCheckpointProcessGetState(own(), &mut state) };
    asked.ok() && state == RUNNING
}

type Step = unsafe fn(c_int, *const CheckpointArguments) -> CuResult;

/// Makes a step, which is late after the time that `bytes` may take.
fn make(link: &BrokerLink, step: Step, timeout_ms: u32, bytes: u64) -> CuResult {
    let mut arguments = [0u32; 16];
    arguments[0] = timeout_ms;
    let slot = &link.lane.eviction;
    let copy = bytes.saturating_mul(1_000) / SLOWEST;
    slot.set_due(clock::now().saturating_add(STEP_NS).saturating_add(copy));
    // SAFETY: the structure of each step has that size, and zero stands for no wish.
    let made = unsafe { step(own(), &arguments) };
    slot.set_due(0);
    made
}

fn refused(error: CuResult) -> Obstacle {
    Obstacle::Driver(u64::from(error.0))
}

fn stuck() -> Obstacle {
    STUCK.store(true, Ordering::Release);
    Obstacle::Barred(CheckpointBar::Stuck)
}

/// Moves all memory of the process, about `bytes`, to the host. No thread is in the driver, and no
/// work is left. If that fails, the process runs as before, unless the driver is stuck.
pub fn leave(link: &BrokerLink, bytes: u64) -> Result<(), Obstacle> {
    let locked = make(link, calls::cuCheckpointProcessLock, LOCK_TIMEOUT_MS, 0);
    if !locked.ok() {
        return Err(refused(locked));
    }
    let left = make(link, calls::cuCheckpointProcessCheckpoint, 0, bytes);
    if left.ok() {
        return Ok(());
    }
    match make(link, calls::cuCheckpointProcessUnlock, 0, 0) {
        CuResult::SUCCESS => Err(refused(left)),
        _ => Err(stuck()),
    }
}

/// Brings all memory back. The broker has granted the bytes: without room the job is lost.
pub fn come_back(link: &BrokerLink, bytes: u64) -> Result<(), Obstacle> {
    for step in [
        calls::cuCheckpointProcessRestore as Step,
        calls::cuCheckpointProcessUnlock,
    ] {
        let made = make(link, step, 0, bytes);
        if !made.ok() {
            report::always(&format!(
                "the driver could not bring this job's memory back (error {}): the job is lost, and its calls end with an error",
                made.0
            ));
            return Err(stuck());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_shares_with_other_processes_is_noted() {
        bound("cuMemAlloc");
        assert!(!SHARED.load(Ordering::Acquire));
        bound("cuIpcGetMemHandle");
        assert!(SHARED.swap(false, Ordering::AcqRel));
    }
}
