// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed backing: managed memory in place of the device memory that a job asks for. So jobs that
//! together exceed the device can run.
//!
//! * It is for jobs that ask for it (`--backing managed`), and with `auto` for jobs whose memory
//!   does not fit next to the other jobs' memory. In other jobs each function returns at once.
//! * The job sees device memory: attributes, free memory and range sizes are those of `cuMemAlloc`.
//!   Handles for other processes are impossible: the driver refuses them, and weft reports that
//!   once.
//! * The following stays device memory, is counted, and is logged once:
//!   * all memory on devices without concurrent managed access;
//!   * allocations that the driver refused for another reason than lack of memory;
//!   * virtual memory management (`cuMemCreate`, `cuMemMap`: no managed memory in reserved ranges);
//!   * shared pools, arrays, graphs' allocation nodes.
//! * A job may take `max(total - reserve, declared)` of the device (see [`capacity`]); above that
//!   it gets "out of memory".
//!
//! | file | contains |
//! | --- | --- |
//! | `backing` | taking and giving back managed memory, also in stream order |
//! | `capacity` | the bytes of a device that a job may take, and has |
//! | `ranges` | the managed ranges that the job holds |
//! | `pool` | freed blocks kept for reuse; usage of pools |
//! | `pointer_attributes` | the answers that the job gets about its memory |
//! | `access_tracker` | the memory that launches use |
//! | `period_detector` | the order of use, and when it repeats |
//! | `template_learner` | stage 1: from touched memory to templates |
//! | `residency_probe` | the memory that a launch touched, by the host's page table |
//! | `evicted` | evicted granules, and launches that wait for them |
//! | `mem_advise` | advice and prefetches |
//! | `migration_thread` | the thread that carries out page operations |
//!
//! No code here waits except in the driver's own calls, during which no lock is held. During a
//! capture there are no such calls.

pub mod access_tracker;
pub mod backing;
pub mod capacity;
pub mod evicted;
pub mod mem_advise;
pub mod migration_thread;
pub mod period_detector;
pub mod pointer_attributes;
pub mod pool;
pub mod ranges;
pub mod residency_probe;
pub mod template_learner;

use weft_protocol::control::ToBroker;

use crate::client::{backing_mode, link};
use crate::driver::abi::{CuContext, CuStream};
use crate::driver::stream::{Stream, own_stream};
use crate::driver::{capture, queries};
use backing::ManagedOutcome;
use ranges::Origin;

pub use crate::client::backing_mode::{is_open, managed, may_be_managed, settled};
pub use capacity::write_to;

/// Takes managed memory for `cuMemAlloc` and its pitched sibling.
pub fn take(bytes: u64) -> ManagedOutcome {
    started(backing::take(bytes, Origin::Plain))
}

/// Takes managed memory in stream order. `pool` 0 is the device's own.
pub fn take_ordered(bytes: u64, pool: usize, stream: CuStream) -> ManagedOutcome {
    started(backing::take_ordered(bytes, pool, stream))
}

/// Starts the migration thread with the first managed memory.
fn started(outcome: ManagedOutcome) -> ManagedOutcome {
    if matches!(outcome, ManagedOutcome::At(_))
        && let Some(link) = link::only()
    {
        migration_thread::start(link);
    }
    outcome
}

pub fn forget() {
    backing_mode::forget();
    migration_thread::forget();
}

pub fn stream_ending(stream: Stream) {
    if managed() {
        residency_probe::stream_ending(own_stream(stream));
        pool::stream_ending(stream);
    }
}

/// Reports a profiled job's last working sets, as the process ends.
pub fn report_last() {
    if managed()
        && let Some(link) = link::only()
    {
        migration_thread::report_last(link);
    }
}

/// Handles a context that may be about to end.
pub fn context_ending() {
    if managed() {
        migration_thread::context_ending();
    }
}

/// Handles the return of such a call. `ended`: the context that ended, with its managed memory; 0 =
/// unknown.
pub fn context_ended(ended: Option<CuContext>) {
    if !managed() {
        return;
    }
    migration_thread::context_ended(ended.is_some());
    let Some(context) = ended else { return };
    residency_probe::context_ended();
    pool::context_ended(context);
    if !capture::any() {
        pool::forget_gone();
        for gone in ranges::all()
            .into_iter()
            .filter(|(start, _)| !queries::is_managed(*start))
        {
            ranges::remove(gone.0);
            capacity::send(ToBroker::Unbacked { start: gone.0 });
            capacity::give_back(gone.1.device, gone.1.room);
        }
    }
}
