// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process's state for the driver's checkpoint, and calls of the client while its device memory
//! is away (`SIMGPU_CHECKPOINT`).
//!
//! Calls that touch the device wait until the process is unlocked. A wait for a stream or a context
//! returns at once while the process is locked, and ends the process with SIGSEGV while its memory
//! is away: on real drivers (580, 595) it did so 30 times of 30.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use simgpu_device::lock::lock;

/// A branch of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Branch {
    R580,
    R595,
    R610,
}

/// The setting for the open kernel module of branch 595.
const OPEN_595: &str = "595-open";

/// The setting.
fn setting() -> Option<String> {
    std::env::var("SIMGPU_CHECKPOINT").ok()
}

/// Whether the end of a process that was restored hangs its host.
pub(crate) fn hangs_hosts() -> bool {
    setting().as_deref() == Some(OPEN_595)
}

/// Whether the process launched a kernel of an NCCL group.
static GROUP: AtomicBool = AtomicBool::new(false);

/// Notes the launch of a kernel.
pub(crate) fn launched(name: &str) {
    if branch().is_some() && name.contains("ncclDevKernel") {
        GROUP.store(true, Ordering::Relaxed);
    }
}

/// Whether the process has an NCCL group.
pub(crate) fn has_group() -> bool {
    GROUP.load(Ordering::Relaxed)
}

/// The branch whose checkpoint is simulated; `None`: the driver has none, as before 570.
#[inline]
pub(crate) fn branch() -> Option<Branch> {
    static BRANCH: OnceLock<Option<Branch>> = OnceLock::new();
    let read = || match setting().as_deref() {
        Some("580") => Some(Branch::R580),
        Some("595" | OPEN_595) => Some(Branch::R595),
        Some("610") => Some(Branch::R610),
        Some("" | "off") | None => None,
        Some(other) => {
            eprintln!("simcuda: SIMGPU_CHECKPOINT={other} is not one of off, 580, 595, 595-open, 610; using off");
            None
        }
    };
    *BRANCH.get_or_init(read)
}

/// State of the process, with the numbers of `CUprocessState`, and one while a lock is being taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessState {
    Running = 0,
    Locked = 1,
    Checkpointed = 2,
    Failed = 3,
    Locking = 100,
}

static STATE: Mutex<ProcessState> = Mutex::new(ProcessState::Running);
static CHANGED: Condvar = Condvar::new();
/// Threads in calls that touch the device.
static INSIDE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// The present state.
pub(crate) fn state() -> ProcessState {
    *lock(&STATE)
}

/// Changes the state; waiting calls look again.
pub(crate) fn set(state: ProcessState) {
    *lock(&STATE) = state;
    CHANGED.notify_all();
}

/// Whether no thread is in a call that touches the device.
pub(crate) fn is_empty() -> bool {
    INSIDE.load(Ordering::SeqCst) == 0
}

/// Calls that only read or set the thread's own state, or describe the device.
fn needs_no_device(name: &str) -> bool {
    const BEGINNINGS: [&str; 8] = [
        "cuInit",
        "cuDriverGet",
        "cuDeviceGet",
        "cuGet",
        "cuCtxGet",
        "cuCtxSet",
        "cuCtxPush",
        "cuCtxPop",
    ];
    const OTHERS: [&str; 2] = ["cuCheckpoint", "cuThreadExchange"];
    let begins = |beginning: &&str| name.starts_with(*beginning);
    BEGINNINGS.iter().chain(&OTHERS).any(begins)
}

/// Whether a call waits for work.
fn waits(name: &str) -> bool {
    name.starts_with("cuStreamSynchronize") || name.starts_with("cuCtxSynchronize")
}

/// A call of the client.
pub(crate) enum Entry {
    /// It goes on, until this value is dropped.
    Goes(Inside),
    /// It returns at once.
    Returns,
}

/// A call under way.
pub(crate) struct Inside(bool);

impl Drop for Inside {
    fn drop(&mut self) {
        if self.0 {
            let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
            INSIDE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Begins a call.
#[inline]
pub(crate) fn enter(name: &str) -> Entry {
    match branch() {
        None => Entry::Goes(Inside(false)),
        Some(_) => enter_counted(name),
    }
}

fn enter_counted(name: &str) -> Entry {
    // A call inside a call belongs to it.
    let is_inner = DEPTH.try_with(|depth| depth.get() > 0).unwrap_or(true);
    if is_inner || needs_no_device(name) {
        return Entry::Goes(Inside(false));
    }
    let mut state = lock(&STATE);
    loop {
        match *state {
            ProcessState::Running => {
                // Under the lock: a thread that takes the process's lock sees it.
                INSIDE.fetch_add(1, Ordering::SeqCst);
                let _ = DEPTH.try_with(|depth| depth.set(1));
                return Entry::Goes(Inside(true));
            }
            ProcessState::Locked if waits(name) => return Entry::Returns,
            ProcessState::Checkpointed if waits(name) => fault(name),
            _ => {}
        }
        state = CHANGED.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Ends the process as a fault inside the driver does.
#[allow(unsafe_code)]
fn fault(name: &str) -> ! {
    eprintln!(
        "simcuda[{}] {name} while the device's memory is away",
        std::process::id()
    );
    // SAFETY: the default action takes no function.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    loop {
        // SAFETY: takes no pointers.
        unsafe { libc::raise(libc::SIGSEGV) };
    }
}
