//! Managed backing: managed memory where a job asks for device memory, so that jobs that exceed the
//! device together can run.
//!
//! * For jobs that ask for it (`--backing managed`), or with `auto` where memory does not fit
//!   beside the others'. In other jobs each function returns at once.
//! * The job sees device memory: attributes, free memory and range sizes are those of `cuMemAlloc`.
//!   Handles for other processes are impossible: the driver refuses, and weft says so once.
//! * The rest stays device memory, is counted, and is logged once:
//!   * all on devices without concurrent managed access;
//!   * allocations refused for another reason than want of memory;
//!   * virtual memory management (`cuMemCreate`, `cuMemMap`: no managed memory in reserved ranges);
//!   * shared pools, arrays, graphs' allocation nodes.
//! * A job may take `max(total - reserve, declared)` of the device (see [`capacity`]); beyond that
//!   it gets "out of memory".
//!
//! | file | holds |
//! | --- | --- |
//! | `backing` | taking and giving back managed memory, also in stream order |
//! | `capacity` | how much of a device a job may take, and has |
//! | `ranges` | what was handed out |
//! | `pool` | freed blocks kept for reuse; usage of pools |
//! | `pointer_attributes` | what the job is told about its memory |
//! | `access_tracker` | what launches use of it |
//! | `period_detector` | in which order, and when it repeats |
//! | `template_learner` | stage 1: from what launches touched to templates |
//! | `residency_probe` | what a launch touched, by the host's page table |
//! | `evicted` | evicted granules, and launches that wait for them |
//! | `mem_advise` | advice and prefetches |
//! | `migration_thread` | the thread that carries out page operations |
//!
//! Nothing here waits but in the driver's own calls, over which no lock is held. During a capture
//! none is made.

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
