// SPDX-License-Identifier: MIT OR Apache-2.0
//! Movable backing: device memory that weft can move to the host and back while the job waits
//! (`weft pause --evict`).
//!
//! * It is for jobs that ask for it (`--backing movable`), in a process on one device, and for jobs
//!   whose broker allows the driver's checkpoint ([`checkpoint`]). In other jobs each function
//!   returns at once.
//! * `cuMemAlloc` of 2 MiB and more takes reserved addresses with mapped physical memory
//!   ([`blocks`]), and so do most stream-ordered allocations ([`kept`]). All other memory is plain
//!   and stays on the device.
//! * The job sees plain memory, except that the driver makes no IPC handle of it.
//! * While memory is away, calls that use the device wait ([`gate`]). The rest of the program runs.
//!
//! | file | contains |
//! | --- | --- |
//! | `gate` | threads in calls, and where they wait |
//! | `blocks` | movable memory, and its moves |
//! | `kept` | movable memory that was freed in stream order |
//! | `host_copy` | the contents of a block on the host |
//! | `checkpoint` | the second way: all plain memory of a job, by the driver |
//! | `mover` | the thread that moves memory |

pub mod blocks;
mod checkpoint;
pub mod gate;
mod host_copy;
pub mod kept;
mod mover;

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use self::kept::{PoolKey, RestingBlocks};
pub use self::mover::{ending, shared};
use crate::client::{backing_mode, link};
use crate::driver::abi::{CuContext, CuDevicePtr};
use crate::driver::stream::Stream;
use crate::lock::lock;
use crate::throttle::DeviceNumber;

/// Contexts that the job made: their work may use movable memory.
static CONTEXTS: Mutex<Vec<CuContext>> = Mutex::new(Vec::new());

/// Bytes of stream-ordered memory, of pools and of graphs, which stay on the device.
pub static ORDERED: AtomicI64 = AtomicI64::new(0);
/// Bytes that the job mapped itself, which stay on the device.
pub static MAPPED: AtomicI64 = AtomicI64::new(0);

/// Calls that hand memory out, or change it, in a way that a move would break.
const HANDS_OUT: [&str; 6] = [
    "cuMemGetHandleForAddressRange",
    "cuMemRetainAllocationHandle",
    "cuMulticastBindAddr",
    "cuPointerSetAttribute",
    "cuGreenCtxCreate",
    "cuGraphicsMapResources",
];

/// Notes that the job has got a function.
pub fn bound(base: &str) {
    if HANDS_OUT.contains(&base) {
        shared();
    }
    checkpoint::bound(base);
}

/// Whether the job's memory may move, in whichever way.
fn moves() -> bool {
    backing_mode::movable() || checkpoint::counts()
}

/// Whether an allocation of this size is to be movable.
pub fn wants(bytes: u64) -> bool {
    backing_mode::movable() && bytes >= blocks::LEAST_BYTES && link::only().is_some()
}

/// Whether a stream-ordered allocation of this size is to be movable: not if whole pieces of 2 MiB
/// would waste much of them.
pub fn wants_ordered(bytes: u64) -> bool {
    wants(bytes) && kept::serves(blocks::room(bytes), bytes)
}

/// Takes movable memory, for a pool or none. `None`: it has to be plain memory.
pub fn take(bytes: u64, at: DeviceNumber, pool: Option<PoolKey>) -> Option<CuDevicePtr> {
    let taken = blocks::take(bytes, at, pool)?;
    if let Some(link) = link::only() {
        mover::start(link);
    }
    Some(taken)
}

/// Counts memory that stays on the device.
pub fn stays(which: &AtomicI64, delta: i64) {
    if backing_mode::movable() {
        which.fetch_add(delta, Ordering::Relaxed);
        if let Some(link) = link::only() {
            mover::start(link);
        }
    }
}

/// Notes a new context.
pub fn context_made(context: CuContext) {
    if moves() {
        let mut contexts = lock(&CONTEXTS);
        if !contexts.contains(&context) {
            contexts.push(context);
        }
        drop(contexts);
        blocks::context_made(context);
        if let Some(link) = link::only().filter(|_| checkpoint::counts()) {
            mover::start(link);
        }
    }
}

/// Notes that a context may be about to end.
pub fn context_ending(context: CuContext) -> RestingBlocks {
    match backing_mode::movable() {
        true => kept::context_ending(context),
        false => RestingBlocks::default(),
    }
}

/// Notes whether that context has ended.
pub fn context_left(context: CuContext, resting: RestingBlocks, ended: bool) {
    if backing_mode::movable() {
        kept::context_left(context, resting, ended);
    }
}

/// Frees the memory of an ended context.
pub fn context_ended(context: CuContext) {
    if moves() {
        let mut contexts = lock(&CONTEXTS);
        contexts.retain(|other| *other != context);
        let other = contexts.first().copied().unwrap_or(0);
        drop(contexts);
        blocks::context_ended(context, other);
    }
}

/// Notes that a stream is about to end.
pub fn stream_ending(stream: Stream) {
    if backing_mode::movable() {
        kept::stream_ending(stream);
    }
}

/// Forgets all movable memory, in a forked child: it is the parent's.
pub fn forget() {
    mover::forget();
    checkpoint::forget();
    kept::forget();
    ORDERED.store(0, Ordering::Relaxed);
    MAPPED.store(0, Ordering::Relaxed);
    // A thread of the parent may hold the lock for ever.
    if let Ok(mut contexts) = CONTEXTS.try_lock() {
        contexts.clear();
    }
}

/// All contexts whose work must end before memory leaves.
fn contexts() -> Vec<CuContext> {
    let mut contexts = blocks::contexts();
    contexts.extend(kept::contexts());
    contexts.extend(lock(&CONTEXTS).iter());
    contexts.sort_unstable();
    contexts.dedup();
    contexts
}
