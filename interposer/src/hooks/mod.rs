// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls that weft hooks. All other calls go straight to the driver.
//!
//! A hook has the driver function's signature, calls the driver once with the client's arguments,
//! and returns its result. Exceptions: deferred launches, allocations above the quota, managed and
//! movable memory, priorities of a background job's streams. Bookkeeping may fail without effect on
//! the call. Hooks allocate or lock only around calls that load code, build graphs, begin captures,
//! make streams or take memory, never at launches.
//!
//! A hook whose call must not overtake deferred launches first empties the launch queue
//! ([`crate::deferred`]). Stream-ordered functions without a hook pass through [`stream_ordered`],
//! which informs the session first.

mod allocation;
mod arrays;
mod capture;
mod choice;
mod context;
mod declare;
mod deferred_launch;
mod func_attributes;
pub mod graph;
mod init;
mod launch;
mod managed_launch;
mod managed_memory;
mod mem_info;
pub mod module;
mod movable;
mod pools;
pub mod proc_address;
mod recorded;
pub mod stream_ordered;
mod stream_priority;
mod sync;

pub use self::choice::is_for_managed;
use crate::client::settings::Purpose;
use crate::trace;

/// The hook for a symbol.
pub fn hook(at: usize) -> Option<*const ()> {
    let recorded = trace::on().then(|| recorded::hook(at)).flatten();
    recorded.or_else(|| choice::unrecorded(at))
}

/// Whether weft is off in this process. Then only lookups are hooked, and other calls pass through.
pub fn off() -> bool {
    Purpose::of_process() == Purpose::Off
}

/// Entry point of a symbol without a driver, if it does more than report the missing driver.
pub fn without_driver(at: usize) -> Option<*const ()> {
    init::without_driver(at)
}
